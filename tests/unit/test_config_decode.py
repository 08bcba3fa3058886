"""A tree becomes typed settings, or a list of everything that is wrong with it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import (
    ComponentId,
    ConfigError,
    Duration,
    Endpoint,
    Ignored,
    Rate,
    Ratio,
    Secret,
    SettingError,
    Settings,
    Size,
    Url,
)
from config.decode import settings_from_yaml


class Mode(Enum):
    """How."""

    FAST = "fast"
    SLOW = "slow"


class Tls(Settings):
    """How to encrypt."""

    insecure: bool = False
    ca: str | None = None


class Override(Settings):
    """One exception."""

    match: str
    rate: Rate = Rate("1/s")


class Limits(Settings):
    """Two numbers, of which the second is the larger."""

    low: int = 1
    high: int = 2

    def __post_init__(self):
        if self.low > self.high:
            raise SettingError(f"low {self.low} is above high {self.high}", "low")


class Base(Settings):
    """Fields that others derive from."""

    timeout: Duration = Duration("5s")


class Sample(Base):
    """One field of each type."""

    endpoint: Endpoint
    text: str = ""
    whole: int = 0
    number: float = 0.0
    flag: bool = False
    size: Size = Size(0)
    ratio: Ratio = Ratio(0)
    rate: Rate = Rate(1)
    url: Url | None = None
    secret: Secret = Secret()
    name: ComponentId | None = None
    choice: Literal["none", "basic"] = "none"
    version: Literal["1.2", "1.3"] = "1.2"
    mode: Mode = Mode.FAST
    tls: Tls | None = None
    limits: Limits = Limits()
    overrides: tuple[Override, ...] = ()
    sections: dict[str, Tls] = msgspec.field(default_factory=dict)
    headers: dict[str, Secret] = msgspec.field(default_factory=dict)
    names: tuple[str, ...] = ("default",)
    pair: tuple[str, int] | None = None
    either: bool | tuple[str, ...] = False
    auto: Size | Literal["auto"] = "auto"
    anything: Any = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 1
    wait: Annotated[Duration, msgspec.Meta(gt=0)] | None = None
    short: Annotated[str, msgspec.Meta(max_length=3)] = ""
    tens: Annotated[int, msgspec.Meta(multiple_of=10)] = 10
    word: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")] = "a"
    old: Ignored = None
    in_: str = msgspec.field(default="", name="in")


class Picky(Settings):
    """Refuses its defaults."""

    key: str = ""

    def __post_init__(self):
        raise SettingError("names nothing; write a key", "key")


class Outer(Settings):
    """Holds a section that refuses its defaults."""

    picky: Picky | None = None


def sample(text):
    """The sample's settings from a text that names no endpoint."""
    return settings_from_yaml(f"endpoint: ':1'\n{text}", Sample)


