"""Keeps each caller to its rate, so that one noisy sender costs the others nothing."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from sidecar import (
    SCHEMAS,
    Batch,
    BatchContext,
    Context,
    Processor,
    Rate,
    RateLimited,
    SettingError,
    Settings,
    Signal,
    Size,
)

_KINDS: Final = frozenset({"resource", "attribute", "metadata"})
_FORMS: Final = "identity, client_address, resource.<key>, attribute.<key> or metadata.<header>"
_JOINT: Final = "|"
# Longer keys are told apart by their hash: senders choose what stands in attributes, and must not fill the memory.
_MAX_KEY_LENGTH: Final = 256
# Clocks and sums of fractions are not exact: what is missing by less than this is not missing.
_TOLERANCE: Final = 1e-6


class BucketSettings(Settings):
    """Who shares a bucket, how fast it fills, and how much it holds. Their meanings are `RateLimitSettings`'."""

    key: tuple[str, ...]
    rate: Rate
    burst: Size

    def __post_init__(self) -> None:
        for index, part in enumerate(self.key):
            kind, _, name = part.partition(".")
            if part not in {"identity", "client_address"} and not (kind in _KINDS and name):
                raise SettingError(f"{part!r} is no part of a key; write {_FORMS}", "key", index)
        if self.burst < 1:
            raise SettingError("0 lets nothing pass; write at least 1", "burst")


class AnonymousSettings(BucketSettings):
    """The limit of callers without an identity.

    Attributes:
        key: as outside, but without `identity`.
        rate: how fast a bucket fills.
        burst: how much it holds.
    """

    key: tuple[str, ...] = ("client_address",)
    rate: Rate = Rate("10/m")
    burst: Size = Size(30)

    def __post_init__(self) -> None:
        super().__post_init__()
        if "identity" in self.key:
            raise SettingError("an anonymous caller has no identity; write for example client_address", "key")


class OverrideSettings(Settings):
    """Another limit for some keys.

    Attributes:
        match: the keys: `*` stands for any characters, `?` for one. They are `machine:…`, `account:…` or the kind and
            the name of an identity, and `anonymous:…` of a caller without one.
        rate: how fast their buckets fill.
        burst: how much they hold; 0 lets nothing pass.
    """

    match: str
    rate: Rate
    burst: Size


class RateLimitSettings(BucketSettings):
    """What may come in how fast.

    Attributes:
        key: who shares a bucket: `identity`, `client_address`, `resource.<key>`, `attribute.<key>`,
            `metadata.<header>`; several are joined by `|`.
        rate: how fast a bucket fills.
        burst: how much it holds.
        anonymous: the limit of callers without an identity, where `key` asks for one.
        unit: what is taken out: `items` (log records, spans, data points), `bytes` or `requests`.
        on_exceeded: `reject` the whole batch, so that its sender waits and sends it again, or `drop` what is too much.
        overrides: limits for some keys; the first that matches holds.
        max_keys: so many buckets are kept; the least recently used is forgotten first, and with it what it had used up.
        storage: where the buckets are.
    """

    key: tuple[str, ...] = ("identity",)
    rate: Rate = Rate("100/m")
    burst: Size = Size(200)
    anonymous: AnonymousSettings = AnonymousSettings()
    unit: Literal["items", "bytes", "requests"] = "items"
    on_exceeded: Literal["reject", "drop"] = "reject"
    overrides: tuple[OverrideSettings, ...] = ()
    max_keys: int = 100_000
    storage: Literal["memory"] = "memory"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_keys < 1:
            raise SettingError(f"{self.max_keys} is too small; write at least 1", "max_keys")


