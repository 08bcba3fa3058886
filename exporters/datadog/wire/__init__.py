"""The protobuf messages of Datadog's intakes."""