def problems(text):
    """What is wrong with a text, without the name of the file."""
    with pytest.raises(ConfigError) as raised:
        sample(text)
    return [str(problem).removeprefix("<text>:") for problem in raised.value.problems]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("text: abc", "text", "abc"),
        ("text: yes", "text", "yes"),
        ("whole: 0x10", "whole", 16),
        ("whole: 1e3", "whole", 1000),
        ("number: 1", "number", 1.0),
        ("flag: true", "flag", True),
        ("timeout: 1m30s", "timeout", Duration(90)),
        ("timeout: 0", "timeout", Duration(0)),
        ("size: 1024", "size", Size(1024)),
        ("size: 1KiB", "size", Size(1024)),
        ("ratio: 0.5", "ratio", Ratio(0.5)),
        ("ratio: 1", "ratio", Ratio(1)),
        ("ratio: 50%", "ratio", Ratio(0.5)),
        ("rate: 60/m", "rate", Rate(1)),
        ("url: http://h", "url", Url("http://h")),
        ("secret: s", "secret", Secret("s")),
        ("name: otlp/a", "name", ComponentId("otlp", "a")),
        ("choice: BASIC", "choice", "basic"),
        ("version: '1.3'", "version", "1.3"),
        ("mode: slow", "mode", Mode.SLOW),
        ("tls:", "tls", Tls()),
        ("tls: {}", "tls", Tls()),
        ("tls: {enabled: true, insecure: true}", "tls", Tls(insecure=True)),
        ("tls: {enabled: false}", "tls", None),
        ("limits:", "limits", Limits()),
        (
            "overrides: [{match: a}, {match: b, rate: 2/s}]",
            "overrides",
            (Override(match="a"), Override(match="b", rate=Rate(2))),
        ),
        ("sections: {a: , b: {ca: x}}", "sections", {"a": Tls(), "b": Tls(ca="x")}),
        ("headers: {a: b, c: }", "headers", {"a": Secret("b")}),
        ("names: []", "names", ()),
        ("names:", "names", ("default",)),
        ("pair: [a, 1]", "pair", ("a", 1)),
        ("either: true", "either", True),
        ("either: [a]", "either", ("a",)),
        ("auto: auto", "auto", "auto"),
        ("auto: 1KiB", "auto", Size(1024)),
        ("anything: {a: [1, x]}", "anything", {"a": [1, "x"]}),
        ("wait: 1s", "wait", Duration(1)),
        ("wait:", "wait", None),
        ("in: x", "in_", "x"),
        ("text:", "text", ""),
        ("old: [1]", "old", None),
    ],
)
def test_values_of_each_type(text, field, value):
    """A value of the field's type arrives as that type."""
    made = getattr(sample(text), field)
    assert (made, type(made)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("text: 123", '2:7: text: 123 where a text is expected; put it in quotes: "123"'),
        ("text: true", '2:7: text: true where a text is expected; put it in quotes: "true"'),
        ("text: [a]", "2:7: text: a list where a text is expected"),
        ("whole: '12'", "2:8: whole: '12' where a whole number is expected; write it without quotes: 12"),
        ("whole: 1.5", "2:8: whole: 1.5 where a whole number is expected"),
        ("whole: true", "2:8: whole: true where a whole number is expected"),
        ("number: abc", "2:9: number: 'abc' where a number is expected"),
        ("flag: yes", "2:7: flag: 'yes' where true or false is expected"),
        ("flag: 1", "2:7: flag: 1 where true or false is expected"),
        (
            "timeout: 5",
            "2:10: timeout: 5 where a duration such as 200ms, 5s or 1m30s is expected; a bare number needs a unit: 5s",
        ),
        ("timeout: 5x", "2:10: timeout: '5x' is not a duration such as 200ms, 5s or 1m30s"),
        ("rate: 5", '2:7: rate: 5 where a rate such as 100/m, 5/s or 1000/h is expected; put it in quotes: "5"'),
        ("ratio: 2", "2:8: ratio: 2 is not a ratio such as 0.25 or 25%: it must be from 0 to 1"),
        ("secret: 123", "2:9: secret: a number where a text is expected; put it in quotes"),
        ("headers: {a: 123}", "2:14: headers.a: a number where a text is expected; put it in quotes"),
        ("headers: hunter2", "2:10: headers: a text where a map of keys is expected"),
        ("name: otlp/", "2:7: name: 'otlp/' has a slash without a usable name; write `otlp` or `otlp/name`"),
        ("choice: basci", "2:9: choice: 'basci' is not a choice; did you mean 'basic'? one of: none, basic"),
        ("version: 1.2", '2:10: version: 1.2 where one of 1.2, 1.3 is expected; put it in quotes: "1.2"'),
        ("mode: [fast]", "2:7: mode: a list where one of fast, slow is expected"),
        ("tls: true", "2:6: tls: a boolean where a map of keys is expected"),
        ("tls: {enabled: 1}", "2:16: tls.enabled: 1 where true or false is expected"),
        (
            "tls: {insecur: true}",
            "2:7: tls.insecur: unknown key 'insecur'; did you mean 'insecure'? known: ca, insecure",
        ),
        ("limits: {low: 3}", "2:15: limits.low: low 3 is above high 2"),
        ("limits: {high: 0}", "2:1: limits.low: low 1 is above high 0"),
        ("overrides: [{}]", "2:13: overrides[0].match: required; write a text"),
        ("overrides: [{match: a, rate: x}]", "2:30: overrides[0].rate: 'x' is not a rate such as 100/m, 5/s or 1000/h"),
        ("overrides: {match: a}", "2:12: overrides: a map where a list is expected"),
        ("sections: {a: 1}", "2:15: sections.a: a number where a map of keys is expected"),
        ("names: a", "2:8: names: 'a' where a list is expected; write it as a list: [a]"),
        ("names: [a, 1]", '2:12: names[1]: 1 where a text is expected; put it in quotes: "1"'),
        ("names: [a, ~]", "2:12: names[1]: nothing where a text is expected"),
        ("pair: [a]", "2:7: pair: a list of 1 where 2 values are expected"),
        ("either: 1", "2:9: either: 1 where true or false or a list is expected"),
        ("either: [1]", '2:10: either[0]: 1 where a text is expected; put it in quotes: "1"'),
        ("port: 70000", "2:7: port: 70000 is out of bounds; write at most 65535"),
        ("wait: 0", "2:7: wait: 0 is out of bounds; write more than 0s"),
        ("short: abcd", "2:8: short: 'abcd' is out of bounds; its length must be at most 3"),
        ("tens: 15", "2:7: tens: 15 is out of bounds; write a multiple of 10"),
        ("word: A", "2:7: word: 'A' is out of bounds; it must match ^[a-z]+$"),
        ("in_: x", "2:1: in_: unknown key 'in_'; did you mean 'in'?"),
    ],
)
def test_values_of_another_type_are_problems(text, problem):
    """A value that does not fit is said at its place, with what would be right."""
    (found,) = problems(text)
    assert found.startswith(problem)