class RateLimit(Processor[RateLimitSettings]):
    """Passes what is within the rate of its key, and refuses or drops the rest.

    A batch that does not fit is refused whole, and takes nothing. Where the key has an `attribute` or a `resource`, one
    batch may hold several keys: `reject` refuses it when one of them is over, and takes nothing from any; `drop` drops
    the items of those that are over. Unless the key or the unit asks for it, no batch is decoded.

    Attributes:
        buckets: what each key has used up. A reload keeps them.
    """

    mutates = False
    drop_reason: ClassVar[str] = "rate_limited"

    def __init__(self, settings: RateLimitSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.buckets = Buckets(settings.max_keys)
        anonymous = settings.anonymous
        self._known = Key("", settings.key, Limit(settings.rate, settings.burst))
        self._anonymous = Key("anonymous:", anonymous.key, Limit(anonymous.rate, anonymous.burst))
        self._by_identity = "identity" in settings.key
        self._overrides = [(re.compile(translate(one.match)), Limit(one.rate, one.burst)) for one in settings.overrides]

    def carry(self, old: Self) -> None:
        """Let nobody start afresh because the document was reloaded."""
        self.buckets = old.buckets
        self.buckets.max_keys = self.settings.max_keys

    def process(self, batch: Batch) -> Batch | None:
        """The batch, or what is left of it.

        Raises:
            RateLimited: it does not fit, with the seconds until it does.
        """
        key = self._anonymous if self._by_identity and batch.context.identity is None else self._known
        costs = self._costs(batch, key)
        now = self.context.clock.monotonic()
        limits = {name: self._limit(name, key.limit) for name in costs}
        waits = {name: self.buckets.wait(name, cost, limits[name], now) for name, cost in costs.items()}
        over = {name for name, wait in waits.items() if wait > 0}
        if over and self.settings.on_exceeded == "reject":
            worst = max(over, key=lambda name: waits[name])
            raise self._refusal(costs[worst], limits[worst], waits[worst])
        for name in costs.keys() - over:
            self.buckets.take(name, costs[name], limits[name], now)
        if len(over) == len(costs):
            return None if over else batch
        return _without(batch, key, over) if over else batch

    def _costs(self, batch: Batch, key: Key) -> Mapping[str, int]:
        """What each key of the batch is to pay."""
        unit = self.settings.unit
        if key.of_batch:
            cost = len(batch) if unit == "items" else len(batch.encode()) if unit == "bytes" else 1
            return {key.name(batch.context): cost} if cost else {}
        costs: Counter[str] = Counter()
        for resource, items in _lists(batch):
            for item in items:
                name = key.name(batch.context, resource, item)
                costs[name] += item.ByteSize() if unit == "bytes" else 1
        return dict.fromkeys(costs, 1) if unit == "requests" else costs

    def _limit(self, name: str, default: Limit) -> Limit:
        return next((limit for pattern, limit in self._overrides if pattern.match(name)), default)

    def _refusal(self, cost: int, limit: Limit, wait: float) -> RateLimited:
        unit = self.settings.unit
        if cost > limit.burst:
            text = f"{cost} {unit} at once are more than the burst of {limit.burst} and never fit; send fewer at a time"
        else:
            text = f"over the rate of {limit.rate} {unit}; send it again in {wait:.1f} s"
        return RateLimited(text, after=wait)


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate per second and what may come at once."""

    rate: Rate
    burst: int


class Buckets:
    """Token buckets by key, in one number each: the time at which the bucket is full again."""

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max_keys
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def wait(self, key: str, cost: int, limit: Limit, now: float) -> float:
        """Seconds until so much fits, 0 when it does; for what never fits, the time in which a bucket fills."""
        if cost > limit.burst:
            return max(limit.burst, 1) / limit.rate
        missing = max(self._full_at.get(key, now) - now, 0.0)
        wait = missing + (cost - limit.burst) / limit.rate
        return wait if wait > _TOLERANCE else 0.0

    def take(self, key: str, cost: int, limit: Limit, now: float) -> None:
        """Take it out."""
        self._full_at[key] = max(self._full_at.get(key, now), now) + cost / limit.rate
        self._full_at.move_to_end(key)
        while len(self._full_at) > self.max_keys:
            self._full_at.popitem(last=False)

    def __len__(self) -> int:
        return len(self._full_at)


# What one part of a key is, of a batch's context, a resource and an item.
Part: TypeAlias = Callable[[BatchContext, Any, Any], str]


class Key:
    """How the keys of one kind of caller are made, and their limit.

    Attributes:
        of_batch: whether a batch has only one, which its context tells.
    """

    def __init__(self, prefix: str, parts: tuple[str, ...], limit: Limit) -> None:
        self.limit = limit
        self.of_batch = not any(part.startswith(("resource.", "attribute.")) for part in parts)
        self._prefix = prefix
        self._parts = tuple(map(_part, parts))

    def name(self, context: BatchContext, resource: Any = None, item: Any = None) -> str:
        """The key of a batch, or of an item and its resource."""
        name = self._prefix + _JOINT.join([part(context, resource, item) for part in self._parts])
        if len(name) <= _MAX_KEY_LENGTH:
            return name
        return f"{name[:_MAX_KEY_LENGTH]}#{hashlib.sha256(name.encode()).hexdigest()}"


def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _part(text: str) -> Part:
    kind, _, name = text.partition(".")
    header = name.lower()
    parts: dict[str, Part] = {
        "identity": lambda context, _resource, _item: context.identity.key if context.identity else "",
        "client_address": lambda context, _resource, _item: context.peer,
        "metadata": lambda context, _resource, _item: context.metadata.get(header, ""),
        "resource": lambda _context, resource, _item: _attribute(resource.attributes, name),
        "attribute": lambda _context, _resource, item: _attribute(item.attributes, name),
    }
    return parts[kind]


def _attribute(attributes: Any, key: str) -> str:
    """An attribute as text; "" where there is none."""
    for pair in attributes:
        if pair.key == key:
            return _text(pair.value)
    return ""


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    content = getattr(value, kind) if kind else ""
    return str(content).lower() if isinstance(content, bool) else str(content)


def _lists(batch: Batch) -> Iterator[tuple[Any, Any]]:
    """Every list of items of a batch, with its resource."""
    schema = SCHEMAS[batch.signal]
    for envelope in batch.resources():
        for scope in getattr(envelope, schema.scopes):
            records = getattr(scope, schema.records)
            if batch.signal is not Signal.METRICS:
                yield envelope.resource, records
                continue
            for metric in records:
                kind = metric.WhichOneof("data")
                if kind:
                    yield envelope.resource, getattr(metric, kind).data_points


def _without(batch: Batch, key: Key, over: set[str]) -> Batch:
    """The batch without the items of those keys."""
    batch = batch.copy()
    batch.edit()
    for resource, items in _lists(batch):
        for index in range(len(items) - 1, -1, -1):
            if key.name(batch.context, resource, items[index]) in over:
                del items[index]
    return batch
