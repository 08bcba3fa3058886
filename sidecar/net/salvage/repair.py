"""Mend on the wire what keeps a request from being decoded, and leave out, alone, what can't be mended.

Protobuf's decoder refuses a whole request for one bad byte. Here it is asked again about ever smaller parts of the
request, for a run of some of a message's fields is a message too, until only the bad items are left. Those are walked
by their schema: text that is not UTF-8 is replaced, anything else costs the item.
"""

from __future__ import annotations

import enum
import functools
from collections import Counter
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    NumberDataPoint,
    SummaryDataPoint,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.net.wire import LENGTH_DELIMITED, BrokenFrame, Frame, delimited, frames, tag, wire_type
from sidecar.signals import SCHEMAS, Signal

MALFORMED: Final = "malformed"
TOO_DEEP: Final = "too_deep"
WRONG_TYPE: Final = "wrong_type"

_MAX_DEPTH: Final = 100
"""How many messages protobuf's decoder opens within each other."""

_MAX_FIELDS: Final = 1_000_000
"""How many fields of one request are looked at in Python, in a few seconds at most. A batch of 8,192 spans in which
every text is bad has fewer."""

ITEMS: Final = frozenset(
    item.DESCRIPTOR.full_name
    for item in (
        Span,
        LogRecord,
        NumberDataPoint,
        HistogramDataPoint,
        ExponentialHistogramDataPoint,
        SummaryDataPoint,
    )
)

# The fields of every request and of every resource's entry in it.
_RESOURCES: Final = 1
_SCOPES: Final = 2
_OLD_SCOPES: Final = 1000


class Unmendable(Exception):
    """A part of a request that can't be kept; the argument is the reason."""


class Exhausted(Unmendable):
    """More is broken than is worth looking at."""


class Repair:
    """The mending of one request.

    Attributes:
        rejected: items left out, by reason.
        repaired: what was mended in what was kept, by reason.
    """

    def __init__(self, signal: Signal) -> None:
        self.rejected: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self._request = SCHEMAS[signal].request
        self._fields_left = _MAX_FIELDS

    def mend(self, data: bytes) -> bytes:
        """The request without what keeps it from being decoded.

        Raises:
            Unmendable: it is broken around its items, or nearly everywhere.
        """
        return self._envelope(self._request.DESCRIPTOR, data, ())

    def move_old_scopes(self, data: bytes) -> bytes:
        """The request with its scopes where they belong: until OTLP 0.19 they were in field 1000 of a resource's entry.

        Where there are some in the right place too, nothing moves, as in the Collector. The messages look the same.

        Raises:
            Unmendable: it is broken around its scopes.
        """
        parts = []
        moved = 0
        for frame in self._frames(data):
            entry = data[frame.value : frame.end]
            fields = self._frames(entry) if frame.number == _RESOURCES and frame.kind == LENGTH_DELIMITED else []
            numbers = {field.number for field in fields}
            if _OLD_SCOPES in numbers and _SCOPES not in numbers:
                moved += 1
                parts.append(delimited(tag(_RESOURCES, LENGTH_DELIMITED), _renumbered(entry, fields)))
            else:
                parts.append(data[frame.start : frame.end])
        if moved:
            self.repaired["instrumentation_library"] += moved
        return b"".join(parts) if moved else data

    def _envelope(self, descriptor: Descriptor, data: bytes, outer: tuple[bytes, ...]) -> bytes:
        """Mend a message that holds items, somewhere below. `outer`: the tags of the messages around it."""
        fields = self._frames(data)
        schema = _schema(descriptor)
        if any(field.number in schema and field.kind not in schema[field.number].kinds for field in fields):
            raise Unmendable(WRONG_TYPE)
        kept = []
        runs = [(0, len(fields))]
        while runs:
            low, high = runs.pop()
            run = data[fields[low].start : fields[high - 1].end]
            if self._decodes(run, outer):
                kept.append(run)
            elif high - low > 1:
                middle = (low + high) // 2
                runs += (middle, high), (low, middle)
            else:
                kept.append(self._part(descriptor, fields[low], data, outer))
        return b"".join(kept)

    def _part(self, descriptor: Descriptor, frame: Frame, data: bytes, outer: tuple[bytes, ...]) -> bytes:
        """Mend one field of an envelope, which doesn't decode as it is; b"" when it had to be left out."""
        field = _schema(descriptor).get(frame.number)
        if field is None or frame.kind != LENGTH_DELIMITED or not field.head:
            raise Unmendable(MALFORMED)
        contents = data[frame.value : frame.end]
        try:
            if field.role is _Role.ENVELOPE and field.message is not None:
                return delimited(field.head, self._envelope(field.message, contents, (*outer, field.head)))
            mended = delimited(field.head, self._contents(field, contents, len(outer) + 1))
            if not self._decodes(mended, outer):
                raise Unmendable(MALFORMED)
        except Unmendable as error:
            if field.role is _Role.PART or (field.role is _Role.ENVELOPE and isinstance(error, Exhausted)):
                raise
            self.rejected[str(error)] += max(1, _count_items(field, contents))
            return b""
        return mended

    def _contents(self, field: _Field, contents: bytes, depth: int) -> bytes:
        """Mend the text, or the text anywhere in the message, that a field holds."""
        if field.message is not None:
            return self._message(field.message, contents, depth + 1)
        try:
            contents.decode()
        except UnicodeDecodeError:
            self.repaired["utf8"] += 1
            return contents.decode(errors="replace").encode()
        return contents

    def _message(self, descriptor: Descriptor, data: bytes, depth: int) -> bytes:
        if depth > _MAX_DEPTH:
            raise Unmendable(TOO_DEEP)
        schema = _schema(descriptor)
        parts = []
        for frame in self._frames(data):
            field = schema.get(frame.number)
            if field is None:
                parts.append(data[frame.start : frame.end])
                continue
            if frame.kind not in field.kinds:
                raise Unmendable(WRONG_TYPE)
            if field.head:
                parts.append(delimited(field.head, self._contents(field, data[frame.value : frame.end], depth)))
            else:
                parts.append(data[frame.start : frame.end])
        return b"".join(parts)

    def _frames(self, data: bytes) -> list[Frame]:
        found = []
        try:
            for frame in frames(data):
                found.append(frame)
                self._fields_left -= 1
                if self._fields_left < 0:
                    raise Exhausted(MALFORMED)
        except BrokenFrame:
            raise Unmendable(MALFORMED) from None
        return found

    def _decodes(self, fields: bytes, outer: tuple[bytes, ...]) -> bool:
        """Whether protobuf takes these fields where they stand: how deep that is counts too."""
        for head in reversed(outer):
            fields = delimited(head, fields)
        try:
            self._request.FromString(fields)
        except DecodeError:
            return False
        return True


