"""What the types of settings' fields mean: shared by everything that reads, writes or describes settings."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeAlias, Union

import msgspec

from config.ids import ComponentId
from config.settings import Settings

Fields: TypeAlias = Mapping[str, msgspec.structs.FieldInfo]

UNIONS: Final = (Union, types.UnionType)
LISTS: Final = (tuple, list, set, frozenset)
MAPS: Final = (dict, Mapping)

_FORMS: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    ComponentId: "a component id such as otlp or otlp/edge",
    **dict.fromkeys(MAPS, "a map of keys"),
    **dict.fromkeys(LISTS, "a list"),
}


@functools.cache
def fields_of(settings_type: type[msgspec.Struct]) -> Fields:
    """The fields of a settings class, by the key that a document has for them."""
    return {field.encode_name: field for field in msgspec.structs.fields(settings_type)}


def bare(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without `Annotated`, and what was annotated."""
    if typing.get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def arms_of(annotation: Any) -> tuple[Any, ...]:
    """The types of a union without `Annotated`, or the one type."""
    annotation, _ = bare(annotation)
    if typing.get_origin(annotation) in UNIONS:
        return tuple(bare(arm)[0] for arm in typing.get_args(annotation))
    return (annotation,)


def origin_of(annotation: Any) -> Any:
    """`tuple` for `tuple[str, ...]`, the type itself for a plain type."""
    return typing.get_origin(annotation) or annotation


def is_settings(annotation: Any) -> bool:
    """Whether a type is a settings class."""
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def section_of(annotation: Any) -> type[Settings] | None:
    """The settings class of a section that may be off (`X | None`); None for any other type."""
    arms = arms_of(annotation)
    section = next((arm for arm in arms if is_settings(arm)), None)
    return section if len(arms) == 2 and types.NoneType in arms else None


def choices_of(annotation: Any) -> dict[str, Any] | None:
    """The values of a Literal or an enum by how they are written; None for any other type."""
    if typing.get_origin(annotation) is Literal:
        return {as_written(choice): choice for choice in typing.get_args(annotation)}
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return {as_written(member.value): member for member in annotation}
    return None


def as_written(value: object) -> str:
    """A scalar as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def form_of(annotation: Any) -> str:
    """What a value of a type looks like, in words."""
    arms = arms_of(annotation)
    if len(arms) > 1:
        return " or ".join(form_of(arm) for arm in arms if arm is not types.NoneType)
    choices = choices_of(arms[0])
    if choices is not None:
        return f"one of {', '.join(choices)}"
    origin = dict if is_settings(arms[0]) else origin_of(arms[0])
    return str(_FORMS.get(origin) or getattr(origin, "form", f"a text for {origin.__name__}"))
