"""Answers Datadog's tracers in the Agent's place: their spans and statistics become OTLP."""

from sidecar.receivers.datadog.receiver import DatadogReceiver, DatadogReceiverSettings

__all__ = ["DatadogReceiver", "DatadogReceiverSettings"]
