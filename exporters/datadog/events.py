"""Datadog's events and service checks: those that logs give rise to, and those that came as DogStatsD."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import orjson

from exporters.datadog.resource import Origin, tag
from exporters.datadog.values import text
from sidecar.events import datadog_keys as keys

MAX_TITLE: Final = 500
MAX_TEXT: Final = 4000
MAX_KEY: Final = 100
MAX_EVENT_AGE_NS: Final = 18 * 3600 * 10**9
MAX_CHECK_AGE_NS: Final = 600 * 10**9
_MAX_KEYS: Final = 10_000

_ALERT_TYPES: Final = {
    "warn": "warning",
    "error": "error",
    "critical": "error",
    "alert": "error",
    "fatal": "error",
    "emergency": "error",
}
# The first of each is what another word becomes: the intake refuses those that it does not know.
_SENT_ALERT_TYPES: Final = ("info", "success", "warning", "error")
_PRIORITIES: Final = ("normal", "low")
_CHECK_STATUSES: Final = (0, 1, 2, 3)
_UNKNOWN_CHECK: Final = 3
_STACK: Final = "error.stack"
_OPEN, _CLOSE = "%%% \n", "\n %%%"  # what lies between is read as Markdown
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")
_FENCE: Final = "\n```\n"


def event_of(origin: Origin, members: Mapping[str, Any]) -> dict[str, Any]:
    """The event for a log.

    Args:
        origin: whose log it is.
        members: the log as it goes to the logs intake.
    """
    source = text(members.get("telemetry.source") or origin.service)
    kind = text(members.get("telemetry.kind") or members.get("otel.event_name") or members.get("error.kind") or "")
    message = text(members["message"])
    title = ": ".join(filter(None, (" ".join(filter(None, (source, kind))), message.partition("\n")[0])))
    tags = [tag(name, value) for name, value in (("source", source), ("kind", kind)) if value]
    event: dict[str, Any] = {
        "title": _shorten(title or members["status"], MAX_TITLE),
        "text": _body(message, text(members.get(_STACK, "")), _trace(members)),
        "alert_type": _ALERT_TYPES.get(members["status"], "info"),
        "priority": "normal",
        "tags": [*tags, *(one for one in origin.tags if one not in tags)],
        "aggregation_key": _key(source, kind, title, origin.env),
    }
    if members.get("hostname"):
        event["host"] = members["hostname"]
    return event


def sent_event_of(members: Mapping[str, Any]) -> dict[str, Any]:
    """An event that a DogStatsD client has sent.

    Args:
        members: the log that its record would be.
    """
    message = text(members["message"])
    event: dict[str, Any] = {
        "title": _shorten(text(members.get(keys.EVENT_TITLE) or message.partition("\n")[0]), MAX_TITLE),
        "text": _shorten(message, MAX_TEXT),
        "alert_type": _one_of(_SENT_ALERT_TYPES, members.get(keys.EVENT_ALERT_TYPE)),
        "priority": _one_of(_PRIORITIES, members.get(keys.EVENT_PRIORITY)),
        "tags": _tags(members),
    }
    if key := members.get(keys.EVENT_AGGREGATION_KEY):
        event["aggregation_key"] = text(key)[:MAX_KEY]
    if source := members.get(keys.EVENT_SOURCE_TYPE):
        event["source_type_name"] = text(source)
    if members.get("hostname"):
        event["host"] = members["hostname"]
    return event


def sent_check_of(members: Mapping[str, Any]) -> dict[str, Any]:
    """A service check that a DogStatsD client has sent. As `sent_event_of`."""
    status = members.get(keys.CHECK_STATUS)
    return {
        "check": text(members.get(keys.CHECK_NAME) or "unnamed"),
        "host_name": members.get("hostname", ""),
        "status": status if status in _CHECK_STATUSES else _UNKNOWN_CHECK,
        "tags": _tags(members),
        "message": text(members["message"]),
    }


def date_of(members: Mapping[str, Any], now_ns: int, max_age_ns: int = MAX_EVENT_AGE_NS) -> int | None:
    """When it happened, in Unix seconds; None where that is too long ago for the intake."""
    happened = int(members.get("otel.timestamp") or now_ns)
    return happened // 10**9 if happened >= now_ns - max_age_ns else None


def encode(event: Mapping[str, Any], left_out: int = 0) -> bytes:
    """The body of the one request that an event takes.

    Args:
        event: as `event_of` makes it, with its date.
        left_out: how many like it were not sent since the last one.
    """
    if not left_out:
        return orjson.dumps(event)
    note = f"({left_out} more like this one since the last event.)\n\n"
    inner = event["text"].removeprefix(_OPEN)
    return orjson.dumps({**event, "text": _OPEN + note + inner})


def _one_of(known: tuple[str, ...], word: object) -> str:
    return word if isinstance(word, str) and word in known else known[0]


def _tags(members: Mapping[str, Any]) -> list[str]:
    return [one for one in text(members.get("ddtags", "")).split(",") if one]


def _body(message: str, stack: str, trace: str) -> str:
    frame = len(_OPEN) + len(_CLOSE) + 80  # room for the note about what was left out
    foot = f"\n\n{trace}" if trace else ""
    room = MAX_TEXT - frame - len(foot)
    if not stack:
        return f"{_OPEN}{_shorten(message, room)}{foot}{_CLOSE}"
    head = _shorten(message, room // 2)
    block = _shorten(stack.strip("\n").replace("```", "'''"), room - len(head) - 2 * len(_FENCE))
    return f"{_OPEN}{head}\n{_FENCE}{block}{_FENCE}{foot}{_CLOSE}"


def _trace(members: Mapping[str, Any]) -> str:
    trace_id = members.get("otel.trace_id")
    return f"trace_id: {trace_id}" if trace_id else ""


def _key(*parts: str) -> str:
    """The same for what differs in numbers alone, such as an address or a duration."""
    return hashlib.sha256(_NUMBER.sub("#", "\0".join(parts)).encode()).hexdigest()[:32]


def _shorten(words: str, length: int) -> str:
    return words if len(words) <= length else words[: length - 1] + "…"


class Deduplicator:
    """Lets the first event of a key pass, and counts the others until its window is over. At most 10,000 keys."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._seen: OrderedDict[str, list[float]] = OrderedDict()  # key -> [start of its window, left out since]

    def admit(self, key: str, now: float) -> int | None:
        """How many were left out before this one, which is to be sent; None when it is to be left out.

        Args:
            key: the event's aggregation key.
            now: monotonic seconds.
        """
        entry = self._seen.get(key)
        if entry is not None and now - entry[0] < self._window:
            entry[1] += 1
            return None
        self._seen[key] = [now, 0]
        self._seen.move_to_end(key)
        if len(self._seen) > _MAX_KEYS:
            self._seen.popitem(last=False)
        return int(entry[1]) if entry else 0


class Bucket:
    """A token bucket that holds what one minute brings (or one token, where that is less)."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._capacity = max(1.0, rate * 60)
        self._tokens = self._capacity
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Whether there was a token. `now`: monotonic seconds."""
        if self._at is not None:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
