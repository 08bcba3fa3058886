"""Hypothesis strategies for OTLP messages, made from the protobuf descriptors: no field is forgotten, now or later."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from sidecar.signals import SCHEMAS, Signal

# Of the ways to be NaN only one has a name in JSON.
_DOUBLES = st.floats(allow_nan=False) | st.just(math.nan)

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=20) | st.binary(min_size=16, max_size=16),
    FieldDescriptor.TYPE_DOUBLE: _DOUBLES,
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32, allow_nan=False) | st.just(math.nan),
    FieldDescriptor.TYPE_STRING: st.text(max_size=200),
}


def requests(signal: Signal) -> st.SearchStrategy[Any]:
    """Export requests of one signal. What OTLP asks beyond the schema does not hold in them: ids have any length."""
    return messages(SCHEMAS[signal].request)


def messages(message_type: type[Message]) -> st.SearchStrategy[Any]:
    """Messages of one type with any fields set to anything, nested values included."""
    return _messages(message_type.DESCRIPTOR, ())


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with some of them changed, left out, repeated, put in or cut off."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(changed)))
        end = draw(st.integers(start, min(len(changed), start + 12)))
        with_what = {
            "change": st.binary(min_size=1, max_size=1),
            "drop": st.just(b""),
            "repeat": st.just(bytes(changed[start:end]) * 2),
            "insert": st.binary(max_size=12).map(bytes(changed[start:end]).__add__),
            "cut": st.just(b""),
        }
        how = draw(st.sampled_from(sorted(with_what)))
        end = {"change": start + 1, "cut": len(changed)}.get(how, end)
        changed[start:end] = draw(with_what[how])
    return bytes(changed)


@st.composite
def _messages(draw: st.DrawFn, descriptor: Descriptor, around: tuple[str, ...]) -> Message:
    # A message within its own kind, as AnyValue, may hold itself once more, so that the tree stays small.
    deep = around.count(descriptor.full_name) > 1
    fields = [field for field in descriptor.fields if not deep and draw(st.booleans())]
    around = (*around, descriptor.full_name)
    return GetMessageClass(descriptor)(**{field.name: draw(_values(field, around)) for field in fields})


@cache
def _values(field: FieldDescriptor, around: tuple[str, ...]) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        one = _messages(field.message_type, around)
    elif field.enum_type is not None:
        one = st.sampled_from([value.number for value in field.enum_type.values]) | _integers(32, signed=True)
    elif field.type in _SCALARS:
        one = _SCALARS[field.type]
    else:
        one = _integers(*_INTEGERS[field.cpp_type])
    return st.lists(one, min_size=1, max_size=3) if field.is_repeated else one


def _integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (32, True),
    FieldDescriptor.CPPTYPE_INT64: (64, True),
    FieldDescriptor.CPPTYPE_UINT32: (32, False),
    FieldDescriptor.CPPTYPE_UINT64: (64, False),
}
