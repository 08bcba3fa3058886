"""Events and service checks as log records, from which an exporter to Datadog makes what they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from sidecar.dogstatsd.lines import Event, ServiceCheck
from sidecar.dogstatsd.tags import Pairs, TagReader, Tags, key_values
from sidecar.events import datadog_keys as keys

_INFO, _WARN, _ERROR = (
    SeverityNumber.SEVERITY_NUMBER_INFO,
    SeverityNumber.SEVERITY_NUMBER_WARN,
    SeverityNumber.SEVERITY_NUMBER_ERROR,
)
_EVENT_SEVERITIES: Final = {b"error": _ERROR, b"warning": _WARN}
_CHECK_SEVERITIES: Final = (_INFO, _WARN, _ERROR, _WARN)


def records(
    received: Iterable[tuple[Event | ServiceCheck, int]], reader: TagReader
) -> tuple[ExportLogsServiceRequest, int]:
    """The request for what was received, each with its Unix time in nanoseconds, and the number of its records."""
    request = ExportLogsServiceRequest()
    by_resource: dict[Pairs, list[LogRecord]] = {}
    count = 0
    for one, at in received:
        tags = reader.read(one.tags, one.container)
        by_resource.setdefault(tags.resource, []).append(_record(one, at, tags))
        count += 1
    for resource, made in by_resource.items():
        resource_logs = request.resource_logs.add()
        resource_logs.resource.attributes.extend(key_values(resource))
        scope = resource_logs.scope_logs.add()
        scope.scope.name = keys.DOGSTATSD
        scope.log_records.extend(made)
    return request, count


def _record(one: Event | ServiceCheck, at: int, tags: Tags) -> LogRecord:
    record = LogRecord(time_unix_nano=one.second * 10**9 or at, observed_time_unix_nano=at)
    texts = _put_event(record, one) if isinstance(one, Event) else _put_check(record, one)
    texts[keys.TAGS] = ",".join(tags.written())
    texts[keys.HOST] = _text(one.host)
    record.attributes.extend(key_values(tuple((key, text) for key, text in texts.items() if text)))
    return record


def _put_event(record: LogRecord, event: Event) -> dict[str, str]:
    record.event_name = keys.EVENT
    record.severity_number = _EVENT_SEVERITIES.get(event.alert_type, _INFO)
    record.body.string_value = _text(event.text)
    return {
        keys.EVENT_TITLE: _text(event.title),
        keys.EVENT_ALERT_TYPE: _text(event.alert_type),
        keys.EVENT_PRIORITY: _text(event.priority),
        keys.EVENT_AGGREGATION_KEY: _text(event.aggregation_key),
        keys.EVENT_SOURCE_TYPE: _text(event.source),
    }


def _put_check(record: LogRecord, check: ServiceCheck) -> dict[str, str]:
    record.event_name = keys.SERVICE_CHECK
    record.severity_number = _CHECK_SEVERITIES[check.status]
    record.body.string_value = _text(check.message)
    record.attributes.add(key=keys.CHECK_STATUS).value.int_value = check.status
    return {keys.CHECK_NAME: _text(check.name)}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
