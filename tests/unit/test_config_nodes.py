"""YAML is read as the Collector reads it, and every part knows where it was written."""

from __future__ import annotations

import pytest

from config.nodes import BROKEN, Node, parse, reads_as_text
from config.problems import Place


def read(text):
    """A tree that must be free of problems."""
    problems = []
    node = parse(text, "f.yaml", problems)
    assert problems == []
    return node


def complaints(text):
    """What is wrong with a text, as printed."""
    problems = []
    parse(text, "f.yaml", problems)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("on", "on"),
        ("y", "y"),
        ("12", 12),
        ("-12", -12),
        ("+12", 12),
        ("0123", 83),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b101", 5),
        ("1_000", 1000),
        ("089", 89.0),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1e999", "1e999"),
        ("1:30", "1:30"),
        ("2001-12-14", "2001-12-14"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("0x", "0x"),
        ("._", "._"),
        ("9" * 5000, "9" * 5000),
        ("a $ b", "a $ b"),
    ],
)
def test_scalars_have_the_types_of_the_collectors_yaml_library(text, value):
    """Plain scalars are typed by YAML 1.2's rules and Go's number forms, not by YAML 1.1's."""
    read_value = read(f"k: {text}").at(("k",))[0].value
    assert (read_value, type(read_value)) == (value, type(value))


def test_infinite_numbers():
    """`.inf` is the one way to write an infinite number."""
    assert read("k: -.inf").at(("k",))[0].value == float("-inf")


def test_everything_has_a_place():
    """Keys and values know file, line and column."""
    node = read("a:\n  b: [1,\n    two]\n")
    inner = node.at(("a", "b", 1))[0]
    assert inner.place == Place("f.yaml", 3, 5)
    assert next(iter(node.value)).place == Place("f.yaml", 1, 1)
    assert next(iter(node.at(("a",))[0].value)).place == Place("f.yaml", 2, 3)


def test_anchors_aliases_and_merge_keys_work():
    """A map's own keys win over merged ones, and earlier merged maps over later ones."""
    node = read(
        """
base: &base {a: 1, b: 1}
other: &other {b: 2, c: 2}
both: {<<: [*base, *other], a: 0}
again: *base
"""
    )
    assert node.at(("both",))[0].plain() == {"b": 1, "c": 2, "a": 0}
    assert node.at(("again",))[0].plain() == {"a": 1, "b": 1}


def test_a_quoted_merge_key_is_an_ordinary_key():
    """Only the plain `<<` merges."""
    assert read("'<<': {a: 1}").plain() == {"<<": {"a": 1}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:\n\tb: 1", "f.yaml:2:1: a tab can't be used to indent YAML; use spaces"),
        ("a:\n  \tb: 1\n  c: 2", "f.yaml:2:3: a tab can't be used to indent YAML; use spaces"),
        ("a: 1\nb: 2\na: 3", "f.yaml:3:1: a: this key is written twice; first on line 1"),
        ("a: b: c", "f.yaml:1:5: not valid YAML: mapping values are not allowed in this context"),
        (
            "a: 1\n---\nb: 2",
            "f.yaml:2:1: a second document starts here; give each document its own file and its own --config",
        ),
        ("a: *x", "f.yaml:1:4: not valid YAML: found undefined alias"),
        (
            "a:\n  'x",
            "f.yaml:2:5: not valid YAML: found unexpected end of stream (while scanning a quoted scalar",
        ),
        ("a:\n  b: \x01", "f.yaml:2:6: not valid YAML: control characters are not allowed"),
        ("a: !secret x", "f.yaml:1:4: a: the tag '!secret' does not fit here; leave it out"),
        ("a: !!int x", "f.yaml:1:4: a: the tag 'tag:yaml.org,2002:int' does not fit here; leave it out"),
        ("a: !map {b: 1}", "f.yaml:1:4: a: the tag '!map' has no meaning here; leave it out"),
        ("? [a]\n: 1", "f.yaml:1:3: a key must be a text, not a list or a map"),
        ("a: {<<: 1}", 'f.yaml:1:9: a["<<"]: only a map, or a list of maps, can be merged'),
        ("a: &a [*a]", "f.yaml:1:4: a[0]: this alias contains itself; aliases must not form a circle"),
        ("a: '\ud800'", "f.yaml:1:1: is not UTF-8 text; save it as UTF-8"),
    ],
)
def test_bad_yaml_is_a_problem_at_its_place(text, expected):
    """Each mistake is said once, where it is, with what would be right."""
    (found,) = complaints(text)
    assert found.startswith(expected)


def test_a_text_with_several_mistakes_has_several_problems():
    """Duplicates and tags do not hide each other."""
    assert len(complaints("a: 1\na: 2\nb: !x y\nc: {d: 1, d: 2}")) == 3


def test_billion_laughs_are_refused():
    """Aliases of aliases are bounded by what they expand to."""
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10))
    found = complaints(f"l0: &l0 x\n{levels}")
    assert any("its aliases expand to more than 100000 values" in text for text in found)
    assert len(found) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[" * 150 + "]" * 150,
        "[" * 100_000,
        "- " * 5000 + "x",
        "l0: &l0 x\n" + "\n".join(f"l{n}: &l{n} [*l{n - 1}]" for n in range(1, 3000)),
    ],
)
def test_deep_documents_are_refused(text):
    """Depth is bounded, whether written or made of aliases."""
    assert len(complaints(text)) >= 1


def test_broken_parts_leave_the_rest_readable():
    """A part with a problem is marked, and its neighbours are read."""
    problems = []
    node = parse("a: !x y\nb: 2", "f.yaml", problems)
    assert node.at(("a",))[0].value is BROKEN
    assert node.at(("b",))[0].value == 2


def test_at_goes_as_deep_as_the_tree_does():
    """A path into nowhere ends at the last node that is there."""
    node = read("a: {b: text}")
    assert node.at(("a", "b", 0, "c")) == (node.at(("a", "b"))[0], 2)
    assert node.at((5,)) == (node, 0)


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        (Node("x", Place("f")), "'x'"),
        (Node(True, Place("f")), "true"),
        (Node("x" * 100, Place("f")), "'" + "x" * 76 + "…'"),
        (Node({}, Place("f")), "a map"),
        (Node(None, Place("f")), "nothing"),
        (Node("x", Place("f"), origins=(("${env:A}", "x"),)), "a text (from ${env:A})"),
    ],
)
def test_values_are_shown_unless_they_came_from_outside(node, shown):
    """A message shows what the document holds, and only the type of what it refers to."""
    assert node.shown() == shown


@pytest.mark.parametrize(("text", "is_text"), [("abc", True), ("", False), ("0o7", False), ("yes", True), ("~", False)])
def test_reads_as_text(text, is_text):
    """What would be read as something else is known, so that it can be quoted."""
    assert reads_as_text(text) is is_text


def test_trees_do_not_show_their_values():
    """A tree that gets into a log shows where it is, not what it holds."""
    assert repr(read("a: hunter2").at(("a",))[0]) == "<a text at f.yaml:1:4>"
