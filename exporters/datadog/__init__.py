"""Datadog: each signal to the intake that Datadog has for it."""

from exporters.datadog.exporter import DatadogExporter

__all__ = ["DatadogExporter"]
