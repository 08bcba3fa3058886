"""OTLP log records as JSON for Datadog's logs intake: pure, and the hot path of this exporter.

Per record one dict, which is encoded in C. What all records of a scope share (host, service, tags, attributes of the
resource and the scope) is encoded once and put in front of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from exporters.datadog.delivery import Body
from exporters.datadog.resource import Origin, Origins, tag
from exporters.datadog.severity import Severities, status_of_word
from exporters.datadog.values import flatten, json_of, text, text_of, texts
from sidecar.events.trace_ids import parse_span_id, parse_trace_id
from sidecar.reading import Value, read_scope

# The intake takes 5 MB and 1,000 logs. Vector aims at 4.25 MB too.
AIM_BODY: Final = 4_250_000
MAX_LOGS: Final = 1000
# A longer log is cut by the intake, without regard for what it cuts.
MAX_LOG: Final = 1_000_000
# The intake answers 202 to an older log and drops it.
MAX_AGE_NS: Final = 18 * 3600 * 10**9

DEFAULT_SOURCE: Final = "otlp"
LATE: Final = "sidecar.late"
TRUNCATED: Final = "sidecar.truncated"
_CUT: Final = "…"
_ROOM_FOR_MARK: Final = 16
_WORTH_CUTTING: Final = 1000
_MAX_CUTS: Final = 20
_NO_HIGH: Final = "0" * 16
_MAX_NAMES: Final = 10_000

# What the exporter itself writes at the top of a log. The same name sent as an attribute must not pass for it.
_OWN: Final = frozenset(
    {"message", "status", "host", "hostname", "service", "ddsource", "ddtags", "@timestamp", "timestamp"}
)
# Attributes with a meaning of their own, by their names in lower case (Datadog's default remapping, and ddtrace's).
_MEANING: Final = {
    **dict.fromkeys(("msg", "message", "log"), "message"),
    **dict.fromkeys(("status", "severity", "level", "syslog.severity"), "status"),
    **dict.fromkeys(("traceid", "trace_id", "contextmap.traceid", "oteltraceid", "dd.trace_id"), "trace_id"),
    **dict.fromkeys(("spanid", "span_id", "contextmap.spanid", "otelspanid", "dd.span_id"), "span_id"),
    # What belongs on a resource, and is sent on records by those who have none.
    "service.name": "service",
    "host.name": "hostname",
    "ddtags": "ddtags",
    "ddsource": "ddsource",
}
# Datadog's names for what OpenTelemetry's conventions call otherwise.
_RENAMED: Final = {
    "exception.type": "error.kind",
    "exception.message": "error.message",
    "exception.stacktrace": "error.stack",
}


@dataclass(frozen=True, slots=True)
class Diverted:
    """A record that is no log for Datadog: its position in the batch, whose it is, and the log that it would be."""

    position: int
    kind: str
    origin: Origin
    members: Mapping[str, Any]


class LogEncoder:
    """Encodes requests. One per exporter: it remembers names and resources.

    Args:
        origins: what is known of resources.
        alert_statuses, on_alert: records with such a status are logs, and are shown to `on_alert` too.
        diverted_kinds: records with such an event name are no logs.
        on_late: is called for each record that is too old for the intake. It is dated by its arrival there, is marked,
            and keeps its own time in `otel.timestamp`.
    """

    def __init__(
        self,
        origins: Origins,
        *,
        alert_statuses: frozenset[str] = frozenset(),
        on_alert: Callable[[Origin, Mapping[str, Any]], None] = lambda _origin, _members: None,
        diverted_kinds: frozenset[str] = frozenset(),
        on_late: Callable[[], None] = lambda: None,
    ) -> None:
        self._origins = origins
        self._alert_statuses = alert_statuses
        self._on_alert = on_alert
        self._diverted_kinds = diverted_kinds
        self._on_late = on_late
        self._severities = Severities()
        self._plain: set[str] = set()
        self._second = ""
        self._second_text = ""

    def encode(self, request: Any, diverted: list[Diverted], *, local: bool, now_ns: int) -> Iterator[Body]:
        """The bodies that carry an ExportLogsServiceRequest, each within the intake's limits.

        Args:
            request: as `read` gives it. What is in it becomes part of what is made.
            diverted: gets the records that are no logs.
            local: whether it was sent from this host.
            now_ns: Unix time in nanoseconds.
        """
        entries: list[bytes] = []
        units: list[int] = []
        size = 2
        for position, entry in enumerate(self._entries(request, local=local, now_ns=now_ns)):
            if not isinstance(entry, bytes):
                diverted.append(replace(entry, position=position))
                continue
            if entries and (size + len(entry) > AIM_BODY or len(entries) == MAX_LOGS):
                yield Body(b"[%b]" % b",".join(entries), units)
                entries, units, size = [], [], 2
            entries.append(entry)
            units.append(position)
            size += len(entry) + 1
        if entries:
            yield Body(b"[%b]" % b",".join(entries), units)

    def _entries(self, request: Any, *, local: bool, now_ns: int) -> Iterator[bytes | Diverted]:
        for resource_logs in request.resource_logs:
            origin = self._origins.of(resource_logs.resource, local=local)
            for scope_logs in resource_logs.scope_logs:
                yield from self._scope(scope_logs, origin, now_ns)

    def _scope(self, scope_logs: Any, origin: Origin, now_ns: int) -> Iterator[bytes | Diverted]:
        shared = _shared(origin, read_scope(scope_logs.scope))
        names = shared.keys()
        opening = orjson.dumps(shared)[:-1]
        starts: dict[tuple[int, str], bytes] = {}
        for record in scope_logs.log_records:
            members = self._members(record, origin, now_ns)
            severity = (record.severity_number, record.severity_text)
            start = starts.get(severity)
            if start is None:
                start = starts[severity] = self._start(opening, severity)
            # What a record says of itself counts more than what its resource says.
            if not start or self._is_special(members) or not names.isdisjoint(members):
                yield self._special(origin, {**shared, **self._severities.members(*severity), **members})
                continue
            entry = start + orjson.dumps(members)[1:]
            if len(entry) > MAX_LOG:
                entry = _cut({**shared, **self._severities.members(*severity), **members})
            yield entry

    def _start(self, opening: bytes, severity: tuple[int, str]) -> bytes:
        """How the logs of a scope with that severity begin; empty when such a log is an alert."""
        members = self._severities.members(*severity)
        if members["status"] in self._alert_statuses:
            return b""
        return b"%b,%b," % (opening, orjson.dumps(members)[1:-1])

    def _is_special(self, members: dict[str, Any]) -> bool:
        return "status" in members or members.get("otel.event_name") in self._diverted_kinds

    def _special(self, origin: Origin, log: dict[str, Any]) -> bytes | Diverted:
        """A log that is more than a log, or whose members are not simply its scope's and its own."""
        kind = log.get("otel.event_name")
        if kind in self._diverted_kinds:
            return Diverted(0, kind, origin, log)
        if log["status"] in self._alert_statuses:
            self._on_alert(origin, log)
        entry = orjson.dumps(log)
        return entry if len(entry) <= MAX_LOG else _cut(log)

    def _members(self, record: Any, origin: Origin, now_ns: int) -> dict[str, Any]:
        """What one record says of itself, but for its severity."""
        attributes: dict[str, Value] = record.attributes
        if record.is_flat and self._plain.issuperset(attributes):
            members: dict[str, Any] = attributes  # as they are: nearly always
        else:
            members = {}
            for key, value in attributes.items():
                if key in self._plain:
                    _put(members, key, value)
                else:
                    self._unfamiliar(members, key, value, origin)
        event_name = record.event_name
        if event_name:
            members["otel.event_name"] = event_name
        string = text_of(record.body) or event_name
        if "message" not in members:
            members["message"] = string
        elif string:
            members["otel.body"] = string
        self._put_time(members, record.time_unix_nano or record.observed_time_unix_nano, now_ns)
        if any(trace_id := record.trace_id):
            digits = members["otel.trace_id"] = trace_id.hex()
            members["dd.trace_id"] = _trace_id(digits)
        if span_number := int.from_bytes(span_id := record.span_id, "big"):
            members["dd.span_id"] = str(span_number)
            members["otel.span_id"] = span_id.hex()
        return members

    def _put_time(self, members: dict[str, Any], time_ns: int, now_ns: int) -> None:
        if not time_ns:
            return
        digits = members["otel.timestamp"] = str(time_ns)
        if time_ns < now_ns - MAX_AGE_NS:
            members[LATE] = True
            self._on_late()
            digits = str(now_ns)
        second = digits[:-9]
        if second != self._second:  # most records share their second with the one before
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(int(second or 0)))
        members["@timestamp"] = f"{self._second_text}{digits[-9:-6] or '000'}Z"

    def _unfamiliar(self, members: dict[str, Any], key: str, value: Value, origin: Origin) -> None:
        """An attribute whose name has a meaning for Datadog, or is met for the first time."""
        lower = key.lower()
        meaning = _MEANING.get(lower)
        if meaning is not None:
            _put_meaning(members, meaning, key, value, origin)
        elif key in _RENAMED:
            _put(members, _RENAMED[key], value)
        elif lower in _OWN:
            _put(members, f"attributes.{key}", value)
        else:
            _put(members, key, value)
            if len(self._plain) >= _MAX_NAMES:
                self._plain.clear()
            self._plain.add(key)


