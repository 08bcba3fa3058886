"""The privacy promise: what stands under a key that is not allowed is in no byte of what leaves.

The places are walked from OTLP's protobuf descriptors, so that a place which a later OTLP adds is tested by itself.
"""

import re

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from support.otlp_canary import ALLOWED_KEY, CANARY, DENIED_KEY, pair, places, plants

from processors.allowlist import Allowlist
from sidecar import Batch, BatchContext, Signal
from sidecar.testing import Bench

pytestmark = pytest.mark.usefixtures("either_path")

ALLOW = (
    f"presets: [], attributes: [{ALLOWED_KEY}], resource_attributes: [{ALLOWED_KEY}], scope_attributes: [{ALLOWED_KEY}]"
)
SETTINGS = {
    "drop": ALLOW,
    "presets": f"attributes: [{ALLOWED_KEY}], scope_attributes: ['*.*']",
    "scalar": f"{ALLOW}, values: scalar",
    "a look at every value": f"{ALLOW}, max_value_length: 1000",
    "text bodies": f"{ALLOW}, body: string",
    "no bodies": f"{ALLOW}, body: drop",
}
KEEP_KEYS = {"mask": f"{ALLOW}, on_denied: mask", "hash": f"{ALLOW}, on_denied: hash, hash_key: something else"}


def run(settings, signal, *requests):
    """What leaves an allowlist with these settings, as bytes, for each request."""
    allowlist = Bench().make(Allowlist, f"{{{settings}}}")
    return [allowlist.process(Batch(signal, data, context=BatchContext())).encode() for data in requests]


def leaks(settings, signal, planted):
    """The plants whose canary gets through, each processed by itself."""
    outcomes = run(settings, signal, *(plant.data for plant in planted))
    return [
        f"{plant.place}: {plant.how}" for plant, out in zip(planted, outcomes, strict=True) if CANARY.encode() in out
    ]


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_no_byte_of_a_denied_attribute_leaves(settings, signal):
    """A canary in any one place of a request is in no byte of the outcome."""
    planted = list(plants(signal))

    assert all(CANARY.encode() in plant.data for plant in planted)
    assert leaks(settings, signal, planted) == []


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("settings", KEEP_KEYS.values(), ids=KEEP_KEYS)
def test_masked_attributes_keep_their_key_and_nothing_else(settings, signal):
    """With `mask` and `hash` the names of denied keys stay, and none of their values."""
    assert leaks(settings, signal, [plant for plant in plants(signal) if "key" not in plant.how.split(", ")[-1]]) == []


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_many_canaries_hide_no_better_than_one(settings, signal):
    """The canary in all places of one request is in no byte of the outcome either."""
    (outcome,) = run(settings, signal, b"".join(plant.data for plant in plants(signal)))

    assert CANARY.encode() not in outcome


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("beside", ["text", "map"])
def test_what_is_allowed_stays_in_every_place(signal, beside):
    """Allowed attributes stay wherever they stand, beside denied ones: the promise isn't kept by dropping all."""
    denied = AnyValue(string_value=CANARY)
    if beside == "map":
        denied.kvlist_value.values.add(key=ALLOWED_KEY).value.string_value = CANARY
    lists = [place for place in places(signal) if place.kind == "attributes"]
    values = [AnyValue(string_value=f"kept {number:03}").SerializeToString() for number in range(len(lists))]
    request = b"".join(
        place.request(pair(DENIED_KEY, denied.SerializeToString())) + place.request(pair(ALLOWED_KEY, value))
        for place, value in zip(lists, values, strict=True)
    )

    (outcome,) = run(ALLOW, signal, request)

    assert re.findall(rb"kept \d{3}", outcome) == re.findall(rb"kept \d{3}", request)
    assert len(set(re.findall(rb"kept \d{3}", outcome))) == len(lists) > 2
    assert CANARY.encode() not in outcome


def test_the_walk_finds_the_places_that_are_known():
    """The walk goes where it must: it would prove nothing if it missed a place."""
    found = {(str(place), place.kind) for signal in Signal for place in places(signal)}

    assert found >= {
        ("resource_logs.resource.attributes", "attributes"),
        ("resource_logs.resource.entity_refs.id_keys", "keys"),
        ("resource_logs.scope_logs.scope.attributes", "attributes"),
        ("resource_logs.scope_logs.log_records.attributes", "attributes"),
        ("resource_logs.scope_logs.log_records.body", "value"),
        ("resource_spans.scope_spans.spans.attributes", "attributes"),
        ("resource_spans.scope_spans.spans.status", "message"),
        ("resource_spans.scope_spans.spans.events.attributes", "attributes"),
        ("resource_spans.scope_spans.spans.links.attributes", "attributes"),
        ("resource_metrics.scope_metrics.metrics.metadata", "attributes"),
        ("resource_metrics.scope_metrics.metrics.gauge.data_points.attributes", "attributes"),
        ("resource_metrics.scope_metrics.metrics.sum.data_points.exemplars.filtered_attributes", "attributes"),
        ("resource_metrics.scope_metrics.metrics.histogram.data_points.exemplars.filtered_attributes", "attributes"),
        ("resource_metrics.scope_metrics.metrics.exponential_histogram.data_points.attributes", "attributes"),
        ("resource_metrics.scope_metrics.metrics.summary.data_points.attributes", "attributes"),
    }
