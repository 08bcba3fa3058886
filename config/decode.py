"""A document's tree as typed settings, with every problem of the tree in one pass.

Nothing is guessed: a number is not a text, a text is not a number, and `yes` is not a boolean. The one exception is a
substituted value (`${env:X}`), which is whatever the field asks for: its text, or what YAML reads in it.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeVar, Union

import msgspec

from config.ids import ComponentId
from config.nodes import BROKEN, Key, Node, kind_of, parse
from config.problems import ConfigError, Path, Place, Problem, did_you_mean, path_text
from config.settings import IGNORED, SettingError, Settings
from config.units import Duration, Ratio, Secret, Size

S = TypeVar("S", bound=Settings)

INVALID: Final = object()  # what a value decodes to after its problem has been reported

_FORMS: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    ComponentId: "a component id such as otlp or otlp/edge",
}
_COLLECTIONS: Final = (tuple, list, set, frozenset)


def settings_from_yaml(text: str, settings_type: type[S]) -> S:
    """Settings from what a user writes below a component's id.

    Raises:
        ConfigError: with every problem of the text.
    """
    problems: list[Problem] = []
    node = parse(text, "<text>", problems)
    settings = decode(settings_type, node, problems)
    if settings is None or any(problem.severity == "error" for problem in problems):
        raise ConfigError(problems)
    return settings


def decode(settings_type: type[S], node: Node, problems: list[Problem], path: Path = ()) -> S | None:
    """Settings from a tree, or None when `problems` has grown by an error."""
    decoded = Decoder(problems).value(settings_type, node, path)
    return None if decoded is INVALID else typing.cast("S", decoded)


@functools.cache
def fields_of(settings_type: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """The fields of a settings class by the key that a document has for them."""
    return {field.encode_name: field for field in msgspec.structs.fields(settings_type)}


def bare(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without `Annotated`, and what was annotated."""
    if typing.get_origin(annotation) is Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def arms_of(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; the type itself otherwise."""
    if typing.get_origin(annotation) in {Union, types.UnionType}:
        return typing.get_args(annotation)
    return (annotation,)


def is_settings(annotation: Any) -> bool:
    """Whether a type is a settings class."""
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def form_of(annotation: Any) -> str:
    """What a value of a type looks like, in words."""
    annotation, _ = bare(annotation)
    if annotation in _FORMS:
        return _FORMS[annotation]
    origin = typing.get_origin(annotation) or annotation
    if origin is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(annotation)))
    if origin in {Union, types.UnionType}:
        return " or ".join(form_of(arm) for arm in arms_of(annotation) if arm is not types.NoneType)
    if origin in _COLLECTIONS:
        return "a list"
    if is_settings(origin) or origin in {dict, Mapping}:
        return "a map of keys"
    if issubclass(origin, Enum):
        return "one of " + ", ".join(str(member.value) for member in origin)
    return getattr(origin, "form", f"a text for {origin.__name__}")


class Decoder:
    """One walk over a tree.

    `tolerant`: leave out what is invalid, after reporting it, so that the rest can be looked at too. Otherwise whatever
    contains something invalid is invalid itself.
    """

    def __init__(self, problems: list[Problem], *, tolerant: bool = False) -> None:
        self.problems = problems
        self.tolerant = tolerant

    def value(self, annotation: Any, node: Node, path: Path) -> Any:
        """The node as a value of that type, or INVALID."""
        annotation, limits = bare(annotation)
        if node.value is BROKEN:
            return INVALID
        if annotation is Any or annotation is Node:
            return node if annotation is Node else node.plain()
        value = self._of_origin(typing.get_origin(annotation) or annotation, annotation, node, path)
        for limit in limits:
            if isinstance(limit, msgspec.Meta) and value is not INVALID and value is not None:
                broken_limit = _broken_limit(limit, value)
                if broken_limit:
                    return self.wrong(node, path, f"{node.shown()} is out of bounds; {broken_limit}")
        return value

    def _of_origin(self, origin: Any, annotation: Any, node: Node, path: Path) -> Any:
        arguments = typing.get_args(annotation)
        if origin in {Union, types.UnionType}:
            return self._union(arguments, node, path)
        if origin is Literal:
            return self._choice({str(choice): choice for choice in arguments}, node, path)
        if origin in _COLLECTIONS:
            return self._items(origin, arguments, node, path)
        if origin in {dict, Mapping}:
            return self._entries(arguments, node, path)
        if is_settings(origin):
            return self._settings(origin, node, path)
        if isinstance(origin, type) and issubclass(origin, Enum):
            return self._choice({str(member.value): member for member in origin}, node, path)
        return self._scalar(origin, node, path)

    # One node of each shape.

    def _scalar(self, kind: type, node: Node, path: Path) -> Any:
        value = node.value
        if kind in {str, Secret} or isinstance(value, str):
            value = value if node.text is None else node.text
        if kind is float and type(value) is int:
            value = float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if kind in {str, int, float, bool}:
            return value if type(value) is kind else self.mismatch(kind, node, path)
        return self._made_from_text(kind, value, node, path)

    def _made_from_text(self, kind: type, value: Any, node: Node, path: Path) -> Any:
        if not isinstance(value, str) and not _takes_number(kind, value):
            return self.mismatch(kind, node, path)
        make: Callable[[Any], Any] = ComponentId.parse if kind is ComponentId else kind
        try:
            return make(value)
        except ValueError as error:
            if node.origins or kind is Secret:
                return self.wrong(node, path, f"what {node.origin() or 'this'} holds is not {form_of(kind)}")
            return self.wrong(node, path, str(error))

    def _choice(self, choices: Mapping[str, Any], node: Node, path: Path) -> Any:
        text = str(node.value).lower() if isinstance(node.value, bool) else str(node.value)
        for name in (text, text.lower()):
            if name in choices and not isinstance(node.value, list | dict):
                return choices[name]
        help_text = "" if node.origins or not isinstance(node.value, str) else did_you_mean(text, choices, "one of")
        return self.wrong(node, path, f"{node.shown()} is not a choice{help_text or '; one of: ' + ', '.join(choices)}")

    def _items(self, origin: Any, arguments: tuple[Any, ...], node: Node, path: Path) -> Any:
        if not isinstance(node.value, list):
            return self.mismatch(origin, node, path)
        fixed = arguments and origin is tuple and Ellipsis not in arguments
        if fixed and len(arguments) != len(node.value):
            return self.wrong(node, path, f"{len(node.value)} values where {len(arguments)} are expected")
        kinds = arguments if fixed else (arguments[:1] or (Any,)) * len(node.value)
        items = [
            self.value(kind, item, (*path, index))
            for index, (kind, item) in enumerate(zip(kinds, node.value, strict=True))
        ]
        return self._kept(origin(item for item in items if item is not INVALID), items)

    def _entries(self, arguments: tuple[Any, ...], node: Node, path: Path) -> Any:
        if not isinstance(node.value, dict):
            return self.mismatch(dict, node, path)
        key_kind, kind = arguments or (str, Any)
        entries: list[tuple[Any, Any]] = []
        for key, child in node.value.items():
            if _is_absent(kind, child):
                continue
            key_node = Node(str(key), key.place, origins=(("the environment", key),) if key.hidden else ())
            entries.append((self.value(key_kind, key_node, (*path, key)), self.value(kind, child, (*path, key))))
        kept = {key: value for key, value in entries if key is not INVALID and value is not INVALID}
        return self._kept(kept, [part for entry in entries for part in entry])

    def _kept(self, kept: Any, parts: list[Any]) -> Any:
        return kept if self.tolerant or all(part is not INVALID for part in parts) else INVALID

    def _union(self, arms: tuple[Any, ...], node: Node, path: Path) -> Any:
        real = [arm for arm in arms if arm is not types.NoneType]
        optional = len(real) < len(arms)
        sections = [arm for arm in real if is_settings(bare(arm)[0])]
        if node.value is None:
            if node.text is not None and (str in real or Secret in real):
                return self.value(str if str in real else Secret, node, path)
            return self.value(sections[0], node, path) if sections else None
        if optional and sections == real and len(sections) == 1:
            return self._optional_section(bare(sections[0])[0], node, path)
        for arm in real:
            attempt = Decoder([], tolerant=self.tolerant)
            value = attempt.value(arm, node, path)
            if value is not INVALID and not any(problem.severity == "error" for problem in attempt.problems):
                self.problems += attempt.problems
                return value
        fitting = [arm for arm in real if _shape(arm) is type(node.value)]
        if len(fitting) == 1 or len(real) == 1:
            return self.value((fitting or real)[0], node, path)
        return self.mismatch(Union[tuple(real)], node, path)  # noqa: UP007 (made at run time)

    def _optional_section(self, section: type[Settings], node: Node, path: Path) -> Any:
        """A section that may be off: `enabled: false` says so, as in the Collector."""
        if not isinstance(node.value, dict) or "enabled" in fields_of(section) or "enabled" not in node.value:
            return self.value(section, node, path)
        enabled = self.value(bool, node.value["enabled"], (*path, "enabled"))
        rest = {key: child for key, child in node.value.items() if key != "enabled"}
        value = self._settings(section, Node(rest, node.place), path)
        return value if enabled is True else None if enabled is False else INVALID

    # Settings classes.

    def fields(self, settings_type: type[Settings], node: Node, path: Path) -> dict[str, Any]:
        """The fields of a section that are written, by attribute name. Unknown keys are reported."""
        fields = fields_of(settings_type)
        values: dict[str, Any] = {}
        for key, child in node.value.items():
            field = fields.get(key)
            if field is None:
                self._unknown(key, path, fields)
            elif IGNORED in bare(field.type)[1]:
                self.warn(key.place, (*path, key), "is accepted for the Collector's sake and has no effect here")
            elif not _is_absent(field.type, child):
                values[field.name] = self.value(field.type, child, (*path, key))
        return values

    def _settings(self, settings_type: type[Settings], node: Node, path: Path) -> Any:
        if node.value is not None and not isinstance(node.value, dict):
            return self.mismatch(settings_type, node, path)
        values = self.fields(settings_type, node, path) if node.value is not None else {}
        missing = [
            name for name, field in fields_of(settings_type).items() if field.required and field.name not in values
        ]
        for name in missing:
            self._missing(name, fields_of(settings_type)[name], node, path)
        if missing or any(value is INVALID for value in values.values()):
            if missing or not self.tolerant:
                return INVALID
            values = {name: value for name, value in values.items() if value is not INVALID}
        try:
            return settings_type.default() if node.value is None else settings_type(**values)
        except ValueError as error:
            self.problems.append(problem_of(error, node, path))
            return INVALID

    def _unknown(self, key: Key, path: Path, fields: Mapping[str, Any]) -> None:
        if key.hidden:
            self.problems.append(Problem(key.place, path, f"holds an unknown key; known: {', '.join(sorted(fields))}"))
        else:
            message = f"unknown key {str(key)!r}{did_you_mean(key, fields)}"
            self.problems.append(Problem(key.place, (*path, key), message))

    def _missing(self, name: str, field: msgspec.structs.FieldInfo, node: Node, path: Path) -> None:
        written = node.at((name,))[0] if isinstance(node.value, dict) and name in node.value else None
        place = written.place if written is not None else section_place(node, path)
        why = f"{written.origin()} is not set" if written is not None and written.origins else "it has no default"
        self.problems.append(Problem(place, (*path, name), f"is required: {why}; write {form_of(field.type)}"))

    # Reporting.

    def wrong(self, node: Node, path: Path, message: str) -> Any:
        """Report a problem of a value."""
        self.problems.append(Problem(node.place, path, message))
        return INVALID

    def warn(self, place: Place, path: Path, message: str) -> None:
        """Report what works but should be changed."""
        self.problems.append(Problem(place, path, message, "warning"))

    def mismatch(self, annotation: Any, node: Node, path: Path) -> Any:
        """Report a value of another type than its field."""
        hides = any(arm is Secret or is_settings(arm) for arm in arms_of(annotation))
        got = kind_of(node.value) if hides and not node.origins else node.shown()
        advice = _advice(annotation, node, hides=hides)
        return self.wrong(node, path, f"{got} where {form_of(annotation)} is expected{advice}{node.note}")


def problem_of(error: ValueError, node: Node, path: Path) -> Problem:
    """What a section's own check has found, at the place of the setting that it names.

    Texts that were substituted below the section are taken out of the message.
    """
    inner: Path = error.path if isinstance(error, SettingError) else ()
    found, steps = node.at(inner)
    place = found.place if steps and steps == len(inner) else section_place(found, (*path, *inner[:steps]), node)
    message = str(error)
    for part in node.walk():
        for reference, text in part.origins:
            if len(text) >= 4:
                message = message.replace(text, reference)
    return Problem(place, (*path, *inner), message)


def section_place(node: Node, path: Path, root: Node | None = None) -> Place:
    """Where a section begins for a person: at its key, if it has one."""
    if path and isinstance(path[-1], Key) and (root is None or root is node):
        return path[-1].place
    return node.place


def _takes_number(kind: type, value: object) -> bool:
    if type(value) is int:
        return issubclass(kind, Size | Ratio) or (issubclass(kind, Duration) and value == 0)
    return type(value) is float and issubclass(kind, Ratio)


def _shape(annotation: Any) -> type:
    annotation, _ = bare(annotation)
    origin = typing.get_origin(annotation) or annotation
    if is_settings(origin) or origin in {dict, Mapping}:
        return dict
    return list if origin in _COLLECTIONS else origin if origin in {bool, int, float} else str


def _is_absent(annotation: Any, node: Node) -> bool:
    """Whether null counts as "not written": it does where the type has no use for it."""
    arms = [bare(arm)[0] for arm in arms_of(bare(annotation)[0])]
    if node.value is not None or any(arm in {Any, Node, types.NoneType} or is_settings(arm) for arm in arms):
        return False
    return node.text is None or not {str, Secret}.intersection(arms)


def _advice(annotation: Any, node: Node, *, hides: bool) -> str:
    arms = arms_of(annotation)
    if isinstance(node.value, bool | int | float) and any(_shape(arm) is str for arm in arms):
        if any(isinstance(arm, type) and issubclass(arm, Duration) for arm in arms):
            return f"; a bare number needs a unit: {node.value}s, for example" if not node.origins else ""
        if hides or node.origins:
            return "; put it in quotes"
        return f'; put it in quotes: "{node.shown()}"'
    if isinstance(node.value, str) and not hides and not node.origins:
        if any(arm in _COLLECTIONS for arm in arms):
            return f"; write it as a list: [{node.value}]"
        if any(arm in {int, float} for arm in arms) and node.value.strip().isdecimal():
            return f"; write it without quotes: {node.value.strip()}"
    return ""


def _broken_limit(limit: msgspec.Meta, value: Any) -> str:
    """What a value would have to be, when it is not."""
    kind = type(value)
    length = len(value) if hasattr(value, "__len__") else 0
    rows = (
        (value, operator.ge, limit.ge, "write at least {}"),
        (value, operator.gt, limit.gt, "write more than {}"),
        (value, operator.le, limit.le, "write at most {}"),
        (value, operator.lt, limit.lt, "write less than {}"),
        (length, operator.ge, limit.min_length, "at least {} long"),
        (length, operator.le, limit.max_length, "at most {} long"),
    )
    for measured, holds, bound, advice in rows:
        if bound is not None and not holds(measured, bound):
            return advice.format(kind(bound) if isinstance(value, float | int) else bound)
    return ""


__all__ = ["INVALID", "Decoder", "decode", "path_text", "problem_of", "settings_from_yaml"]
