"""A batch as bytes, as a message, or as both."""

from __future__ import annotations

import pytest
from support.otlp import bodies, logs, logs_request, metrics, traces

from sidecar import Batch, BatchContext, Permanent, Signal


def test_what_nobody_edits_leaves_as_the_received_bytes():
    """Reading does not cost the bytes."""
    received = logs(3).encode()
    batch = Batch(Signal.LOGS, received, context=BatchContext())
    assert len(batch) == 3
    assert bodies(batch) == ["hello 0", "hello 1", "hello 2"]
    assert batch.encode() is received


def test_an_edit_forgets_the_received_bytes_and_the_count():
    """What leaves is what was written."""
    batch = logs(2)
    del batch.edit().resource_logs[0].scope_logs[0].log_records[0]
    assert (len(batch), bodies(Batch(Signal.LOGS, batch.encode(), context=batch.context))) == (1, ["hello 1"])


def test_a_copy_does_not_see_edits():
    """Each has its own message."""
    batch = logs(1)
    copy = batch.copy()
    batch.edit().resource_logs[0].scope_logs[0].log_records[0].body.string_value = "changed"
    assert (bodies(copy), bodies(batch)) == (["hello 0"], ["changed"])


def test_a_batch_that_is_not_built_stays_so_when_copied():
    """A refusal after a copy costs no conversion, and each copy builds a message of its own."""
    built = []

    def build():
        built.append(logs_request(1))
        return built[-1]

    batch = Batch(Signal.LOGS, context=BatchContext(), build=build, items=1)
    copy = batch.copy()
    assert (len(copy), built) == (1, [])
    assert batch.message is not copy.message


def test_joining_is_the_union_without_decoding():
    """The bytes follow one another; items add up; the given batches stay."""
    first, second = logs(2, body="a"), logs(1, body="b")
    joined = Batch.join([first, second])
    assert joined.encode() == first.encode() + second.encode()
    assert (len(joined), bodies(joined)) == (3, ["a 0", "a 1", "b 0"])


def test_items_are_records_spans_and_points():
    """A metric counts as many items as it has points."""
    assert [len(batch) for batch in (logs(2), traces(3), metrics(4))] == [2, 3, 4]


def test_keeping_leaves_out_the_rest():
    """What is not wanted is gone; when everything is wanted the bytes stay; when nothing is, there is no batch."""
    batch = logs(3)
    received = batch.encode()
    assert batch.keep(lambda _: True).encode() is received
    assert bodies(batch.keep(lambda record: record.body.string_value != "hello 1")) == ["hello 0", "hello 2"]
    assert batch.keep(lambda _: False) is None


def test_bytes_that_are_no_request_say_so():
    """The error is one that the sender must not repeat."""
    with pytest.raises(Permanent, match="not an OTLP traces request"):
        _ = Batch(Signal.TRACES, b"\xff\xff", context=BatchContext()).message
