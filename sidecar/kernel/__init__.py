"""Reads requests on the wire, without protobuf: a compiled module, and the tables by which it reads.

It is optional, and it never decides a case that is not ordinary: whoever asks it has a way with protobuf for the rest.
The tables are made from descriptors, so that they know what the installed OTLP knows.
"""

from __future__ import annotations

import enum
import importlib
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

if TYPE_CHECKING:
    from sidecar.kernel._kernel import Filter, Owner, Schema

_SWITCH: Final = "SIDECAR_KERNEL"


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get(_SWITCH) == "off":
        return None, f"{_SWITCH} is off"
    try:
        return importlib.import_module("sidecar.kernel._kernel"), ""
    except ModuleNotFoundError:
        return None, "it was not compiled when the sidecar was installed, or not for this Python"
    except ImportError as error:
        return None, f"it can't be loaded: {error}"


module, WHY_NOT = _load()
"""The compiled module; or None and the reason, for a log line."""

_MAX_NUMBER: Final = 31
_NO_LIMIT: Final = sys.maxsize


# The numbers of these three are those in walk.h and filter.h.
class Kind(enum.IntEnum):
    """How the value of a field is written."""

    BOOL = 1
    VARINT32 = 2
    VARINT64 = 3
    FIXED32 = 4
    FIXED64 = 5
    BYTES = 6
    STRING = 7
    MESSAGE = 8


class Role(enum.IntEnum):
    """What a field means beyond its kind, as explained in walk.h."""

    PLAIN = 0
    TRACE_ID = 1
    SPAN_ID = 2
    NOT_ZERO = 3
    RATIO = 4
    NOT_NEGATIVE = 5
    BOUNDS = 6
    COUNTS = 7
    ATTRIBUTES = 8
    BODY = 9
    TEXT = 10
    ARRAY = 11
    MAP = 12
    REFUSED = 13


class Body(enum.IntEnum):
    """What passes of bodies."""

    KEEP = 0
    STRING = 1
    DROP = 2


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a field is to whoever has a table made.

    Attributes:
        role: what it means.
        is_required: whether a message without it, or with it empty, is a doubt; of a oneof, without any of its fields.
        owner: whose attributes they are, from 0 to 2.
    """

    role: Role = Role.PLAIN
    is_required: bool = False
    owner: int = 0


_KINDS: Final[Mapping[int, Kind]] = {
    FieldDescriptor.TYPE_BOOL: Kind.BOOL,
    FieldDescriptor.TYPE_ENUM: Kind.VARINT32,
    FieldDescriptor.TYPE_INT32: Kind.VARINT32,
    FieldDescriptor.TYPE_SINT32: Kind.VARINT32,
    FieldDescriptor.TYPE_UINT32: Kind.VARINT32,
    FieldDescriptor.TYPE_INT64: Kind.VARINT64,
    FieldDescriptor.TYPE_SINT64: Kind.VARINT64,
    FieldDescriptor.TYPE_UINT64: Kind.VARINT64,
    FieldDescriptor.TYPE_FIXED32: Kind.FIXED32,
    FieldDescriptor.TYPE_SFIXED32: Kind.FIXED32,
    FieldDescriptor.TYPE_FLOAT: Kind.FIXED32,
    FieldDescriptor.TYPE_FIXED64: Kind.FIXED64,
    FieldDescriptor.TYPE_SFIXED64: Kind.FIXED64,
    FieldDescriptor.TYPE_DOUBLE: Kind.FIXED64,
    FieldDescriptor.TYPE_BYTES: Kind.BYTES,
    FieldDescriptor.TYPE_STRING: Kind.STRING,
    FieldDescriptor.TYPE_MESSAGE: Kind.MESSAGE,
}


def make_schema(
    request: Descriptor, meaning: Callable[[FieldDescriptor], Meaning], items: frozenset[str] = frozenset()
) -> Schema | None:
    """What the kernel reads a request by; None where there is no kernel, or where it has no way to write a field down.

    Args:
        request: the request's message.
        meaning: of each field of it, and of all that is below it.
        items: the full names of the messages to count.
    """
    if module is None:
        return None
    found = messages_of(request)
    numbers = {message.full_name: number for number, message in enumerate(found)}
    rows = []
    for message in found:
        if any(field.type not in _KINDS or field.number > _MAX_NUMBER for field in message.fields):
            return None  # a later OTLP
        rows.append(
            (message.full_name in items, tuple(_row(field, meaning(field), numbers) for field in message.fields))
        )
    schema: Schema = module.Schema(tuple(rows))
    return schema


def messages_of(request: Descriptor) -> list[Descriptor]:
    """A message and all that is below it, in the order in which the kernel numbers them."""
    found = {request.full_name: request}
    for message in (order := [request]):  # which grows meanwhile
        for field in message.fields:
            below = field.message_type
            if below is not None and below.full_name not in found:
                found[below.full_name] = below
                order.append(below)
    return order


def _row(field: FieldDescriptor, meaning: Meaning, numbers: Mapping[str, int]) -> tuple[int, ...]:
    kind = _KINDS[field.type]
    oneof = field.containing_oneof
    return (
        field.number,
        kind,
        meaning.role,
        meaning.owner,
        field.is_repeated and kind not in (Kind.BYTES, Kind.STRING, Kind.MESSAGE),
        not field.is_repeated or meaning.role in (Role.BOUNDS, Role.COUNTS),
        meaning.is_required,
        # The fields of a oneof exclude each other.
        (oneof.fields[0] if oneof is not None else field).number,
        -1 if field.message_type is None else numbers[field.message_type.full_name],
    )


@dataclass(frozen=True, slots=True)
class FilterRules:
    """What a filter does.

    Attributes:
        owners: the keys that pass and need no question, and the question about any other, for each owner by its number.
        stack: the key that `max_stack` holds for.
        max_body: bytes of a body that is a text; None is no limit.
        max_stack: the same for the text of a stack.
        max_value: the same for all other values.
        body: what passes of bodies.
        scalars_only: whether arrays are denied, whatever their key.
    """

    owners: Sequence[Owner]
    stack: str
    max_body: int | None
    max_stack: int | None
    max_value: int | None
    body: Body
    scalars_only: bool


def make_filter(
    request: Descriptor, meaning: Callable[[FieldDescriptor], Meaning], rules: FilterRules
) -> Filter | None:
    """A filter of requests; None where there is no kernel, or no schema for it."""
    schema = make_schema(request, meaning)
    if module is None or schema is None:
        return None
    made: Filter = module.Filter(
        schema,
        tuple(rules.owners),
        rules.stack.encode(),
        *(_NO_LIMIT if limit is None else limit for limit in (rules.max_body, rules.max_stack, rules.max_value)),
        rules.body,
        rules.scalars_only,
        secrets.randbits(64),  # of the hashes, so that nobody can choose keys that collide
    )
    return made
