"""Keeps the attributes that are allowed and no other, wherever a key can hide, so that user content never leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

from google.protobuf.message import DecodeError

from processors.allowlist.places import places
from processors.allowlist.presets import Preset, attribute_keys, resource_keys
from processors.allowlist.rules import KeyRule
from processors.allowlist.scrub import STACKTRACE, Policy, Scrubber
from processors.allowlist.views import view
from processors.allowlist.wire import WireFilter
from sidecar import Batch, Context, Permanent, Processor, Secret, SettingError, Settings, Signal, Size
from sidecar.telemetry.health import HealthBoard
from sidecar.telemetry.metrics import Counter

# Names of denied keys become labels of a metric: as many as a person reads, and only what looks like a key.
_MAX_COUNTED_KEYS: Final = 100
_COUNTED_KEY: Final = re.compile(r"[A-Za-z0-9_.\-/]{1,64}")
_OTHER: Final = "other"
_WATCHED: Final = frozenset({STACKTRACE})


class AllowlistSettings(Settings):
    """Which attribute keys pass, and what becomes of the rest.

    Attributes:
        presets: lists of keys: `telemetry_event` (the fields of TelemetryEvents and what their conversion adds),
            `otel_semconv` (OpenTelemetry's registered keys, less those that carry user content), `datadog` (what
            Datadog's tracers and DogStatsD clients write beside those).
        attributes: more keys for log records, spans, span events, links, data points and exemplars, and for maps
            within values and bodies. `*` matches any run of characters.
        resource_attributes: keys for resources, instead of those of the presets.
        scope_attributes: keys for instrumentation scopes.
        on_denied: `drop` removes the attribute; `mask` and `hash` replace its value, by a fixed text or by its
            HMAC-SHA-256 with `hash_key`.
        hash_key: a long random text; equal values have equal hashes for whoever has the same key.
        values: `scalar` denies attributes whose value is a map or an array too.
        max_body_length: UTF-8 bytes of a log record's body; a longer one is cut and ends in `…`. null: no limit.
        max_stack_length: the same for `exception.stacktrace`.
        max_value_length: the same for the values of all other attributes.
        body: what passes of a log record's body: everything (`keep`; of a map the allowed keys), texts (`string`) or
            nothing (`drop`).
    """

    presets: tuple[Preset, ...] = ("telemetry_event", "otel_semconv")
    attributes: tuple[str, ...] = ()
    resource_attributes: tuple[str, ...] | None = None
    scope_attributes: tuple[str, ...] = ()
    on_denied: Literal["drop", "mask", "hash"] = "drop"
    hash_key: Secret = Secret()
    values: Literal["any", "scalar"] = "any"
    max_body_length: Size | None = Size(4096)
    max_stack_length: Size | None = Size("32KiB")
    max_value_length: Size | None = None
    body: Literal["keep", "drop", "string"] = "keep"

    def __post_init__(self) -> None:
        if self.on_denied == "hash" and not self.hash_key:
            raise SettingError(
                "is empty, and a hash without a key can be guessed; set it to a long random text", "hash_key"
            )


class Allowlist(Processor[AllowlistSettings]):
    """Passes every item, with the allowed keys alone.

    What leaves is made of what was checked alone: bytes that this version of OTLP does not know, or that a decoder
    passes over, never get through. The order of attributes means nothing, and may change.
    """

    mutates = False  # what it hands on is a new batch

    def __init__(self, settings: AllowlistSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._wire = _wire_filter(settings, context)
        self._scrubber = Scrubber(self._wire.policy)
        # The signals whose next request is taken for one with nested values; with a limit for each value, all of them.
        self._nested: set[Signal] = set() if settings.max_value_length is None else set(Signal)
        self._counters: dict[str, Counter] = {}
        self._cut = context.meter.counter("sidecar_allowlist_cut_values", "Values that were longer than allowed.")

    def process(self, batch: Batch) -> Batch:
        """The batch with what is allowed."""
        data = batch.encode()
        filtered = self._wire.filter(batch.signal, data)
        if filtered is not None:
            encoded, denied, cut = filtered
        else:
            try:
                encoded = self._scrubbed(batch.signal, data)
            except DecodeError as error:
                raise Permanent(f"not an OTLP {batch.signal.value} request: {error}") from None
            denied, cut = self._scrubber.take_counts()
        self._count(denied, cut)
        return Batch(batch.signal, encoded, context=batch.context, items=len(batch))

    def _scrubbed(self, signal: Signal, data: bytes) -> bytes:
        if signal not in self._nested:
            encoded = self._scrubbed_plain(signal, data)
            if encoded is not None:
                return encoded
        request = view(signal, nested=True).FromString(data)
        size = request.ByteSize()
        request.DiscardUnknownFields()
        if request.ByteSize() != size:
            # An entry of a map that holds more than a key and a value is discarded as a whole. One of a list is not.
            listed = view(signal, nested=True, maps=False).FromString(data)
            listed.DiscardUnknownFields()
            request = view(signal, nested=True).FromString(_encode(listed))
        self._scrubber.nested = self.settings.max_value_length is not None
        self._scrubber.scrub(request, places(signal, nested=True))
        # Senders rarely change their ways: what this request has needed, the next will need.
        (self._nested.add if self._scrubber.nested else self._nested.discard)(signal)
        return _encode(request)

    def _scrubbed_plain(self, signal: Signal, data: bytes) -> bytes | None:
        """The request as the plain view has it; None when that is not all of it."""
        request = view(signal, nested=False).FromString(data)
        size = request.ByteSize()
        request.DiscardUnknownFields()
        tasks = self._scrubber.tasks(request, places(signal, nested=False))
        encoded = b"" if tasks else _encode(request)
        # Not compared with the length of `data`: a sender may write more than is needed, or leave out a key or a value.
        if size != (request.ByteSize() if tasks else len(encoded)):
            return None
        for task in tasks:
            task()
        return _encode(request) if tasks else encoded

    def _count(self, denied: Mapping[str, int], cut: int) -> None:
        others = 0
        for key, times in denied.items():
            counter = self._counters.get(key)
            if counter is None and len(self._counters) < _MAX_COUNTED_KEYS and _COUNTED_KEY.fullmatch(key):
                counter = self._counters[key] = self._denied(key)
            if counter is None:
                others += times
            else:
                counter.add(times)
        if others:
            self._denied(_OTHER).add(others)
        self._cut.add(cut)

    def _denied(self, key: str) -> Counter:
        return self.context.meter.counter(
            "sidecar_allowlist_denied_attributes", "Attributes whose key is not allowed, by key.", key=key
        )


def _encode(request: Any) -> bytes:
    encoded: bytes = request.SerializeToString(deterministic=True)
    return encoded


# A component is made once per pipeline; what is known of keys is the same in all of them. The board is what all
# components of one process are given.
_shared: WeakKeyDictionary[HealthBoard, WeakValueDictionary[AllowlistSettings, WireFilter]] = WeakKeyDictionary()


def _wire_filter(settings: AllowlistSettings, context: Context) -> WireFilter:
    of_process = _shared.setdefault(context.board, WeakValueDictionary())
    found = of_process.get(settings)
    if found is None:
        found = of_process[settings] = WireFilter(_policy(settings))
    return found


def _policy(settings: AllowlistSettings) -> Policy:
    resource = settings.resource_attributes
    return Policy(
        rules={
            "record": KeyRule(attribute_keys(settings.presets).union(settings.attributes), _WATCHED),
            "resource": KeyRule(resource_keys(settings.presets) if resource is None else resource, _WATCHED),
            "scope": KeyRule(settings.scope_attributes, _WATCHED),
        },
        on_denied=settings.on_denied,
        hash_key=settings.hash_key,
        scalars_only=settings.values == "scalar",
        body=settings.body,
        max_body=settings.max_body_length,
        max_stack=settings.max_stack_length,
        max_value=settings.max_value_length,
    )
