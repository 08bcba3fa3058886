"""A document's tree as typed settings, with every problem of the tree in one pass.

Nothing is guessed: a number is not a text, a text is not a number, and `yes` is not a boolean. The one exception is a
substituted value (`${env:X}`), which is what its field asks for: its text, or what YAML reads in it.
"""

from __future__ import annotations

import operator
import os
import re
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from config.ids import ComponentId
from config.nodes import BROKEN, Node, kind_of, parse
from config.problems import ConfigError, Key, Path, Place, Problem, did_you_mean
from config.settings import IGNORED, SettingError, Settings
from config.shapes import (
    LISTS,
    MAPS,
    UNIONS,
    Fields,
    arms_of,
    as_written,
    bare,
    choices_of,
    fields_of,
    form_of,
    is_settings,
    origin_of,
    section_of,
)
from config.substitution import Substitution
from config.units import Duration, Secret, Size

S = TypeVar("S", bound=Settings)

INVALID: Final = object()  # what a value decodes to after its problem has been reported

# A text that was substituted is taken out of messages, unless it is so short that words would suffer.
_SHORTEST_HIDDEN: Final = 4


class Located(NamedTuple):
    """A part of a document that is decoded later, with its path."""

    path: Path
    node: Node

    @property
    def place(self) -> Place:
        """Where it begins for a person: at its key."""
        return section_place(self.node, self.path)


def settings_from_yaml(text: str, settings_type: type[S]) -> S:
    """Settings from what a user writes below a component's id, substitution included.

    Raises:
        ConfigError: with every problem of the text.
    """
    problems: list[Problem] = []
    node = Substitution(os.environ, problems).node(parse(text, "<text>", problems), ())
    settings = decode(settings_type, node, problems)
    if settings is None or any(problem.severity == "error" for problem in problems):
        raise ConfigError(problems)
    return settings


