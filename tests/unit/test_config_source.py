"""Several sources become one tree by the Collector's rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError
from config.document import load
from config.nodes import Node
from config.problems import Key, Place
from config.source import merge, read

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner)
)
MAPS = st.dictionaries(st.sampled_from("abc"), TREES)
LEVEL = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("abc"), SCALARS))


def tree(value, file="f"):
    """A node for a plain value."""
    if isinstance(value, dict):
        return Node({Key(key, Place(file)): tree(part, file) for key, part in value.items()}, Place(file))
    if isinstance(value, list):
        return Node([tree(part, file) for part in value], Place(file))
    return Node(value, Place(file))


def merged(*values):
    """What plain values merge to."""
    result = tree({})
    for value in values:
        result = merge(result, tree(value))
    return result.plain()


def files(tmp_path, *texts):
    """Files with these texts."""
    paths = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        paths.append(str(path))
    return paths


def test_maps_merge_and_all_else_is_replaced():
    """Maps merge deeply; scalars, lists and null replace."""
    old = {"map": {"a": 1, "b": {"c": 1}}, "list": [1, 2], "scalar": 1, "wiped": {"a": 1}, "kept": 1}
    new = {"map": {"b": {"d": 2}}, "list": [3], "scalar": 2, "wiped": None, "new": 1}
    assert merged(old, new) == {
        "map": {"a": 1, "b": {"c": 1, "d": 2}},
        "list": [3],
        "scalar": 2,
        "wiped": None,
        "kept": 1,
        "new": 1,
    }


@given(MAPS)
def test_merging_with_nothing_or_itself_changes_nothing(value):
    """The empty map is neutral, and merging is idempotent."""
    assert merged(value) == merged(value, {}) == merged({}, value) == merged(value, value) == value


@given(LEVEL, LEVEL, LEVEL)
def test_merging_is_associative(one, two, three):
    """Where maps meet maps, it does not matter which of three neighbours merge first."""
    left = merge(merge(tree(one), tree(two)), tree(three))
    right = merge(tree(one), merge(tree(two), tree(three)))
    assert left.plain() == right.plain()


@given(MAPS, MAPS)
def test_the_newer_value_is_found_in_the_merged_tree(old, new):
    """Whatever the newer source says that is not a map is what holds."""
    result = merged(old, new)
    for key, value in new.items():
        assert isinstance(value, dict) or result[key] == value


def test_every_part_remembers_its_file(tmp_path):
    """After a merge each value is at its place in the file that it came from."""
    one, two = files(tmp_path, "a: {x: 1, y: 1}\n", "\na: {y: 2}\n")
    root, problems = read([one, two])
    assert problems == []
    assert root.at(("a", "x"))[0].place == Place(one, 1, 8)
    assert root.at(("a", "y"))[0].place == Place(two, 2, 8)


def test_substitution_comes_after_merging(tmp_path):
    """A reference that a later file replaces is never looked up."""
    root, problems = read(files(tmp_path, "a: ${env:UNSET}", "a: 1"), {})
    assert (root.plain(), problems) == ({"a": 1}, [])


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("yaml:a::b: 1", {"a": {"b": 1}}),
        ("yaml:a::b: {c: 1}", {"a": {"b": {"c": 1}}}),
        ("yaml:{a::b: 1, a::c: 2}", {"a": {"b": 1, "c": 2}}),
        ("yaml:", {}),
        ("env:DOCUMENT", {"a": {"b": 2}}),
    ],
)
def test_sources_need_not_be_files(source, value):
    """Inline overrides nest keys at `::`, and a variable may hold a document."""
    assert read([source], {"DOCUMENT": "a: {b: 2}"})[0].plain() == value


def test_file_sources(tmp_path):
    """A source without a scheme is a file; `file:` says the same."""
    (path,) = files(tmp_path, "a: 1")
    assert read([path])[0] == read([f"file:{path}"])[0]


def test_byte_order_marks_are_no_part_of_the_text(tmp_path):
    """A file saved by a Windows editor is read."""
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read([str(path)])[0].plain() == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("/no/such.yaml", "/no/such.yaml:1:1: can't be read: No such file or directory"),
        (
            "yaml:[1]",
            "<command line>:1:1: a document is a map of sections (receivers, exporters, service …), not a list",
        ),
        ("yaml:a: b: c", "<command line>:1:5: not valid YAML: mapping values are not allowed in this context"),
        ("env:NO", "env:NO:1:1: is not set; it should hold a document"),
        (
            "preset:defualt",
            "preset:defualt:1:1: no preset 'defualt'; did you mean 'default'? presets: datadog, datadog-agent, default",
        ),
        ("https://x/y.yaml", "https://x/y.yaml:1:1: documents are not fetched over the network; download it and give"),
    ],
)
def test_unusable_sources_are_problems(source, problem):
    """A source that can't be read or is not a map ends the reading, with the reason."""
    with pytest.raises(ConfigError) as raised:
        read([source], {})
    assert str(raised.value).startswith(problem)


def test_the_problems_of_all_sources_are_reported_together(tmp_path):
    """Two unreadable files are two problems."""
    paths = files(tmp_path, "a: [", "- b")
    with pytest.raises(ConfigError) as raised:
        read(paths)
    assert len(raised.value.problems) == 2


def test_a_file_that_is_not_text_is_a_problem(tmp_path):
    """The line with the first bad byte is named."""
    path = tmp_path / "latin1.yaml"
    path.write_bytes("a: 1\nb: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(line 2\); save it as UTF-8"):
        read([str(path)])


def test_values_of_a_document_in_a_variable_are_not_shown():
    """A whole document from the environment is treated like any other value from there."""
    root, _ = read(["env:D"], {"D": "{a: hunter2, b: '${env:NO:-hunter2}'}"})
    assert root.at(("a",))[0].shown() == "a text (from ${env:D})"
    assert "hunter2" not in root.at(("b",))[0].shown()


def test_the_examples_of_the_documentation_are_documents():
    """Each YAML block of docs/configuration.md is read without a problem."""
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert load([f"yaml:{block}"]).problems == ()
