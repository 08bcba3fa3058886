"""From the sources of a document (files, inline overrides, presets, an environment variable) to one tree."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from config import presets
from config.nodes import BROKEN, Node, kind_of, parse
from config.problems import ConfigError, Key, Place, Problem
from config.substitution import Substitution, UnreadableError, came_from, read_file

INLINE: Final = "<command line>"
# A letter before the colon is a drive, not a scheme.
_SCHEME: Final = re.compile(r"(file|env|yaml|preset|https?):(.*)", re.DOTALL)


def read(sources: Sequence[str], environ: Mapping[str, str] | None = None) -> tuple[Node, list[Problem]]:
    """The tree of a document: all sources merged in their order, then substituted.

    Args:
        sources: a path, `file:path`, `preset:name`, `env:NAME`, or `yaml:a::b: value` where `::` separates keys.
        environ: what `${env:…}` sees; the process's environment when None.

    Returns:
        The tree, and what is wrong with it so far. Parts with problems are left out of later checks.

    Raises:
        ConfigError: a source can't be read or is not a map, so that nothing more can be said.
    """
    environ = os.environ if environ is None else environ
    problems: list[Problem] = []
    merged, complete = Node({}, Place(INLINE)), True
    for source in sources:
        node = _read_one(source, environ, problems)
        if node.value is None:
            node = Node({}, node.place)
        if isinstance(node.value, dict):
            merged = merge(merged, node)
        elif node.value is not BROKEN:
            message = f"a document is a map of sections (receivers, exporters, service …), not {kind_of(node.value)}"
            problems.append(Problem(node.place, (), message))
            complete = False
        complete = complete and node.value is not BROKEN
    if not complete:
        raise ConfigError(problems)
    return Substitution(environ, problems).node(merged, ()), problems


def merge(old: Node, new: Node) -> Node:
    """Two trees by the Collector's rules: maps deep; a scalar, a list or null of the newer replaces what was there."""
    if not isinstance(old.value, dict) or not isinstance(new.value, dict):
        return new
    newer_keys = {key: key for key in new.value}
    value = {
        newer_keys.get(key, key): merge(node, new.value[key]) if key in new.value else node
        for key, node in old.value.items()
    }
    value.update((key, node) for key, node in new.value.items() if key not in old.value)
    return replace(old if old.value else new, value=value)


def _read_one(source: str, environ: Mapping[str, str], problems: list[Problem]) -> Node:
    match = _SCHEME.fullmatch(source)
    scheme, rest = (match[1], match[2]) if match else ("file", source)
    try:
        if scheme == "file":
            return parse(read_file(rest), rest, problems)
        if scheme == "preset":
            return parse(presets.text(rest), source, problems)
        if scheme == "yaml":
            return _inline(parse(rest, INLINE, problems))
        if scheme == "env":
            text = environ.get(rest)
            if text is None:
                raise UnreadableError("is not set; it should hold a document")
            return came_from(parse(text, source, problems), ((f"${{{source}}}", text),))
        raise UnreadableError("documents are not fetched over the network; download it and give the file")
    except (UnreadableError, LookupError) as error:
        problems.append(Problem(Place(rest if scheme == "file" else source), (), str(error.args[0])))
        return Node(BROKEN, Place(source))


def _inline(node: Node) -> Node:
    """`a::b: v` as nested maps."""
    if not isinstance(node.value, dict):
        return node
    merged = Node({}, node.place)
    for key, child in node.value.items():
        nested = child
        for step in reversed(key.split("::")):
            nested = Node({Key(step, key.place): nested}, key.place)
        merged = merge(merged, nested)
    return merged
