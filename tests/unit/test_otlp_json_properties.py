"""OTLP/JSON of random messages: both ways it says the same, and what protobuf's own JSON says where that is right."""

import contextlib
import json

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from support.otlp_strategies import requests

from sidecar import SCHEMAS, Permanent, Signal
from sidecar.net import otlp_json

# Requests are large, and each field has an example of its own elsewhere.
FEW = settings(max_examples=25)
SIGNALS = pytest.mark.parametrize("signal", list(Signal))


def canonical(message):
    """Bytes that are equal when messages are, NaN included."""
    return message.SerializeToString(deterministic=True)


def without_ids(message):
    """The message without the ids, which protobuf's own JSON writes in base64."""
    for field, value in message.ListFields():
        if field.name in {"trace_id", "span_id", "parent_span_id"}:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                without_ids(each)
    return message


@SIGNALS
@given(data=st.data())
def test_json_and_back_is_the_same(signal, data):
    """No field, no value and no nesting is lost on the way."""
    message = data.draw(requests(signal))
    transcoded = otlp_json.decode(signal, otlp_json.encode(message))
    assert canonical(SCHEMAS[signal].request.FromString(transcoded.data)) == canonical(message)
    assert transcoded.repairs == {}


@SIGNALS
@FEW
@given(data=st.data())
def test_protobufs_own_reader_understands_what_is_written(signal, data):
    """Except the ids, OTLP/JSON is ProtoJSON."""
    message = without_ids(data.draw(requests(signal)))
    parsed = json_format.Parse(otlp_json.encode(message), SCHEMAS[signal].request())
    assert canonical(parsed) == canonical(message)


@SIGNALS
@FEW
@given(data=st.data(), names=st.booleans(), indent=st.sampled_from([None, 2]))
def test_what_protobufs_own_writer_writes_is_understood(signal, data, names, indent):
    """With enum names, base64 bytes, and keys as in JSON or as in the schema."""
    message = without_ids(data.draw(requests(signal)))
    text = json_format.MessageToJson(message, preserving_proto_field_name=names, indent=indent)
    transcoded = otlp_json.decode(signal, text.encode())
    assert canonical(SCHEMAS[signal].request.FromString(transcoded.data)) == canonical(message)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@SIGNALS
@FEW
@given(data=st.data())
def test_a_wrong_value_anywhere_is_refused_or_mended(signal, data):
    """Whatever stands in whatever place, the answer is protobuf that decodes, or Permanent."""
    document = json.loads(otlp_json.encode(data.draw(requests(signal))))
    places = list(walk(document))
    if not places:
        return
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(ANY_JSON)
    with contextlib.suppress(Permanent):
        transcoded = otlp_json.decode(signal, json.dumps(document).encode())
        SCHEMAS[signal].request.FromString(transcoded.data)


def walk(value):
    """Where something stands in a JSON document: its holder and its key there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield value, key
        yield from walk(inner)


@SIGNALS
@given(body=st.binary(max_size=50))
def test_any_bytes_are_answered(signal, body):
    """No other exception than Permanent leaves the codec."""
    with contextlib.suppress(Permanent):
        SCHEMAS[signal].request.FromString(otlp_json.decode(signal, body).data)
