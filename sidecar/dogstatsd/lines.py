r"""One line of DogStatsD, protocol versions 1.0 to 1.5: pure, from bytes to what they mean.

    name:value[:value…]|c|@rate|#tag:value,tag|c:container|Tseconds|e:…|card:…
    _e{title bytes,text bytes}:title|text|d:seconds|h:host|k:key|p:priority|s:source|t:type|#tags|c:container
    _sc|name|status|d:seconds|h:host|#tags|m:message

Fields after the second are optional and in any order. Unknown ones are passed over, since later versions add some.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

_LAST_SECOND: Final = (1 << 63) // 10**9
_KINDS: Final = frozenset({b"c", b"g", b"h", b"ms", b"d", b"s"})
# Only these may say when (version 1.3).
_TIMED: Final = frozenset({b"c", b"g"})
_ALERT_TYPES: Final = frozenset({b"error", b"warning", b"info", b"success"})
_PRIORITIES: Final = frozenset({b"normal", b"low"})


class MalformedLine(ValueError):
    """A line that means nothing."""


class Sample(NamedTuple):
    """Values of one metric.

    Attributes:
        name: not empty; may be any bytes.
        kind: c, g, h, ms, d or s.
        numbers: finite; none for a set.
        member: of a set.
        rate: the share of values that were sent, over 0 and at most 1.
        tags, container: as they were sent.
        second: Unix time; 0 where it is not said.
    """

    name: bytes
    kind: bytes
    numbers: list[float]
    member: bytes = b""
    rate: float = 1.0
    tags: bytes = b""
    container: bytes = b""
    second: int = 0


@dataclass(slots=True)
class Event:
    """An event. `second` is 0 where it is not said."""

    title: bytes
    text: bytes
    second: int = 0
    host: bytes = b""
    aggregation_key: bytes = b""
    priority: bytes = b"normal"
    source: bytes = b""
    alert_type: bytes = b"info"
    tags: bytes = b""
    container: bytes = b""


@dataclass(slots=True)
class ServiceCheck:
    """A service check. `status`: 0 OK, 1 warning, 2 critical, 3 unknown."""

    name: bytes
    status: int
    second: int = 0
    host: bytes = b""
    tags: bytes = b""
    message: bytes = b""
    container: bytes = b""


Line: TypeAlias = Sample | Event | ServiceCheck


def parse(line: bytes) -> Line:
    """What a line without its end means.

    Raises:
        MalformedLine: nothing.
    """
    if line.startswith(b"_"):
        if line.startswith(b"_e{"):
            return _event(line)
        if line.startswith(b"_sc|"):
            return _service_check(line)
    fields = line.split(b"|")
    if len(fields) < 2:
        raise MalformedLine("no type")
    name, _, values = fields[0].partition(b":")
    kind = fields[1]
    if not name or kind not in _KINDS:
        raise MalformedLine("no name or no known type")
    rate, tags, container, second = 1.0, b"", b"", 0
    for field in fields[2:]:
        start = field[:1]
        if start == b"#":
            tags = field[1:]
        elif start == b"@":
            rate = _rate(field[1:])
        elif start == b"c" and field[1:2] == b":":
            container = field[2:]
        elif start == b"T" and kind in _TIMED:
            second = _second(field[1:])
    if kind == b"s":
        if not values:
            raise MalformedLine("no value")
        return Sample(name, kind, [], values, rate, tags, container)
    return Sample(name, kind, _numbers(values), b"", rate, tags, container, second)


def _numbers(text: bytes) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(b":") if part]
    except ValueError:
        raise MalformedLine("not a number") from None
    if not numbers or not all(map(math.isfinite, numbers)):
        raise MalformedLine("no finite number")
    return numbers


def _rate(text: bytes) -> float:
    try:
        rate = float(text)
    except ValueError:
        raise MalformedLine("not a rate") from None
    if not rate > 0:
        raise MalformedLine("not a rate")
    return min(rate, 1.0)


def _second(text: bytes) -> int:
    try:
        second = int(text)
    except ValueError:
        raise MalformedLine("not a time") from None
    if not 0 < second < _LAST_SECOND:
        raise MalformedLine("not a time")
    return second


def _event(line: bytes) -> Event:
    sizes, closed, rest = line[3:].partition(b"}:")
    title_size, _, text_size = sizes.partition(b",")
    if not closed or not title_size.isdigit() or not text_size.isdigit() or len(sizes) > 20:
        raise MalformedLine("no sizes of title and text")
    end = int(title_size)
    last = end + 1 + int(text_size)
    if not end or rest[end : end + 1] != b"|" or len(rest) < last or rest[last : last + 1] not in {b"", b"|"}:
        raise MalformedLine("title and text are not as long as said")
    event = Event(_unescaped(rest[:end]), _unescaped(rest[end + 1 : last]))
    for field in rest[last + 1 :].split(b"|"):
        _put_on_event(event, field)
    return event


def _put_on_event(event: Event, field: bytes) -> None:
    """Keep an optional field. One that is wrong costs only itself."""
    start, value = field[:2], field[2:]
    if field[:1] == b"#":
        event.tags = field[1:]
    elif start == b"d:":
        event.second = _second_or_none(value)
    elif start == b"h:":
        event.host = value
    elif start == b"k:":
        event.aggregation_key = value
    elif start == b"s:":
        event.source = value
    elif start == b"c:":
        event.container = value
    elif start == b"p:" and value in _PRIORITIES:
        event.priority = value
    elif start == b"t:" and value in _ALERT_TYPES:
        event.alert_type = value


def _service_check(line: bytes) -> ServiceCheck:
    # The message is the last field, and may hold anything.
    line, _, message = line.partition(b"|m:")
    fields = line.split(b"|")
    if len(fields) < 3 or not fields[1] or fields[2] not in {b"0", b"1", b"2", b"3"}:
        raise MalformedLine("no name or no status from 0 to 3")
    check = ServiceCheck(fields[1], int(fields[2]), message=_unescaped(message.replace(b"m\\:", b"m:")))
    for field in fields[3:]:
        start, value = field[:2], field[2:]
        if field[:1] == b"#":
            check.tags = field[1:]
        elif start == b"d:":
            check.second = _second_or_none(value)
        elif start == b"h:":
            check.host = value
        elif start == b"c:":
            check.container = value
    return check


def _second_or_none(text: bytes) -> int:
    try:
        return _second(text)
    except MalformedLine:
        return 0


def _unescaped(text: bytes) -> bytes:
    return text.replace(b"\\n", b"\n")