def _put_meaning(members: dict[str, Any], meaning: str, key: str, value: Value, origin: Origin) -> None:
    words = text_of(value)
    match meaning:
        case "message" if isinstance(value, str) and value and "message" not in members:
            members["message"] = words
        case "status" if status := status_of_word(words):
            members["status"] = status
        case "trace_id" if trace_id := parse_trace_id(words):
            digits = members["otel.trace_id"] = trace_id.hex()
            members["dd.trace_id"] = _trace_id(digits)
        case "span_id" if span_id := parse_span_id(words, decimal=key.lower().startswith("dd.")):
            members["dd.span_id"] = str(int.from_bytes(span_id, "big"))
            members["otel.span_id"] = span_id.hex()
        case "service" | "hostname":
            _stand_in(members, meaning, words, origin)
            members[key] = words
        case "ddtags":
            members["ddtags"] = ",".join(filter(None, (members.get("ddtags", ",".join(origin.tags)), words)))
        case "ddsource":
            members["ddsource"] = words
        case _ if key.lower() in _OWN:  # an HTTP status, say: it must not pass for a severity
            _put(members, f"attributes.{key}", value)
        case _ if meaning in {"message", "status"}:
            _put(members, key, value)


def _shared(origin: Origin, scope: Any) -> dict[str, Any]:
    """What all records of a scope say of their resource and scope."""
    attributes = {**origin.attributes, **texts(scope.attributes)}
    shared: dict[str, Any] = {
        f"otel.{key}" if key in _OWN else key: value for key, value in attributes.items() if value
    }
    if scope.name:
        shared["logger.name"] = scope.name
    if scope.version:
        shared["otel.scope.version"] = scope.version
    if origin.hostname:
        shared["hostname"] = origin.hostname
    if origin.service:
        shared["service"] = origin.service
    if origin.tags:
        shared["ddtags"] = ",".join(origin.tags)
    shared["ddsource"] = origin.attributes.get("datadog.log.source") or DEFAULT_SOURCE
    return shared


