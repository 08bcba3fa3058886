"""TelemetryEvent: the wire model, its limits, and its conversion to OTLP log records and spans."""
