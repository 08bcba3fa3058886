"""How what only Datadog knows travels through pipelines as OTLP. An exporter to Datadog makes of it what it was.

An event or a service check is a log record, and can be filtered, limited and sent anywhere as one. The body is the
text, the time is when it happened, the attribute `ddtags` holds its tags as Datadog writes them (`a:b,c`), and
`host.name` on the record its host.
"""

from __future__ import annotations

from typing import Final

EVENT: Final = "datadog.event"
"""The event name of a record that is an event."""
EVENT_TITLE: Final = "datadog.event.title"
EVENT_ALERT_TYPE: Final = "datadog.event.alert_type"
"""error, warning, info or success."""
EVENT_PRIORITY: Final = "datadog.event.priority"
"""normal or low."""
EVENT_AGGREGATION_KEY: Final = "datadog.event.aggregation_key"
EVENT_SOURCE_TYPE: Final = "datadog.event.source_type_name"

SERVICE_CHECK: Final = "datadog.service_check"
"""The event name of a record that is a service check. Its body is the check's message."""
CHECK_NAME: Final = "datadog.service_check.name"
CHECK_STATUS: Final = "datadog.service_check.status"
"""An integer: 0 OK, 1 warning, 2 critical, 3 unknown."""

TAGS: Final = "ddtags"
HOST: Final = "host.name"

CLIENT_STATS: Final = "datadog.client_stats"
"""The scope of metrics that one of Datadog's tracers has computed, and the scope's attribute (bytes) with its message.

The message is a ClientStatsPayload in MessagePack, as it came to `/v0.6/stats`, completed by what the request's headers
said of the tracer: an exporter to Datadog sends it on as it is, instead of the metrics, which are what other exporters
can use of it.
"""
DOGSTATSD: Final = "dogstatsd"
"""The scope of metrics that came as DogStatsD: their names are meant as they are."""

META_STRUCT: Final = "datadog.meta_struct."
"""Before the names of a span's attributes (bytes, MessagePack) that were its structured metadata, `meta_struct`."""