class _Role(enum.Enum):
    """What a field is to the items of a request: one of them, around them, or neither."""

    ITEM = enum.auto()
    ENVELOPE = enum.auto()
    PART = enum.auto()


class _Field(NamedTuple):
    """What the walk needs to know of a field: asking the descriptor each time would take longer than the walk.

    Attributes:
        kinds: the wire types that it may come in.
        head: its tag when it is text or a message; empty for all else, which is kept as it is.
        message: the type of the message that it holds.
    """

    kinds: frozenset[int]
    head: bytes
    message: Descriptor | None
    role: _Role


@functools.cache
def _schema(descriptor: Descriptor) -> dict[int, _Field]:
    return {field.number: _known(field) for field in descriptor.fields}


def _known(field: FieldDescriptor) -> _Field:
    kinds = {wire_type(field), LENGTH_DELIMITED} if field.is_packed else {wire_type(field)}
    walked = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE)
    head = tag(field.number, LENGTH_DELIMITED) if walked else b""
    return _Field(frozenset(kinds), head, field.message_type, _role(field.message_type))


def _role(message: Descriptor | None, around: tuple[str, ...] = ()) -> _Role:
    if message is None or message.full_name in around:  # AnyValue holds itself
        return _Role.PART
    if message.full_name in ITEMS:
        return _Role.ITEM
    around = (*around, message.full_name)
    below = {_role(field.message_type, around) for field in message.fields}
    return _Role.ENVELOPE if below - {_Role.PART} else _Role.PART


def _count_items(field: _Field, data: bytes) -> int:
    """How many items there are in the contents of a field, up to where it is broken."""
    if field.role is _Role.ITEM:
        return 1
    count = 0
    schema = _schema(field.message) if field.message is not None else {}
    try:
        for frame in frames(data):
            below = schema.get(frame.number)
            if below is not None and below.role is not _Role.PART and frame.kind == LENGTH_DELIMITED:
                count += _count_items(below, data[frame.value : frame.end])
    except BrokenFrame:
        pass
    return count


def _renumbered(entry: bytes, fields: list[Frame]) -> bytes:
    head = tag(_SCOPES, LENGTH_DELIMITED)
    return b"".join(
        delimited(head, entry[field.value : field.end])
        if field.number == _OLD_SCOPES and field.kind == LENGTH_DELIMITED
        else entry[field.start : field.end]
        for field in fields
    )
