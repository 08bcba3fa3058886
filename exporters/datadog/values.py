"""Attribute values of OTLP as what Datadog takes: JSON values, and text for tags and span tags."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

# Below this a map is JSON text: Datadog's own mapping stops at the same depth.
MAX_DEPTH: Final = 10


def value_of(value: Any) -> Any:
    """An AnyValue as a JSON value: maps as dict, arrays as list, bytes in Base64, NaN and infinity as words."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return {pair.key: value_of(pair.value) for pair in value.kvlist_value.values}
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    if kind == "double_value":
        return value.double_value if math.isfinite(value.double_value) else str(value.double_value)
    return getattr(value, kind) if kind else ""


def text_of(value: Any) -> str:
    """An AnyValue as text: maps and arrays as JSON, booleans in lower case."""
    return value.string_value or text(value_of(value))


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


def texts(attributes: Iterable[Any]) -> dict[str, str]:
    """Attributes as texts by name. Of a name that comes twice, which OTLP forbids, the last one counts."""
    return {attribute.key: text_of(attribute.value) for attribute in attributes}


def flatten(key: str, value: Any, depth: int = 1) -> Iterator[tuple[str, Any]]:
    """A JSON value with its maps taken apart: names joined by dots. An empty map gives nothing."""
    if not isinstance(value, dict):
        yield key, value
    elif depth >= MAX_DEPTH:
        yield key, text(value)
    else:
        for name, inner in value.items():
            yield from flatten(f"{key}.{name}", inner, depth + 1)
