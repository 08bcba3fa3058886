"""OTLP/JSON to OTLP protobuf and back, by OTLP's own mapping: hex ids, integer enums, 64-bit integers as strings."""

from sidecar.net.otlp_json.read import Transcoded, decode, transcode
from sidecar.net.otlp_json.write import encode

__all__ = ["Transcoded", "decode", "encode", "transcode"]
