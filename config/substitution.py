"""`${env:X:-default}`, `${file:path}`, `${yaml:text}` and `$$`, with the Collector's typing rules.

A reference that is the whole value keeps both its text and what YAML reads in it: the field decides. Inside a longer
text, its text is pasted in. Substituted text is never looked at again, whatever it contains: a secret with `$` in it
arrives as it is. Only a file that holds a map or a list counts as a part of the document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Final, TypeAlias

from config.nodes import BROKEN, Node, parse
from config.problems import Key, Path, Place, Problem, did_you_mean

MAX_EXPANSIONS: Final = 1000  # in one document, as in the Collector
MAX_NESTING: Final = 16  # of references and of files; three are unusual, and each level costs stack
MAX_FILE_BYTES: Final = 16 * 2**20  # a document or a secret has kilobytes; a device file never ends

_SCHEMES: Final = ("env", "file", "yaml")
_TOKEN: Final = re.compile(r"\$\$|\$\{|[{}]")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?::-.*)?", re.DOTALL)

Origins: TypeAlias = tuple[tuple[str, str], ...]


class UnreadableError(Exception):
    """A reference or a file that can't be read: what is wrong and what would be right."""


@dataclass(slots=True)
class _Reference:
    """`${…}` in a text: where it is, and what stands between its braces."""

    start: int
    end: int = 0
    parts: list[str | _Reference] = field(default_factory=list)
    braces: int = 0


@dataclass(frozen=True, slots=True)
class _Found:
    """What a reference stands for: its text (None: not set), and the parts of it that came from outside."""

    text: str | None
    origins: Origins = ()
    file: str = ""


class Substitution:
    """Replaces the references of one tree. `problems` gets what is wrong with them."""

    def __init__(self, environ: Mapping[str, str], problems: list[Problem]) -> None:
        self.environ = environ
        self.problems = problems
        self.expansions = 0
        self.depth = 0
        self.done: dict[int, tuple[Node, Node]] = {}

    def node(self, node: Node, path: Path) -> Node:
        """The tree with everything in it substituted."""
        known = self.done.get(id(node))  # an alias: once is enough, also for its problems
        if known is not None:
            return known[1]
        result = node
        if isinstance(node.value, dict):
            result = replace(node, value={key: self.node(child, (*path, key)) for key, child in node.value.items()})
        elif isinstance(node.value, list):
            result = replace(node, value=[self.node(child, (*path, at)) for at, child in enumerate(node.value)])
        elif isinstance(node.value, str) and "$" in node.value:
            result = self._text(node, node.value, path)
        self.done[id(node)] = node, result
        return result

    def _text(self, node: Node, text: str, path: Path) -> Node:
        place = node.place
        try:
            parts = split(text)
            whole = parts[0] if len(parts) == 1 else None
            if isinstance(whole, _Reference):
                place = _inside(node, whole.start)
                found = self._find(whole, text, node, path)
                return self._whole(replace(found, origins=node.origins + found.origins), place, path)
            pasted, origins = self._paste(parts, text, node, path)
            return replace(node, value=pasted, origins=node.origins + origins)
        except UnreadableError as error:
            self.problems.append(Problem(place, path, str(error)))
            return Node(BROKEN, place)

    def _paste(self, parts: list[str | _Reference], text: str, node: Node, path: Path) -> tuple[str, Origins]:
        pasted = ""
        origins: Origins = ()
        for part in parts:
            if isinstance(part, str):
                pasted += part
            else:
                found = self._find(part, text, node, path)
                pasted += found.text or ""
                origins += found.origins
        return pasted, origins

    def _whole(self, found: _Found, place: Place, path: Path) -> Node:
        if found.text is None:
            return Node(None, place, origins=found.origins)
        problems: list[Problem] = []
        read = parse(found.text, found.file or place.file, problems)
        note = ""
        if read.value is BROKEN or problems:
            note = f"; its content is not usable as YAML: see its line {problems[0].place.line}"
            read = Node(found.text, place)
        if found.file and isinstance(read.value, dict | list):
            return replace(self._part(came_from(read, found.origins), path), text=found.text)
        value = found.text if isinstance(read.value, str) else came_from(read, found.origins, place).value
        return Node(value, place, text=found.text, origins=found.origins, note=note)

    def _part(self, node: Node, path: Path) -> Node:
        """A file's map or list: a part of the document, with places and references of its own."""
        if self.depth >= MAX_NESTING:
            raise UnreadableError(f"more than {MAX_NESTING} files inside one another; do they form a circle?")
        self.depth += 1
        try:
            return self.node(node, path)
        finally:
            self.depth -= 1

    def _find(self, reference: _Reference, text: str, node: Node, path: Path) -> _Found:
        self.expansions += 1
        if self.expansions > MAX_EXPANSIONS:
            raise UnreadableError(f"the document has more than {MAX_EXPANSIONS} substitutions; do files form a circle?")
        written = text[reference.start : reference.end]
        content, inner = self._paste(reference.parts, text, node, path)
        place = _inside(node, reference.start)
        match = _SCHEME.fullmatch(content)
        scheme, value = (match[1], match[2]) if match else ("", content)
        if scheme == "env":
            return self._env(value, written, inner, place, path)
        if scheme == "yaml":
            return _Found(value, inner)
        if scheme == "file":
            try:
                content = without_newline(read_file(value))
            except UnreadableError as error:
                raise UnreadableError(f"{written} {error}") from None
            return _Found(content, ((written, content), *inner), value)
        if _BARE.fullmatch(content):
            better = "${env:" + text[reference.start + 2 : reference.end]
            self._warn(place, path, f"{written} is a deprecated spelling; write {better}")
            return self._env(content, written, inner, place, path)
        raise UnreadableError(_unknown(written, "" if inner else scheme))

    def _env(self, value: str, written: str, inner: Origins, place: Place, path: Path) -> _Found:
        name, has_default, default = value.partition(":-")
        if not _NAME.fullmatch(name):
            raise UnreadableError(
                f"{written} does not name an environment variable; write for example ${{env:DD_SITE}}"
            )
        text = self.environ.get(name)
        if text is not None:
            return _Found(text, ((written, text), *inner))
        if has_default:
            return _Found(default, inner)
        right = "${env:" + written[2:-1].removeprefix("env:") + ":-default}"
        self._warn(place, path, f"{written} is not set and counts as null; set it, or write {right}")
        return _Found(None, ((written, ""), *inner))

    def _warn(self, place: Place, path: Path, message: str) -> None:
        self.problems.append(Problem(place, path, message, "warning"))