def decode(settings_type: type[S], node: Node, problems: list[Problem], path: Path = ()) -> S | None:
    """Settings from a tree. None when they are not usable; `problems` then says why."""
    decoded = Decoder(problems).value(settings_type, node, path)
    return None if decoded is INVALID else typing.cast("S", decoded)


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
        value = self._value(annotation, node, path)
        advice = next((advice for limit in limits if (advice := _advice_of_limit(limit, value))), "")
        if advice:
            return self._wrong(node, path, f"{_shown(annotation, node)} is out of bounds; {advice}")
        return value

    def _value(self, annotation: Any, node: Node, path: Path) -> Any:
        origin = origin_of(annotation)
        if annotation is Located:
            return Located(path, node)
        if annotation is Any:
            return node.plain()
        for kinds, decode_as in ((UNIONS, self._union), (MAPS, self._entries), (LISTS, self._items)):
            if origin in kinds:
                return decode_as(annotation, node, path)
        if is_settings(annotation):
            return self._settings(annotation, node, path)
        return self._scalar(annotation, node, path)

    def _scalar(self, kind: Any, node: Node, path: Path) -> Any:
        choices = choices_of(kind)
        if choices is not None:
            return self._choice(kind, choices, node, path)
        value = node.value
        if kind in {int, float, bool}:
            value = _number(kind, value)
            return value if type(value) is kind else self._mismatch(kind, node, path)
        takes_number = _takes_number(kind, value)
        if node.text is not None and not takes_number:
            value = node.text
        if not isinstance(value, str) and not takes_number:
            return self._mismatch(kind, node, path)
        return value if kind is str else self._made(kind, value, node, path)

    def _made(self, kind: Any, value: Any, node: Node, path: Path) -> Any:
        make: Callable[[Any], Any] = ComponentId.parse if kind is ComponentId else kind
        try:
            return make(value)
        except ValueError as error:
            return self._wrong(node, path, f"{node.shown()} is not {form_of(kind)}" if node.origins else str(error))

    def _choice(self, kind: Any, choices: dict[str, Any], node: Node, path: Path) -> Any:
        text = as_written(node.value) if node.text is None else node.text
        name = text if text in choices else text.lower()
        if name not in choices and isinstance(node.value, str):
            advice = f"; one of: {', '.join(choices)}" if node.origins else did_you_mean(text, choices, "one of")
            return self._wrong(node, path, f"{node.shown()} is not a choice{advice}")
        choice = choices.get(name)
        written = choice.value if isinstance(choice, Enum) else choice
        fits = choice is not None and (node.text is not None or type(node.value) is type(written))
        return choice if fits else self._mismatch(kind, node, path)

    def _items(self, annotation: Any, node: Node, path: Path) -> Any:
        origin, arguments = origin_of(annotation), typing.get_args(annotation)
        if not isinstance(node.value, list):
            return self._mismatch(annotation, node, path)
        fixed = origin is tuple and arguments and Ellipsis not in arguments
        if fixed and len(arguments) != len(node.value):
            return self._wrong(node, path, f"a list of {len(node.value)} where {len(arguments)} values are expected")
        kinds = arguments if fixed else (arguments[:1] or (Any,)) * len(node.value)
        pairs = enumerate(zip(kinds, node.value, strict=True))
        items = [self.value(kind, item, (*path, index)) for index, (kind, item) in pairs]
        return origin(item for item in items if item is not INVALID) if self._may_keep(items) else INVALID

    def _entries(self, annotation: Any, node: Node, path: Path) -> Any:
        if not isinstance(node.value, dict):
            return self._mismatch(annotation, node, path)
        key_kind, kind = typing.get_args(annotation) or (str, Any)
        names: dict[Any, Any] = {}
        parts: list[Any] = []
        for key, child in node.value.items():
            if not _is_absent(kind, child):
                key_node = Node(str(key), key.place, origins=node.origins if key.hidden else ())
                name = self.value(key_kind, key_node, (*path, key))
                if name is not INVALID and name in names:
                    name = self._wrong(key_node, (*path, key), f"means the same as another key: {name}")
                names[name] = self.value(kind, child, (*path, key))
                parts += name, names[name]
        kept = {name: value for name, value in names.items() if name is not INVALID and value is not INVALID}
        return kept if self._may_keep(parts) else INVALID

    def _may_keep(self, parts: Iterable[Any]) -> bool:
        return self.tolerant or all(part is not INVALID for part in parts)

    def _union(self, annotation: Any, node: Node, path: Path) -> Any:
        section = section_of(annotation)
        if section is not None:
            return self._optional_section(section, node, path)
        arms = typing.get_args(annotation)
        if node.value is None and types.NoneType in arms:
            texts = [arm for arm in (str, Secret) if arm in arms]
            return self.value(texts[0], node, path) if texts and node.text is not None else None
        arms = tuple(arm for arm in arms if arm is not types.NoneType)
        for arm in arms:
            attempt = Decoder([], tolerant=self.tolerant)
            value = attempt.value(arm, node, path)
            if value is not INVALID and not any(problem.severity == "error" for problem in attempt.problems):
                self.problems += attempt.problems
                return value
        fitting = [arm for arm in arms if _shape(arm) is type(node.value)]
        if len(arms) == 1 or len(fitting) == 1 or (fitting and isinstance(node.value, list | dict)):
            return self.value((fitting or arms)[0], node, path)
        return self._mismatch(annotation, node, path)

    def _optional_section(self, section: type[Settings], node: Node, path: Path) -> Any:
        """A section that may be off: `enabled: false` says so, as in the Collector. Null means its defaults."""
        if not isinstance(node.value, dict) or "enabled" in fields_of(section) or "enabled" not in node.value:
            return self.value(section, node, path)
        enabled = self.value(bool, node.at(("enabled",))[0], (*path, "enabled"))
        rest = Node({key: child for key, child in node.value.items() if key != "enabled"}, node.place)
        value = self._settings(section, rest, path)
        return value if enabled is True else None if enabled is False else INVALID

    def _settings(self, settings_type: type[Settings], node: Node, path: Path) -> Any:
        if node.value is not None and not isinstance(node.value, dict):
            return self._mismatch(settings_type, node, path)
        fields = fields_of(settings_type)
        values = self._fields(fields, node, path)
        usable = {name: value for name, value in values.items() if value is not INVALID}
        required = {key: field for key, field in fields.items() if field.required and field.name not in usable}
        for key, field in required.items():
            if field.name not in values:
                self._missing(key, field, node, path)
        if required or not self._may_keep(values.values()):
            return INVALID
        try:
            return settings_type.default() if node.value is None else settings_type(**usable)
        except ValueError as error:
            if len(usable) == len(values):  # else it may be about what was left out, and that has been reported
                self.problems.append(problem_of(error, node, path))
            return INVALID

    def _fields(self, fields: Fields, node: Node, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, child in (node.value or {}).items():
            field = fields.get(key)
            if field is None:
                self._unknown(key, path, fields)
            elif IGNORED in bare(field.type)[1]:
                message = "accepted for the Collector's sake, but has no effect here; leave it out"
                self.problems.append(Problem(key.place, (*path, key), message, "warning"))
            elif not _is_absent(field.type, child):
                values[field.name] = self.value(field.type, child, (*path, key))
        return values

    def _unknown(self, key: Key, path: Path, fields: Fields) -> None:
        if key.hidden:
            self.problems.append(Problem(key.place, path, f"has an unknown key; known: {', '.join(sorted(fields))}"))
        else:
            message = f"unknown key {str(key)!r}{did_you_mean(key, sorted(fields))}"
            self.problems.append(Problem(key.place, (*path, key), message))

    def _missing(self, name: str, field: msgspec.structs.FieldInfo, node: Node, path: Path) -> None:
        written, steps = node.at((name,))
        place = written.place if steps else section_place(node, path)
        unset = f", and {written.origin()} is not set" if steps and written.origins else ""
        self.problems.append(Problem(place, (*path, name), f"required{unset}; write {form_of(field.type)}"))

    def _wrong(self, node: Node, path: Path, message: str) -> Any:
        self.problems.append(Problem(node.place, path, message))
        return INVALID

    def _mismatch(self, annotation: Any, node: Node, path: Path) -> Any:
        advice = _advice_of_type(arms_of(annotation), node)
        message = f"{_shown(annotation, node)} where {form_of(annotation)} is expected{advice}{node.note}"
        return self._wrong(node, path, message)


def problem_of(error: ValueError, node: Node, path: Path) -> Problem:
    """What a section's own check has found, at the place of the setting that it names.

    Texts that were substituted below the section are taken out of the message.
    """
    inner: Path = error.path if isinstance(error, SettingError) else ()
    message = str(error)
    for part in node.walk():
        for reference, text in part.origins:
            if len(text) >= _SHORTEST_HIDDEN:
                message = message.replace(text, reference).replace(repr(text)[1:-1], reference)
    return Problem(_place_of(node, inner, section_place(node, path)), (*path, *inner), message)


def section_place(node: Node, path: Path) -> Place:
    """Where a section begins for a person: at its key, if it has one."""
    return path[-1].place if path and isinstance(path[-1], Key) else node.place


def _place_of(node: Node, path: Path, place: Place) -> Place:
    """The place of what a path leads to below a node at `place`, or of the nearest part above that is written."""
    for step in path:
        found, steps = node.at((step,))
        if not steps:
            break
        keys = node.value if isinstance(node.value, dict) else ()
        node, place = found, found.place
        if node.value is None or isinstance(node.value, dict):
            place = next((key.place for key in keys if key == step), place)
    return place


def _number(kind: Any, value: Any) -> Any:
    """A number as the type that its field has, where nothing is lost."""
    if kind is float and type(value) is int:
        return float(value)
    return int(value) if kind is int and type(value) is float and value.is_integer() else value


def _takes_number(kind: Any, value: object) -> bool:
    if type(value) is int and (kind is Size or (issubclass(kind, Duration) and value == 0)):
        return True
    return type(value) in {int, float} and getattr(kind, "takes_numbers", False)


def _shape(annotation: Any) -> type:
    """The type of the nodes that suit a type."""
    origin = origin_of(bare(annotation)[0])
    if is_settings(origin) or origin in MAPS:
        return dict
    return list if origin in LISTS else origin if origin in {bool, int, float} else str


def _is_absent(annotation: Any, node: Node) -> bool:
    """Whether the node is a null that counts as "not written": it does where the type has no use for it."""
    arms = arms_of(annotation)
    if node.value is not None or any(arm in {Any, Located, types.NoneType} or is_settings(arm) for arm in arms):
        return False
    return node.text is None or not {str, Secret}.intersection(arms)


def _shown(annotation: Any, node: Node) -> str:
    """The value for a message: its type only, where it may be a secret."""
    may_be_secret = any(arm is Secret or _shape(arm) is dict for arm in arms_of(annotation))
    return kind_of(node.value) if may_be_secret and not node.origins else node.shown()


def _advice_of_type(arms: tuple[Any, ...], node: Node) -> str:
    """How to write the value so that it has the right type, when that can be told."""
    shown = not node.origins
    if isinstance(node.value, bool | int | float) and any(_shape(arm) is str for arm in arms):
        if any(isinstance(arm, type) and issubclass(arm, Duration) for arm in arms):
            return f"; a bare number needs a unit: {node.value}s, for example" if shown else "; it needs a unit"
        return f'; put it in quotes: "{node.shown()}"' if shown and Secret not in arms else "; put it in quotes"
    if isinstance(node.value, str) and shown:
        if any(_shape(arm) is list for arm in arms):
            return f"; write it as a list: [{node.value}]"
        if any(arm in {int, float} for arm in arms) and node.value.isdecimal():
            return f"; write it without quotes: {node.value}"
    return ""


def _advice_of_limit(limit: Any, value: Any) -> str:
    """What a value would have to be, when a limit forbids it."""
    if not isinstance(limit, msgspec.Meta) or value is None or value is INVALID:
        return ""
    length = len(value) if hasattr(value, "__len__") else 0
    rows: tuple[tuple[Any, Callable[[Any, Any], bool], Any, str], ...] = (
        (value, operator.ge, limit.ge, "write at least {}"),
        (value, operator.gt, limit.gt, "write more than {}"),
        (value, operator.le, limit.le, "write at most {}"),
        (value, operator.lt, limit.lt, "write less than {}"),
        (value, lambda number, factor: number % factor == 0, limit.multiple_of, "write a multiple of {}"),
        (length, operator.ge, limit.min_length, "its length must be at least {}"),
        (length, operator.le, limit.max_length, "its length must be at most {}"),
        (value, lambda text, pattern: re.search(pattern, text) is not None, limit.pattern, "it must match {}"),
    )
    for measured, holds, bound, advice in rows:
        if bound is not None and not holds(measured, bound):
            return advice.format(Duration(bound) if isinstance(value, Duration) else bound)
    return ""
