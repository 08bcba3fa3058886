"""The allowlist on the wire, held to the allowlist by protobuf that it goes before."""

from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.otlp import logs_request, metrics_request, traces_request
from support.otlp_canary import delimited, pair, plants
from support.otlp_content import CONTENT, any_value
from support.otlp_strategies import mutations, requests

from processors.allowlist import Allowlist
from processors.allowlist.views import view
from sidecar import SCHEMAS, Batch, BatchContext, Signal, kernel
from sidecar.testing import Bench

pytestmark = pytest.mark.skipif(kernel.module is None, reason=f"no kernel: {kernel.WHY_NOT}")

SIGNALS = pytest.mark.parametrize("signal", list(Signal))
REQUESTS = {Signal.TRACES: traces_request, Signal.LOGS: logs_request, Signal.METRICS: metrics_request}

SETTINGS = st.builds(
    "{{presets: [], attributes: [component, 'app.*', '*0*', exception.stacktrace],"
    " resource_attributes: ['*0*', component, exception.stacktrace], scope_attributes: {}, values: {}, body: {},"
    " max_body_length: {}, max_stack_length: {}, max_value_length: {}}}".format,
    st.sampled_from(["[]", "['*']"]),
    st.sampled_from(["any", "scalar"]),
    st.sampled_from(["keep", "string", "drop"]),
    st.sampled_from(["null", "1", "4", "4096"]),
    st.sampled_from(["null", "3", "4096"]),
    st.sampled_from(["null", "null", "2", "4096"]),
)


class Pair:
    """Two allowlists with the same settings, of which one has no kernel."""

    def __init__(self, settings):
        self.bench, self.oracle_bench = Bench(), Bench()
        self.allowlist = self.bench.make(Allowlist, settings)
        self.oracle = self.oracle_bench.make(Allowlist, settings)
        self.oracle._wire = Mock(filter=Mock(return_value=None))

    def check(self, signal, data):
        """Where the kernel takes the request, both give the same, and count the same. Returns whether it does."""
        filtered = self.allowlist._wire.filter(signal, data)
        if filtered is None:
            return False
        wanted = self.oracle.process(Batch(signal, data, context=BatchContext(), items=1)).encode()
        outcome = self.allowlist.process(Batch(signal, data, context=BatchContext(), items=1)).encode()
        assert (canonical(signal, outcome), filtered[0]) == (wanted, outcome)
        assert counts(self.bench) == counts(self.oracle_bench)
        # What it has let pass, it lets pass again, untouched.
        assert self.allowlist._wire.filter(signal, outcome) == (outcome, {}, 0)
        return True


def canonical(signal, data):
    """A request without unknown fields, attributes sorted."""
    return view(signal, nested=True).FromString(data).SerializeToString(deterministic=True)


def counts(bench):
    """What has been counted: cuts, and denied attributes, in all and by some of their keys."""
    denied, value = "sidecar_allowlist_denied_attributes", bench.metrics.value
    return value("sidecar_allowlist_cut_values"), value(denied), [value(denied, key=key) for key in NAMES]


NAMES = ["component", "prompt", "app.x", "app.y", "no", "", "exception.stacktrace", "k" * 300]
KEYS = st.sampled_from(NAMES)
TEXTS = st.sampled_from(["äöü" * 3, "abcd…", "ab\n… truncated", "x" * 5000, "x" * 4096 + "…"])
PAIRS = st.lists(st.tuples(KEYS, CONTENT | TEXTS), max_size=6)
FLAT = st.lists(
    st.tuples(KEYS, st.text(max_size=9) | TEXTS | st.integers(-(2**63), 2**63 - 1) | st.booleans()),
    max_size=6,
    unique_by=lambda one: one[0],
)


@st.composite
def filled(draw, signal, pairs):
    """An ordinary request with keys that matter in each of its maps."""
    request = REQUESTS[signal](draw(st.integers(1, 3)))
    schema = SCHEMAS[signal]
    resource = getattr(request, schema.resources)[0]
    scope = getattr(resource, schema.scopes)[0]
    holders = [resource.resource, scope.scope]
    for record in getattr(scope, schema.records):
        if signal is Signal.METRICS:
            holders += record.sum.data_points
        else:
            holders.append(record)
        if signal is Signal.TRACES:
            holders += [record.events.add(name="e"), record.links.add()]
        if signal is Signal.LOGS:
            record.body.CopyFrom(any_value(draw(CONTENT | TEXTS)))
    for holder in holders:
        for key, content in draw(pairs):
            holder.attributes.add(key=key, value=any_value(content))
    return request.SerializeToString()


@SIGNALS
@given(settings=SETTINGS, data=st.data())
def test_ordinary_requests_leave_as_by_protobuf(signal, settings, data):
    """The same attributes, values, cuts and counts, request after request."""
    both = Pair(settings)

    for pairs in (FLAT, PAIRS, FLAT):
        both.check(signal, data.draw(filled(signal, pairs)))


@SIGNALS
@given(settings=SETTINGS, data=st.data())
def test_any_request_leaves_as_by_protobuf(signal, settings, data):
    """Whatever fields are set, and to what."""
    Pair(settings).check(signal, data.draw(requests(signal)).SerializeToString())


