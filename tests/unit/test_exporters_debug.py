"""What the `debug` exporter shows of each signal, and how it treats a terminal."""

import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from support.otlp import SPAN_ID, TRACE_ID, logs, metrics, traces

from config.problems import ConfigError
from exporters.debug import DebugExporter
from sidecar import SCHEMAS, Batch, BatchContext, Signal
from sidecar.testing import Bench

TRACE = "trace_id=0123456789abcdef1122334455667788 span_id=0000000000000099"


@pytest.fixture
def bench():
    """What surrounds the exporter."""
    return Bench()


@pytest.fixture
def show(bench, capsys):
    """Exports batches and returns the lines that were written."""

    async def export(yaml, *batches):
        exporter = bench.make(DebugExporter, yaml)
        for batch in batches:
            await exporter.export(batch)
        return capsys.readouterr().out.splitlines()

    return export


def correlated(batch):
    """The batch, with a trace on its records."""
    for scope in batch.scopes():
        for record in scope.log_records:
            record.trace_id, record.span_id = TRACE_ID, SPAN_ID
    batch.edit()
    return batch


async def test_basic_is_a_line_per_batch(show):
    """Without settings: what arrived, counted."""
    assert await show("", logs(3), traces(2), metrics(4)) == [
        f"logs: log_records=3 resources=1 bytes={len(logs(3).encode())}",
        f"traces: spans=2 resources=1 bytes={len(traces(2).encode())}",
        f"metrics: metric_points=4 resources=1 bytes={len(metrics(4).encode())}",
    ]


async def test_a_log_record_is_a_line(show):
    """Time, severity, service, body, trace, attributes."""
    _, line = await show("verbosity: normal", correlated(logs(1, http__method="GET", status=200, ok=True)))

    assert line == (f'2023-11-14T22:13:20.000000000Z INFO api "hello 0" {TRACE} http.method=GET status=200 ok=true')


async def test_a_span_is_a_line(show):
    """Start, service, name, duration, kind, status, ids, attributes."""
    batch = traces(1, route="/")
    span = batch.edit().resource_spans[0].scope_spans[0].spans[0]
    span.kind, span.status.code, span.status.message, span.parent_span_id = 2, 2, "no luck", SPAN_ID

    _, line = await show("verbosity: normal", batch)

    assert line == (
        '2023-11-14T22:13:20.000000000Z SPAN api "GET /" duration=5ms kind=SERVER '
        'status.message="no luck" status.code=ERROR trace_id=0123456789abcdef1122334455667788 '
        "span_id=0000000000000001 parent_span_id=0000000000000099 route=/"
    )


async def test_a_data_point_is_a_line(show):
    """Time, kind, service, name, values, unit, attributes, for each kind of metric."""
    request = SCHEMAS[Signal.METRICS].request()
    made = request.resource_metrics.add().scope_metrics.add().metrics
    made.add(name="temperature", unit="Cel").gauge.data_points.add(time_unix_nano=1, as_double=21.5)
    made.add(name="requests").sum.data_points.add(as_int=7).attributes.add(key="n").value.int_value = 1
    made.add(name="latency").histogram.data_points.add(count=3, sum=1.5, min=0.25, max=1, bucket_counts=[1, 2])
    made.add(name="sizes").exponential_histogram.data_points.add(count=2, scale=3)
    made.add(name="old").summary.data_points.add(count=1, sum=2).quantile_values.add(quantile=0.5, value=2)
    made.add(name="nothing")

    _, *lines = await show("verbosity: normal", Batch(Signal.METRICS, message=request, context=BatchContext()))

    assert lines == [
        "1970-01-01T00:00:00.000000001Z gauge - temperature value=21.5 unit=Cel",
        "- sum - requests value=7 n=1",
        "- histogram - latency count=3 sum=1.5 min=0.25 max=1",
        "- exponential_histogram - sizes count=2",
        "- summary - old count=1 sum=2 q0.5=2",
    ]


async def test_detailed_is_everything(show):
    """Every field that is set, by the schema's names; ids in the form that can be searched for."""
    batch = correlated(logs(1, http__method="GET"))
    record = batch.edit().resource_logs[0].scope_logs[0].log_records[0]
    record.event_name = "sign in"
    record.attributes.add(key="list").value.array_value.values.add(int_value=1)
    record.attributes.add(key="map").value.kvlist_value.values.add(key="a").value.bytes_value = b"\x01"
    batch.edit().resource_logs[0].scope_logs[0].scope.name = "lib"

    lines = await show("verbosity: detailed", batch)

    assert lines[1:] == [
        "ResourceLogs #0",
        "  resource:",
        "    attributes:",
        "      service.name=api",
        "  ScopeLogs #0",
        "    scope:",
        "      name=lib",
        "    LogRecord #0",
        "      time_unix_nano=2023-11-14T22:13:20.000000000Z",
        "      severity_number=INFO",
        "      severity_text=INFO",
        '      body="hello 0"',
        "      attributes:",
        "        http.method=GET",
        "        list=[1]",
        '        map="{\\"a\\": \\"01\\"}"',
        "      trace_id=0123456789abcdef1122334455667788",
        "      span_id=0000000000000099",
        '      event_name="sign in"',
    ]


