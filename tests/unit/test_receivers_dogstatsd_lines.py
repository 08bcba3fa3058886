"""Lines of DogStatsD, version by version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.dogstatsd.lines import Event, MalformedLine, Sample, ServiceCheck, parse


def sample(name=b"m", kind=b"c", numbers=(1.0,), **rest):
    """A sample."""
    return Sample(name, kind, list(numbers), **rest)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # 1.0
        (b"m:1|c", sample()),
        (b"m:-1.5e3|g", sample(kind=b"g", numbers=[-1500.0])),
        (b"m:1|ms|@0.5|#a:b,c", sample(kind=b"ms", rate=0.5, tags=b"a:b,c")),
        (b"m:1|h|#a|@0.1", sample(kind=b"h", rate=0.1, tags=b"a")),
        (b"m:a:b|s", sample(kind=b"s", numbers=[], member=b"a:b")),
        # 1.1
        (b"m:1:2:3.5|d", sample(kind=b"d", numbers=[1, 2, 3.5])),
        (b"m:1::2:|d", sample(kind=b"d", numbers=[1, 2])),
        # 1.2 and later forms
        (b"m:1|c|#a|c:c0ffee", sample(tags=b"a", container=b"c0ffee")),
        (b"m:1|c|c:ci-c0ffee,in-4", sample(container=b"ci-c0ffee,in-4")),
        # 1.3
        (b"m:1|c|T1656581400", sample(second=1656581400)),
        (b"m:1|g|T1656581400|#a", sample(kind=b"g", tags=b"a", second=1656581400)),
        (b"m:1|h|T1656581400", sample(kind=b"h")),
        # 1.5 and later
        (b"m:1|c|e:it-false,cn-x,pu-y|card:low|#a", sample(tags=b"a")),
        (b"m:1|c|unknown||", sample()),
        (b"_under:1|c", sample(name=b"_under")),
        (b"m:1|c|@4", sample()),
    ],
)
def test_metrics(line, expected):
    """Optional fields come in any order, and unknown ones are passed over."""
    assert parse(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"m", b"m:1", b"|c", b":1|c", b"m|c", b"m:|c", b"m::|c", b"m:x|c", b"m:nan|g", b"m:inf|g", b"m:1|q", b"m:1|",
        b"m:1|c|@0", b"m:1|c|@x", b"m:1|c|@nan", b"m:1|c|T0", b"m:1|c|T-5", b"m:1|c|Tx",
        b"m:1|c|T99999999999999", b"m:|s",
        b"_e{1,1}", b"_e{1,1}:a", b"_e{0,1}:|b", b"_e{2,1}:a|b", b"_e{1,5}:a|b", b"_e{x,1}:a|b", b"_e{1,1}:ab|c",
        b"_e{1,1}:a|bc", b"_e{-1,1}:a|b", b"_e{99999999999999999999999,1}:a|b",
        b"_sc", b"_sc|", b"_sc|a", b"_sc|a|4", b"_sc|a|x", b"_sc||0",
    ],
)  # fmt: skip
def test_malformed(line):
    """And nothing else is raised."""
    with pytest.raises(MalformedLine):
        parse(line)


def test_events():
    """Lengths are of bytes, so that title and text may hold anything."""
    title, text = "é|x".encode(), b"first\\nsecond|#no"
    line = b"_e{%d,%d}:%s|%s|d:5|h:box|k:key|p:low|s:src|t:error|#a:b,c|c:ci-1" % (len(title), len(text), title, text)
    assert parse(line) == Event(
        title, b"first\nsecond|#no", 5, b"box", b"key", b"low", b"src", b"error", b"a:b,c", b"ci-1"
    )
    assert parse(b"_e{1,0}:a|") == Event(b"a", b"")


def test_an_optional_field_of_an_event_that_is_wrong_costs_only_itself():
    """The event is kept."""
    assert parse(b"_e{1,1}:a|b|d:x|p:high|t:odd|zzz") == Event(b"a", b"b")


def test_service_checks():
    r"""The message comes last and may hold anything; within it `m:` is written `m\:`."""
    line = b"_sc|db.up|2|d:5|h:box|#a:b|c:x|m:no|way m\\: \\nreally"
    assert parse(line) == ServiceCheck(b"db.up", 2, 5, b"box", b"a:b", b"no|way m: \nreally", b"x")
    assert parse(b"_sc|a|0") == ServiceCheck(b"a", 0)


@given(st.binary(max_size=120))
def test_no_bytes_do_any_harm(noise):
    """They mean something, or they are malformed."""
    for line in (noise, b"m:" + noise, b"m:1|c|" + noise, b"_e{" + noise, b"_e{1,1}:a|b|" + noise, b"_sc|a|0|" + noise):
        try:
            parse(line.replace(b"\n", b""))
        except MalformedLine:
            continue


_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
_NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: not {*b":|\n"} & {*name} and name[:1] != b"_")


@given(
    _NAMES,
    st.sampled_from([b"c", b"g", b"h", b"ms", b"d"]),
    st.lists(_NUMBERS, min_size=1, max_size=5),
    st.floats(0.001, 1),
    st.binary(max_size=20).filter(lambda tags: b"|" not in tags and b"\n" not in tags),
    st.randoms(),
)
def test_what_is_written_is_read(name, kind, numbers, rate, tags, random):
    """Whatever the order of its optional fields."""
    fields = [b"@" + repr(rate).encode(), b"#" + tags, b"c:ci-1", b"e:x"]
    random.shuffle(fields)
    values = b":".join(repr(number).encode() for number in numbers)
    line = b"|".join([name + b":" + values, kind, *fields])
    assert parse(line) == Sample(name, kind, numbers, b"", rate, tags, b"ci-1")
