"""What is wrong with a document, where, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
Severity: TypeAlias = Literal["error", "warning"]

_PLAIN_KEY: Final = re.compile(r"[\w/@*-]+")
# More names than these help nobody who made a typing mistake.
_NAMES_SHOWN: Final = 40


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something was written. Line and column count from 1, as editors do."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Key(str):
    """A key of a map, which knows where it was written. `hidden`: it came from outside and must not be shown."""

    __slots__ = ("hidden", "place")
    place: Place
    hidden: bool

    def __new__(cls, text: str, place: Place, *, hidden: bool = False) -> Self:
        """Make a key."""
        self = super().__new__(cls, text)
        self.place = place
        self.hidden = hidden
        return self


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong (an error), or that works but should be changed (a warning).

    Printed as `file:line:column: path.of.keys: what is wrong; what would be right`.
    """

    place: Place
    path: Path
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        kind = "warning: " if self.severity == "warning" else ""
        path = f"{path_text(self.path)}: " if self.path else ""
        return f"{self.place}: {kind}{path}{self.message}"


class ConfigError(Exception):
    """The document can't be used. `problems` holds everything that is wrong with it, in the order of its lines."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = in_order(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems in the order of their lines, each once."""
    return tuple(sorted(dict.fromkeys(problems), key=lambda problem: problem.place))


def path_text(path: Path) -> str:
    """A path as a person reads it: `exporters.otlp.headers["x.y"]`, `service.extensions[0]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif isinstance(step, Key) and step.hidden:
            text += "[…]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def did_you_mean(name: str, known: Iterable[str], label: str = "known") -> str:
    """The end of a message about an unknown name: the nearest name, and all that there are."""
    import difflib

    names = list(map(str, known))
    by_lower = {candidate.lower(): candidate for candidate in names}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1)
    advice = f"; did you mean {by_lower[nearest[0]]!r}?" if nearest else ";"
    listed = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
    return f"{advice} {label}: {listed or 'none'}"