def split(text: str) -> list[str | _Reference]:
    """A text as its literal parts and its references; `$$` is a literal `$`, and braces inside a reference balance.

    Raises:
        UnreadableError: a reference that is never closed.
    """
    stack = [_Reference(0)]
    position = 0
    for token in _TOKEN.finditer(text):
        top = stack[-1]
        top.parts.append(text[position : token.start()])
        position = token.end()
        if token[0] == "$$":
            top.parts.append("$")
        elif token[0] == "${":
            stack.append(_Reference(token.start()))
            if len(stack) > MAX_NESTING:
                raise UnreadableError(f"more than {MAX_NESTING} references inside one another")
        elif token[0] == "}" and len(stack) > 1 and top.braces == 0:
            stack.pop()
            top.end = token.end()
            top.parts = [part for part in top.parts if part != ""]
            stack[-1].parts.append(top)
        else:
            top.braces += 1 if token[0] == "{" else -1
            top.parts.append(token[0])
    if len(stack) > 1:
        raise UnreadableError("a ${ is never closed; write ${env:NAME}, or $${ for a literal ${")
    stack[0].parts.append(text[position:])
    return [part for part in stack[0].parts if part != ""]


def read_file(path: str) -> str:
    """The text of a file.

    Raises:
        UnreadableError: the end of a message, "can't be read: …".
    """
    try:
        with FilePath(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UnreadableError(f"can't be read: {error.strerror}") from None
    except ValueError:
        raise UnreadableError("can't be read: this is not a file name") from None
    if len(content) > MAX_FILE_BYTES:
        raise UnreadableError(f"is larger than {MAX_FILE_BYTES // 2**20} MiB; give a smaller file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableError(f"is not UTF-8 text (line {line}); save it as UTF-8") from None


def without_newline(text: str) -> str:
    """The text without the one line end that editors and `echo` put behind it."""
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _unknown(written: str, scheme: str) -> str:
    if scheme.lower() in {"http", "https"}:
        return "documents and values are not fetched over the network; download it and write ${file:path}"
    if scheme:
        return f"{written} has an unknown source {scheme!r}{did_you_mean(scheme, _SCHEMES)}"
    return f"{written} is not a reference; write ${{env:NAME}}, ${{file:path}} or ${{yaml:text}}, or $$ for a literal $"


def _inside(node: Node, offset: int) -> Place:
    if node.lead is None:
        return node.place
    return replace(node.place, column=node.place.column + node.lead + offset)


def came_from(node: Node, origins: Origins, place: Place | None = None) -> Node:
    """A tree that was read from outside: its values are not to be shown. With a place, all of it is there."""
    value = node.value
    if isinstance(value, dict):
        value = {
            Key(key, place or key.place, hidden=place is not None): came_from(child, origins, place)
            for key, child in value.items()
        }
    elif isinstance(value, list):
        value = [came_from(child, origins, place) for child in value]
    else:
        origins = tuple((reference, str(value)) for reference, _ in origins)
    return replace(node, value=value, place=place or node.place, lead=None if place else node.lead, origins=origins)
