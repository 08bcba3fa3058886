"""The attribute names that a TelemetryEvent may carry: the sender's 30 fields, and those of the converter itself.

They are the product's privacy promise (wire contract §1): what is not listed here never leaves the converter, and the
`telemetry_event` preset of the allowlist is made from them.
"""

from __future__ import annotations

from typing import Final

FIELD_KEYS: Final = frozenset(
    {
        "attempt",
        "backend",
        "billing_method",
        "component",
        "duration_ms",
        "endpoint",
        "error",
        "error_class",
        "exit_code",
        "handler",
        "hardware_chip",
        "last_error",
        "macos_version",
        "memory_gb",
        "model",
        "operation",
        "payment_failed",
        "provider_id",
        "queue_depth",
        "reason",
        "reconnect_count",
        "route",
        "runtime_component",
        "signal",
        "status_code",
        "target",
        "trust_level",
        "url",
        "user_agent",
        "ws_state",
    }
)
"""The keys of `fields` that pass."""

EVENT_ID: Final = "telemetry.event.id"
SOURCE: Final = "telemetry.source"
KIND: Final = "telemetry.kind"
REQUEST_ID: Final = "request.id"
SESSION_ID: Final = "session.id"
ACCOUNT_ID: Final = "account.id"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

ATTRIBUTE_KEYS: Final = frozenset(
    {
        EVENT_ID,
        SOURCE,
        KIND,
        REQUEST_ID,
        SESSION_ID,
        ACCOUNT_ID,
        EXCEPTION_TYPE,
        EXCEPTION_MESSAGE,
        EXCEPTION_STACKTRACE,
    }
)
"""What the converter itself writes on log records, spans and span events."""

SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
SERVICE_NAMESPACE: Final = "service.namespace"
HOST_ID: Final = "host.id"
ENVIRONMENT: Final = "deployment.environment.name"

RESOURCE_KEYS: Final = frozenset(
    {SERVICE_NAME, SERVICE_VERSION, SERVICE_INSTANCE_ID, SERVICE_NAMESPACE, HOST_ID, ENVIRONMENT}
)
"""What the converter writes on resources, and what an operator usually adds there."""