@SIGNALS
@given(settings=SETTINGS, data=st.data())
def test_mutated_bytes_leave_as_by_protobuf(signal, settings, data):
    """What the kernel lets pass never differs from what protobuf would."""
    Pair(settings).check(signal, data.draw(mutations(data.draw(filled(signal, FLAT)))))


@SIGNALS
def test_plants_leave_as_by_protobuf(signal):
    """In each place where a key can hide; the kernel decides most of them itself."""
    both = Pair(
        "{presets: [], attributes: [component], resource_attributes: [component], scope_attributes: [component]}"
    )
    own = [both.check(signal, plant.data) for plant in plants(signal)]

    assert sum(own) > len(own) / 4


def test_pipelines_of_a_process_share_what_is_known_of_keys():
    """As long as one of them has these settings, and in this process alone."""
    bench = Bench()
    first, second, other = (bench.make(Allowlist, f"attributes: [{key}]") for key in "aab")
    assert first._wire is second._wire
    assert other._wire is not first._wire
    assert Bench().make(Allowlist, "attributes: [a]")._wire is not first._wire


@SIGNALS
def test_ordinary_requests_are_the_kernels(signal):
    """It would be of no use if it left them all to protobuf: with denied keys, arrays and cuts too."""
    request = REQUESTS[signal](3)
    resource = getattr(request, SCHEMAS[signal].resources)[0]
    for key, content in {"prompt": {"a": 1}, "component": ["a", 1], "app.x": "y" * 300, "no": b"x"}.items():
        resource.resource.attributes.add(key=key, value=any_value(content))
    data = request.SerializeToString()

    assert Pair("{resource_attributes: [component, 'app.*'], max_value_length: 10}").check(signal, data)
    assert Pair("").check(signal, data)


def logs(*parts):
    """A logs request whose one record has these fields, serialized."""
    return delimited(1, delimited(2, delimited(2, b"".join(parts))))


ALLOWED = pair("component", any_value("a").SerializeToString())


@pytest.mark.parametrize(
    "parts",
    [
        [delimited(6, ALLOWED), delimited(6, ALLOWED)],
        [delimited(6, b"\x0a\x09component")],
        [delimited(6, b"\x12\x00")],
        [delimited(6, ALLOWED + delimited(2, b""))],
        [delimited(6, pair("component", any_value({"component": 1}).SerializeToString()))],
        [delimited(5, any_value({"component": 1}).SerializeToString())],
        [delimited(5, b"\x10\x02")],  # a boolean that is 2
        [delimited(5, b"\x0a\x00"), delimited(5, b"\x0a\x00")],
        [b"\x10\x89\x00"],  # a longer form of 9 than it needs
        [b"\x32\x80\x00"],
        [b"\x10\x89\x80\x80\x80\x10"],  # an enum of more than 32 bits
        [b"\x53\x54"],
        [delimited(3, b"\xff")],
        [delimited(6, pair("component", b"\x0a\x01\xff"))],
        [delimited(6, pair("prompt", b"\x0a\x01\xff"))],
        [delimited(6, pair("prompt", b"") + delimited(4000, b"x"))],
    ],
)
def test_what_is_not_ordinary_is_left_to_protobuf(parts):
    """Each of them by itself, in a request that is ordinary without it."""
    both = Pair("")

    assert both.check(Signal.LOGS, logs(delimited(6, ALLOWED)))
    assert not both.check(Signal.LOGS, logs(*parts))


def test_equal_keys_are_found_across_lists():
    """Lists of attributes that take turns, as no encoder writes them, don't hide a key that comes twice."""
    both = Pair("")
    event = delimited(11, delimited(3, ALLOWED))
    spans = [
        delimited(9, ALLOWED) + event,
        event + delimited(9, ALLOWED),
        delimited(9, ALLOWED) + event + delimited(9, ALLOWED),
    ]

    assert [both.check(Signal.TRACES, delimited(1, delimited(2, delimited(2, span)))) for span in spans] == [
        True,
        True,
        False,
    ]


def test_keys_of_senders_are_forgotten():
    """More keys than are remembered are decided rightly all the same, and the next request is the kernel's again."""
    both = Pair("{presets: [], attributes: ['app.*']}")

    def request(start, count):
        return logs(
            *(
                delimited(6, pair(f"{prefix}{number}", any_value("x").SerializeToString()))
                for prefix in ("app.", "no.")
                for number in range(start, start + count)
            )
        )

    sent = [request(0, 3000), request(3000, 3000), request(0, 10)]
    assert [both.check(Signal.LOGS, each) for each in sent] == [True, False, True]


def test_a_failing_rule_fails_the_request():
    """An error in the answer to the kernel's question is not lost, and the next request passes."""
    allowlist = Bench().make(Allowlist, "attributes: [a]")
    keys = []

    def allows(key):
        keys.append(key)
        if len(keys) == 1:
            raise ZeroDivisionError
        # The kernel has one request at a time.
        assert allowlist._wire.filter(Signal.LOGS, data) is None
        return True

    allowlist._wire.policy.rules["record"].allows = allows
    data = logs(delimited(6, pair("x", any_value(1).SerializeToString())))
    with pytest.raises(ZeroDivisionError):
        allowlist._wire.filter(Signal.LOGS, data)
    assert allowlist._wire.filter(Signal.LOGS, data) == (data, {}, 0)
    assert keys == ["x", "x"]
