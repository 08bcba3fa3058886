"""Component ids follow the Collector's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ComponentId


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("otlp", ("otlp", "")),
        ("otlp/edge", ("otlp", "edge")),
        (" otlp / edge ", ("otlp", "edge")),
        ("otlp/a/b", ("otlp", "a/b")),
        ("otlp/ümlaut-1.x", ("otlp", "ümlaut-1.x")),
        ("o" * 63, ("o" * 63, "")),
    ],
)
def test_ids_have_a_type_and_a_name(text, parts):
    """Blanks around both parts are trimmed."""
    assert ComponentId.parse(text) == parts


@pytest.mark.parametrize(
    "text",
    ["", "/a", "otlp/", "otlp/ ", "1otlp", "ot-lp", "otlp/a b", "otlp/a$", "otlp/\0", "o" * 64, "o/" + "a" * 1025],
)
def test_what_is_no_id_is_refused_with_what_would_be_right(text):
    """The message shows a right form."""
    with pytest.raises(ValueError, match=r"write `\w+` or `\w+/name`"):
        ComponentId.parse(text)


@given(st.text())
def test_ids_read_back(text):
    """The text of an id is that id."""
    try:
        name = ComponentId.parse(text)
    except ValueError:
        return
    assert ComponentId.parse(str(name)) == name
