"""Attribute values of OTLP as what Datadog takes: JSON values, and text for tags and span tags."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from sidecar.reading import Value

# Below this a map is JSON text: Datadog's own mapping stops at the same depth.
MAX_DEPTH: Final = 10


def json_of(value: Value) -> Any:
    """A value as JSON has it: bytes in Base64, NaN and infinity as words, and an empty text for nothing."""
    if isinstance(value, dict):
        return {key: json_of(one) for key, one in value.items()}
    if isinstance(value, list):
        return [json_of(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "" if value is None else value


def text_of(value: Value) -> str:
    """A value as text: maps and arrays as JSON, booleans in lower case."""
    return value if isinstance(value, str) else text(json_of(value))


def text(value: Any) -> str:
    """A JSON value as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return orjson.dumps(value).decode()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def texts(attributes: Mapping[str, Value]) -> dict[str, str]:
    """Attributes as texts by name."""
    return {key: text_of(value) for key, value in attributes.items()}


def flatten(key: str, value: Any, depth: int = 1) -> Iterator[tuple[str, Any]]:
    """A JSON value with its maps taken apart: names joined by dots. An empty map gives nothing."""
    if not isinstance(value, dict):
        yield key, value
    elif depth >= MAX_DEPTH:
        yield key, text(value)
    else:
        for name, inner in value.items():
            yield from flatten(f"{key}.{name}", inner, depth + 1)
