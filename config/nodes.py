"""YAML text as a tree in which every key and value remembers where it was written."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from config.problems import Key, Path, Place, Problem

# The deepest document of a Collector user has about 12 levels. The walk over a tree is recursive.
MAX_DEPTH: Final = 100
# Aliases of aliases grow exponentially ("billion laughs"); no written document comes near this.
MAX_NODES: Final = 100_000

BROKEN: Final = object()  # the value of a node about which a problem has been reported already

_STR: Final = "tag:yaml.org,2002:str"
_NULL: Final = "tag:yaml.org,2002:null"
_BOOL: Final = "tag:yaml.org,2002:bool"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_MERGE: Final = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """A value of a document.

    Attributes:
        value: None, bool, int, float or str as YAML reads it; `list[Node]`; `dict[Key, Node]`; or BROKEN.
        place: where it was written; for a substituted value, where its `${` is.
        lead: how many characters stand between `place` and the text of a scalar; None when escapes or several lines
            leave that unknown.
        text: what a text field gets, when that differs from `value`: the original text of a substituted value.
        origins: what was substituted from outside, `(reference, text)`. Such texts are never shown.
        note: more about the value, for problems.
    """

    value: Any
    place: Place
    lead: int | None = None
    text: str | None = None
    origins: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def __repr__(self) -> str:
        return f"<{kind_of(self.value)} at {self.place}>"

    def shown(self) -> str:
        """The value for a message, or its type when it came from outside."""
        kind = kind_of(self.value)
        if self.origins:
            return f"{kind} (from {self.origin()})"
        if isinstance(self.value, list | dict) or self.value is None:
            return kind
        text = repr(self.value) if isinstance(self.value, str) else str(self.value).lower()
        return text if len(text) <= 80 else text[:77] + "…'"

    def origin(self) -> str:
        """The references from which the value came."""
        return ", ".join(dict.fromkeys(reference for reference, _ in self.origins))

    def at(self, path: Path) -> tuple[Node, int]:
        """The deepest node on a path, and how many steps of the path lead to it."""
        node = self
        for done, step in enumerate(path):
            parts = node.value if isinstance(node.value, dict) else {}
            if isinstance(node.value, list):
                parts = dict(enumerate(node.value))
            if step not in parts:
                return node, done
            node = parts[step]
        return node, len(path)

    def walk(self) -> Iterator[Node]:
        """This node and everything below."""
        yield self
        if isinstance(self.value, list | dict):
            for child in self.value.values() if isinstance(self.value, dict) else self.value:
                yield from child.walk()

    def plain(self) -> Any:
        """The value with its tree as plain lists and dicts."""
        if isinstance(self.value, dict):
            return {str(key): child.plain() for key, child in self.value.items()}
        return [child.plain() for child in self.value] if isinstance(self.value, list) else self.value


def kind_of(value: object) -> str:
    """The type of a document's value in plain words."""
    words = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a map"}
    return words.get(type(value), "nothing")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads plain scalars as the Collector's YAML library does: only `true` and `false` are booleans, for example."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (as the base has it)