def test_all_problems_are_found_at_once():
    """Nothing hides behind the first problem."""
    assert len(problems("text: 1\nwhole: x\ntls: {insecure: 2, b: 3}\noverrides: [{}, {match: 1}]\nunknown: 1")) == 7


def test_a_missing_key_is_reported_at_its_section():
    """A required key that is not there is asked for, with what it looks like."""
    with pytest.raises(ConfigError, match=r"^<text>:1:1: endpoint: required; write an address such as localhost:4318"):
        settings_from_yaml("", Sample)


def test_a_key_that_is_required_but_unset_names_the_variable(monkeypatch):
    """Where a required value should have come from is said."""
    monkeypatch.delenv("SIDECAR_TEST_UNSET", raising=False)
    with pytest.raises(ConfigError, match=r"required, and \$\{env:SIDECAR_TEST_UNSET\} is not set; write an address"):
        settings_from_yaml("endpoint: ${env:SIDECAR_TEST_UNSET}", Sample)


def test_fields_may_be_required_after_optional_ones():
    """A settings class may add a required field to inherited optional ones, and still compares by value."""
    assert sample("") == Sample(endpoint=Endpoint(":1"))
    assert sample("") != sample("whole: 1")


def test_a_class_may_say_what_nothing_means():
    """Null takes the class's default, and an empty map the defaults of its fields."""

    class Protocols(Settings):
        """Which."""

        on: bool = False

        @classmethod
        def default(cls):
            return cls(on=True)

    assert settings_from_yaml("", Protocols) == Protocols(on=True)
    assert settings_from_yaml("{}", Protocols) == Protocols(on=False)


def test_wrong_defaults_are_found_too():
    """A section that is refused without anything written is reported at its key."""
    with pytest.raises(ConfigError, match=r"^<text>:2:1: picky\.key: names nothing; write a key$"):
        settings_from_yaml("\npicky:", Outer)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*Sample.__struct_fields__, "enabled", "match", "low"]) | st.text(), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(Sample.__struct_fields__), PLAIN))
def test_any_tree_is_decoded_or_refused_in_good_order(value):
    """Whatever is written, decoding gives settings or a ConfigError whose problems all have a place and a message."""
    problems = []
    try:
        settings = settings_from_yaml(msgspec.json.encode(value).decode(), Sample)
    except ConfigError as error:
        settings, problems = None, error.problems
    assert (settings is None) == any(problem.severity == "error" for problem in problems)
    assert all(problem.place.line >= 1 and problem.message for problem in problems)


@given(st.text())
def test_any_text_is_decoded_or_refused_in_good_order(text):
    """Whatever the text, reading it gives settings or a ConfigError."""
    with pytest.raises(ConfigError) as raised:
        settings_from_yaml(text, Sample)
    assert raised.value.problems