@pytest.mark.parametrize("verbosity", ["normal", "detailed"])
async def test_records_can_not_command_the_terminal(show, verbosity):
    """Escape sequences, line breaks and reversed text are shown, not obeyed."""
    lines = await show(f"verbosity: {verbosity}", logs(1, body="a\x1b[2Jb\nc\u202ed", **{"x\ny": "\r"}))

    assert all(line.isprintable() for line in lines)
    assert sum(r'"a\x1b[2Jb\nc\u202ed 0"' in line for line in lines) == 1


@pytest.mark.parametrize(("verbosity", "limit"), [("normal", 2100), ("detailed", 4100)])
async def test_lines_have_an_end(show, verbosity, limit):
    """A long body is cut and says by how much; the trace after it is still there."""
    lines = await show(f"verbosity: {verbosity}", correlated(logs(1, body="x" * 100_000, y="z" * 100_000)))

    assert max(map(len, lines)) < limit
    assert any("more characters" in line for line in lines)
    assert any("trace_id=0123456789abcdef1122334455667788" in line for line in lines)


values = st.recursive(
    st.one_of(
        st.builds(AnyValue),
        st.text().map(lambda text: AnyValue(string_value=text)),
        st.booleans().map(lambda value: AnyValue(bool_value=value)),
        st.integers(-(2**63), 2**63 - 1).map(lambda value: AnyValue(int_value=value)),
        st.floats().map(lambda value: AnyValue(double_value=value)),
        st.binary().map(lambda value: AnyValue(bytes_value=value)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: AnyValue(array_value={"values": items})),
        st.lists(inner, max_size=3).map(
            lambda items: AnyValue(kvlist_value={"values": [KeyValue(key="k", value=item) for item in items]})
        ),
    ),
    max_leaves=8,
)


@given(values, st.integers(0, 2**64 - 1), st.integers(-(2**31), 2**31 - 1))
async def test_anything_can_be_shown(body, time, severity):
    """No value, time or number that the schema allows is an error, and each stays on its line."""
    request = SCHEMAS[Signal.LOGS].request()
    request.resource_logs.add().scope_logs.add().log_records.add(
        body=body, time_unix_nano=time, severity_number=severity, attributes=[KeyValue(key="k", value=body)]
    )
    batch = Batch(Signal.LOGS, message=request, context=BatchContext())
    for verbosity in ("normal", "detailed"):
        exporter = Bench().make(DebugExporter, f"verbosity: {verbosity}\nuse_internal_logger: true")
        await exporter.export(batch)
        rendered = list(exporter._render(batch))
        assert all(line.isprintable() for line in rendered)
        assert verbosity == "detailed" or len(rendered) == 1


async def test_sampling(bench, capsys):
    """The first batches of a second are shown, then one in many; a new second begins anew, and so does each signal."""
    exporter = bench.make(DebugExporter, "{sampling_initial: 2, sampling_thereafter: 3}")
    for _ in range(8):
        await exporter.export(logs())
    await exporter.export(traces())
    bench.clock.advance(1)
    await exporter.export(logs())

    shown = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["logs"] * 4 + ["traces", "logs"]


async def test_sampling_can_leave_out_the_rest(show):
    """`sampling_thereafter: 0` shows the first of each second only."""
    assert len(await show("{sampling_initial: 1, sampling_thereafter: 0}", logs(), logs(), logs())) == 1


async def test_the_own_log(bench, capsys, caplog):
    """With `use_internal_logger` the text goes where the sidecar's own messages go."""
    with caplog.at_level(logging.INFO):
        await bench.make(DebugExporter, "use_internal_logger: true", "debug/log").export(logs(2))

    assert [record.name for record in caplog.records] == ["sidecar.debug/log"]
    assert caplog.messages[0].startswith("logs: log_records=2")
    assert not capsys.readouterr().out


class Closed:
    """A stdout that nobody reads."""

    def write(self, text):
        """As a pipe without a reader."""
        raise BrokenPipeError(32, "Broken pipe")


async def test_a_closed_terminal_stops_nothing(bench, monkeypatch):
    """When nobody reads any more, the batch is counted, health says so, and no sender is refused."""
    exporter = bench.make(DebugExporter, "")
    monkeypatch.setattr(sys, "stdout", Closed())

    await exporter.export(logs(3))

    assert bench.dropped == {(Signal.LOGS, "output_closed"): 3}
    assert "Broken pipe" in exporter.context.health.message


def test_wrong_settings(bench):
    """Numbers below zero and unknown words are refused."""
    with pytest.raises(ConfigError, match="sampling_initial: -1 is negative"):
        bench.make(DebugExporter, "sampling_initial: -1")
    with pytest.raises(ConfigError, match="verbosity: 'loud' is not a choice"):
        bench.make(DebugExporter, "verbosity: loud")


def test_its_old_name_is_deprecated():
    """`logging` works, with a warning that names the new one."""
    assert DebugExporter.deprecated_types == {"logging"}
