"""What the receivers do with bytes that come over a network, as functions of bytes, for a fuzzer.

Each may raise a DeliveryError, which is the answer to bad input, and nothing else; what it lets pass must be sound.
Run as a program, with a target and libFuzzer's arguments, it fuzzes: `test_receivers_fuzz.py` does.
"""

import contextlib
import sys

with contextlib.suppress(ImportError):
    import atheris

FUZZING = __name__ == "__main__"
with atheris.instrument_imports(include=["sidecar"]) if FUZZING else contextlib.nullcontext():
    from sidecar import SCHEMAS, DeliveryError, Signal
    from sidecar.batch import Identity
    from sidecar.dogstatsd import lines, records, tags, windows
    from sidecar.events import convert, model, sanitise
    from sidecar.net import otlp_json, salvage
    from sidecar.net.body import CODINGS
    from sidecar.receivers.datadog import client_stats, spans, wire

SIGNALS = list(Signal)
NOW = 1_700_000_000_000_000_000
LIMITS = sanitise.Limits(message=200, stack=400, fields=300, max_age=7 * 86_400 * 10**9, max_ahead=300 * 10**9)
RULES = convert.Rules({"provider": "inference"}, {"service.namespace": "n"}, "all")
PROVIDER = Identity("provider", "tok", "tok:0123", "acct")


def _first(data, choices):
    """One of the choices by the first byte, and the rest."""
    return choices[data[0] % len(choices)] if data else choices[0], data[1:]


def _check_received(signal, received):
    """What salvage lets pass is what protobuf decodes, has no fault left, and says how many items it left out."""
    data = received.data if received.data is not None else received.message.SerializeToString()
    again = salvage.receive(signal, data)
    # Whether records are another signal's is asked of the first one alone, and another may be the first now.
    assert set(again.reasons) <= {"wrong_type"}
    assert not again.repaired
    assert received.rejected == sum(received.reasons.values())
    assert bool(received.explanation) == bool(received.rejected)


def otlp_protobuf(data):
    """An OTLP request: the first byte is its signal."""
    signal, data = _first(data, SIGNALS)
    with contextlib.suppress(DeliveryError):
        _check_received(signal, salvage.receive(signal, data))


def otlp_json_(data):
    """The same as JSON. What was read can be written, and read again as the same."""
    signal, data = _first(data, SIGNALS)
    with contextlib.suppress(DeliveryError):
        transcoded = otlp_json.decode(signal, data).data
        received = salvage.receive(signal, transcoded)
        _check_received(signal, received)
        written = otlp_json.encode(SCHEMAS[signal].request.FromString(transcoded))
        otlp_json.decode(signal, written)


def telemetry_event_json(data):
    """A batch of TelemetryEvents, from the body to the requests that are made of it."""
    with contextlib.suppress(DeliveryError):
        _check_events(model.from_json(data, 20))


def telemetry_event_protobuf(data):
    """The same as protobuf."""
    with contextlib.suppress(DeliveryError):
        _check_events(model.from_protobuf(data, 20))


def _check_events(events):
    for identity in (None, PROVIDER):
        taken = sanitise.sanitise(events, identity, NOW, LIMITS)
        assert len(taken.events) + taken.rejected == len(events)
        conversion = convert.Conversion(taken.events, NOW, RULES)
        for signal, message in ((Signal.LOGS, conversion.logs()), (Signal.TRACES, conversion.traces())):
            received = salvage.receive(signal, message.SerializeToString())
            assert not received.rejected, received.reasons
            assert not received.repaired, received.repaired


def compressed(data):
    """A compressed body: the first byte is its coding. It never becomes larger than allowed."""
    coding, data = _first(data, list(CODINGS.values()))
    with contextlib.suppress(DeliveryError):
        assert len(coding.decompress(data, 10_000)) <= 10_000


def datadog_traces(data):
    """What tracers send: the first byte is the protocol's version."""
    (version, json), data = _first(data, [("v0.4", False), ("v0.5", False), ("v0.7", False), ("v0.3", True)])
    with contextlib.suppress(DeliveryError):
        payload = wire.decode(version, data, json=json)
        converted = spans.convert(payload, spans.Tracer(), spans.HighIds())
        received = salvage.receive(Signal.TRACES, converted.data)
        assert not received.rejected, received.reasons


def datadog_stats(data):
    """The statistics that tracers compute."""
    with contextlib.suppress(DeliveryError):
        message = client_stats.convert(data, spans.Tracer())
        salvage.receive(Signal.METRICS, message.SerializeToString())


def dogstatsd(data):
    """A datagram of lines: the good ones are added up, whatever the others are."""
    reader = tags.TagReader()
    adding = windows.Windows(50, reader)
    noticed = []
    for line in data.split(b"\n"):
        with contextlib.suppress(lines.MalformedLine):
            read = lines.parse(line)
            if type(read) is lines.Sample:
                adding.add(read)
            else:
                noticed.append((read, NOW))
    message, points = adding.close(NOW - 10**10, NOW)
    received = salvage.receive(Signal.METRICS, message.SerializeToString())
    assert not received.rejected, (points, received.reasons)
    message, _ = records.records(noticed, reader)
    assert not salvage.receive(Signal.LOGS, message.SerializeToString()).rejected


TARGETS = {
    target.__name__.rstrip("_"): target
    for target in (
        otlp_protobuf,
        otlp_json_,
        telemetry_event_json,
        telemetry_event_protobuf,
        compressed,
        datadog_traces,
        datadog_stats,
        dogstatsd,
    )
}

if FUZZING:
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()