def _put(members: dict[str, Any], key: str, value: Value) -> None:
    members.update(flatten(key, json_of(value)))


def _trace_id(digits: str) -> str:
    """For `dd.trace_id`: in decimal where the upper 64 bits are zero, which is how Datadog's tracers write it too."""
    return str(int(digits, 16)) if digits.startswith(_NO_HIGH) else digits


def _stand_in(members: dict[str, Any], meaning: str, value: str, origin: Origin) -> None:
    """A record's own service or host, where its resource names none. It counts for this record and for no other."""
    if meaning == "hostname":
        if origin.host_is_assumed and value:
            members["hostname"] = value
    elif value and not origin.attributes.get("service.name"):
        members["service"] = value
        tags = members.get("ddtags", ",".join(origin.tags)).split(",")
        kept = [one for one in tags if one and not one.startswith("service:")]
        members["ddtags"] = ",".join([*kept, tag("service", value)])


def _cut(members: dict[str, Any]) -> bytes:
    """A log that is too long, with its longest members cut at a character, until it fits."""
    members[TRUNCATED] = True
    for _ in range(_MAX_CUTS):
        excess = len(orjson.dumps(members)) - MAX_LOG
        if excess <= 0:
            return orjson.dumps(members)
        sizes = {key: len(orjson.dumps(value)) for key, value in members.items()}
        longest = max(sizes, key=sizes.__getitem__)
        if sizes[longest] < _WORTH_CUTTING:
            break
        whole = text(members[longest]).encode()
        # JSON takes one to six bytes for a byte of text: as many as on average here; where that fails, once more.
        share = max(0, sizes[longest] - excess - _ROOM_FOR_MARK) / sizes[longest]
        members[longest] = whole[: int(len(whole) * share)].decode(errors="ignore") + _CUT
    # Thousands of attributes, none of them long.
    return orjson.dumps({key: members[key] for key in members if key in _OWN or key == TRUNCATED})


def divide(body: bytes, count: int) -> tuple[bytes, bytes]:
    """The body with the first `count` logs, and the body with the rest."""
    logs = orjson.loads(body)
    return orjson.dumps(logs[:count]), orjson.dumps(logs[count:])