_Loader.add_implicit_resolver(_NULL, re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))
_Loader.add_implicit_resolver(
    _INT,
    re.compile(r"[-+]?(?:0[bB][01][01_]*|0[oO]?[0-7][0-7_]*|0[xX][0-9a-fA-F][0-9a-fA-F_]*|0|[1-9][0-9_]*)\Z"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"[-+]?(?:(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))\Z|\.(?:nan|NaN|NAN)\Z"
    ),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(_MERGE, re.compile(r"<<\Z"), ["<"])


def parse(text: str, file: str, problems: list[Problem]) -> Node:
    """Read YAML. An empty text is None; what can't be read is BROKEN, and said in `problems`."""
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        problems.append(_syntax_problem(error, text, file))
        return Node(BROKEN, Place(file))
    except UnicodeEncodeError:
        problems.append(Problem(Place(file), (), "is not UTF-8 text; save it as UTF-8"))
        return Node(BROKEN, Place(file))
    finally:
        if loader is not None:
            loader.dispose()
    return Node(None, Place(file)) if root is None else _Builder(file, problems).node(root, ())


def reads_as_text(text: str) -> bool:
    """Whether a plain scalar is a text to the reader."""
    resolvers = _Loader.yaml_implicit_resolvers.get(text[:1], [])
    return not any(pattern.match(text) for _, pattern in resolvers)


def _syntax_problem(error: yaml.YAMLError, text: str, file: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line, column = error.problem_mark.line, error.problem_mark.column
        before = "".join(text.split("\n")[line : line + 1])[: column + 1]
        if before.lstrip(" ").startswith("\t"):
            message = "a tab can't be used to indent YAML; use spaces"
        elif "another document" in str(error.problem):
            message = "a second document starts here; give each document its own file and its own --config"
        else:
            message = f"not valid YAML: {error.problem}"
            if error.context_mark and " a " in str(error.context):
                message += f" ({error.context} that begins on line {error.context_mark.line + 1})"
        return Problem(Place(file, line + 1, column + 1), (), message)
    # The reader's errors (control characters) have an offset instead of a mark.
    before = text[: getattr(error, "position", 0)]
    place = Place(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
    return Problem(place, (), f"not valid YAML: {getattr(error, 'reason', error)}")


class _Builder:
    """Turns PyYAML's nodes into ours: merge keys applied, duplicates reported, size and depth bounded.

    An alias is the same node again, so each is built once, and its size and height are known when it recurs.
    """

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems
        self.built: dict[yaml.Node, Node] = {}
        self.sizes: dict[int, tuple[int, int]] = {}
        self.open: set[yaml.Node] = set()

    def node(self, source: yaml.Node, path: Path) -> Node:
        if source in self.built:
            return self.built[source]
        place = self.place(source)
        if source in self.open:
            return self.broken(place, path, "this alias contains itself; aliases must not form a circle")
        if len(self.open) >= MAX_DEPTH:
            return self.broken(place, path, f"nested more than {MAX_DEPTH} levels deep")
        self.open.add(source)
        built = self.bounded(self.build(source, place, path), path)
        self.open.remove(source)
        self.built[source] = built
        return built

    def build(self, source: yaml.Node, place: Place, path: Path) -> Node:
        if isinstance(source, yaml.ScalarNode):
            return self.scalar(source, place, path)
        if source.tag not in {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            return self.broken(place, path, f"the tag {source.tag!r} has no meaning here; leave it out")
        if isinstance(source, yaml.SequenceNode):
            return Node([self.node(item, (*path, index)) for index, item in enumerate(source.value)], place)
        return Node(self.entries(typing.cast("yaml.MappingNode", source), path), place)

    def entries(self, source: yaml.MappingNode, path: Path) -> dict[Key, Node]:
        own: dict[Key, Node] = {}
        merged: dict[Key, Node] = {}
        for key_source, value_source in source.value:
            place = self.place(key_source)
            if not isinstance(key_source, yaml.ScalarNode):
                self.broken(place, path, "a key must be a text, not a list or a map")
            elif key_source.tag == _MERGE:
                self.merge(value_source, path, merged)
            else:
                key = Key(key_source.value, place)
                if key in own:
                    first = next(known.place for known in own if known == key)
                    self.broken(place, (*path, key), f"this key is written twice; first on line {first.line}")
                own[key] = self.node(value_source, (*path, key))
        return {**{key: value for key, value in merged.items() if key not in own}, **own}

    def merge(self, source: yaml.Node, path: Path, merged: dict[Key, Node]) -> None:
        # Of several merged maps, the earlier ones win (https://yaml.org/type/merge.html).
        for part in source.value if isinstance(source, yaml.SequenceNode) else [source]:
            node = self.node(part, (*path, "<<"))
            if isinstance(node.value, dict):
                merged.update({key: value for key, value in node.value.items() if key not in merged})
            elif node.value is not BROKEN:
                self.broken(self.place(part), (*path, "<<"), "only a map, or a list of maps, can be merged")

    def scalar(self, source: yaml.ScalarNode, place: Place, path: Path) -> Node:
        lead = _lead(source)
        try:
            value = _scalar_value(source.tag, source.value)
        except ValueError:
            return self.broken(place, path, f"the tag {source.tag!r} does not fit here; leave it out")
        return Node(value, place, lead)

    def bounded(self, node: Node, path: Path) -> Node:
        children: list[Node] = []
        if isinstance(node.value, list | dict):
            children = list(node.value.values()) if isinstance(node.value, dict) else node.value
        sizes = [self.sizes.get(id(child), (1, 1)) for child in children]
        size = 1 + sum(size for size, _ in sizes)
        height = 1 + max((height for _, height in sizes), default=0)
        if size > MAX_NODES:
            node = self.broken(node.place, path, f"its aliases expand to more than {MAX_NODES} values")
        elif height > MAX_DEPTH:
            node = self.broken(node.place, path, f"nested more than {MAX_DEPTH} levels deep")
        else:
            self.sizes[id(node)] = size, height
        return node

    def broken(self, place: Place, path: Path, message: str) -> Node:
        self.problems.append(Problem(place, path, message))
        return Node(BROKEN, place)

    def place(self, source: yaml.Node) -> Place:
        return Place(self.file, source.start_mark.line + 1, source.start_mark.column + 1)


def _lead(source: yaml.ScalarNode) -> int | None:
    quotes = 1 if source.style in {"'", '"'} else 0
    start, end = source.start_mark, source.end_mark
    verbatim = start.line == end.line and end.column - start.column == len(source.value) + 2 * quotes
    return quotes if verbatim else None


def _scalar_value(tag: str, text: str) -> Any:
    if tag == _NULL:
        return None
    if tag == _BOOL:
        return {"true": True, "false": False}.get(text.lower(), text)
    if tag == _INT:
        return _integer(text)
    if tag == _FLOAT:
        return _float(text)
    if tag in {_STR, "!", _MERGE}:
        return text
    raise ValueError


def _integer(text: str) -> int | float | str:
    digits = text.replace("_", "").lower()
    if len(digits) > 64:  # no 64-bit number is longer in any base; Python refuses very long ones
        return _float(text)
    sign, plain = (-1, digits[1:]) if digits[:1] == "-" else (1, digits.removeprefix("+"))
    if plain[:2] in {"0x", "0o", "0b"}:
        return sign * int(plain, 0)
    return sign * int(plain, 8 if plain[:1] == "0" else 10)


def _float(text: str) -> float | str:
    plain = text.replace("_", "").lower()
    number = float(plain.replace(".inf", "inf").replace(".nan", "nan"))
    # A number too large for a float is a text for the Collector's YAML library.
    return text if math.isinf(number) and "inf" not in plain else number
