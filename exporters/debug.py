"""Shows telemetry to a person, on the terminal: what arrives, while a pipeline is being set up."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber

from sidecar import SCHEMAS, Batch, Context, Exporter, SettingError, Settings, Signal

# What a terminal shows of one record in `normal`, and of one value in `detailed`, before it is cut.
_MAX_LINE: Final = 2000
_MAX_VALUE: Final = 4000
_SEVERITY: Final = SeverityNumber.DESCRIPTOR
_WORDS: Final = re.compile(r"(?<!^)(?=[A-Z])")


class DebugSettings(Settings):
    """Settings of `debug`, named as the Collector's are.

    `verbosity`: `basic` is a line per batch, `normal` a line per record, `detailed` everything. In each second the
    first `sampling_initial` batches of a signal are shown, and then every `sampling_thereafter`-th; 0 shows none of
    those. `use_internal_logger` writes to the sidecar's own log instead of stdout.
    """

    verbosity: Literal["basic", "normal", "detailed"] = "basic"
    sampling_initial: int = 2
    sampling_thereafter: int = 1
    use_internal_logger: bool = False

    def __post_init__(self) -> None:
        for name in ("sampling_initial", "sampling_thereafter"):
            if getattr(self, name) < 0:
                raise SettingError(f"{getattr(self, name)} is negative; write 0 or more", name)


class DebugExporter(Exporter[DebugSettings]):
    """Writes text. Whatever a record holds, a terminal gets only what it can print, and no line without an end."""

    deprecated_types = frozenset({"logging"})

    def __init__(self, settings: DebugSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._render = _RENDERERS[settings.verbosity]
        self._samplers = {signal: _Sampler(settings, context.clock.monotonic) for signal in Signal}

    async def export(self, batch: Batch) -> None:
        """Show a batch, unless sampling leaves it out. When nobody reads any more, that is no reason to refuse it."""
        if not self._samplers[batch.signal].takes():
            return
        text = "\n".join([_summary(batch), *self._render(batch)])
        if self.settings.use_internal_logger:
            self.context.logger.info("%s", text)
            return
        try:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        except (OSError, ValueError) as error:
            self.context.dropped(batch.signal, "output_closed", len(batch))
            self.context.health.degraded(f"can't write to stdout: {error}")
        else:
            self.context.health.ok()


class _Sampler:
    """Lets the first batches of each second through, and then one in many."""

    def __init__(self, settings: DebugSettings, monotonic: Callable[[], float]) -> None:
        self._initial = settings.sampling_initial
        self._thereafter = settings.sampling_thereafter
        self._monotonic = monotonic
        self._second = -1
        self._seen = 0

    def takes(self) -> bool:
        second = int(self._monotonic())
        if second != self._second:
            self._second, self._seen = second, 0
        self._seen += 1
        over = self._seen - self._initial
        return over <= 0 or (self._thereafter > 0 and over % self._thereafter == 0)


# A line per batch.


def _summary(batch: Batch) -> str:
    items = f"{SCHEMAS[batch.signal].items}={len(batch)}"
    return f"{batch.signal.value}: {items} resources={len(batch.resources())} bytes={len(batch.encode())}"


def _nothing(_batch: Batch) -> Iterator[str]:
    return iter(())


# A line per record.


def _lines(batch: Batch) -> Iterator[str]:
    schema = SCHEMAS[batch.signal]
    for resource in batch.resources():
        service = next((_text(a.value) for a in resource.resource.attributes if a.key == "service.name"), "-")
        for scope in getattr(resource, schema.scopes):
            for record in getattr(scope, schema.records):
                for parts in _LINES[batch.signal](record, service):
                    yield _cut(" ".join(parts), _MAX_LINE)


def _log_line(record: Any, service: str) -> Iterator[list[str]]:
    yield [
        _time(record.time_unix_nano or record.observed_time_unix_nano),
        _quoted(record.severity_text) if record.severity_text else _choice(_SEVERITY, record.severity_number),
        service,
        *([_quoted(record.event_name)] if record.event_name else []),
        _cut(_text(record.body), _MAX_LINE // 2),  # so that the ids after it are always seen
        *_ids(record),
        *_pairs(record.attributes),
    ]


def _span_line(span: Any, service: str) -> Iterator[list[str]]:
    yield [
        _time(span.start_time_unix_nano),
        "SPAN",
        service,
        _quoted(span.name),
        f"duration={(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6:g}ms",
        *(f"{field.name}={_scalar(field, value)}" for field, value in span.ListFields() if field.name == "kind"),
        *(f"status.{field.name}={_scalar(field, value)}" for field, value in span.status.ListFields()),
        *_ids(span),
        *_pairs(span.attributes),
    ]


def _metric_lines(metric: Any, service: str) -> Iterator[list[str]]:
    kind = metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points if kind else ():
        measured = (
            f"{'value' if field.name in {'as_int', 'as_double'} else field.name}={_scalar(field, value)}"
            for field, value in point.ListFields()
            if field.name in {"as_int", "as_double", "count", "sum", "min", "max"}
        )
        quantiles = (f"q{value.quantile:g}={value.value:g}" for value in getattr(point, "quantile_values", ()))
        unit = [f"unit={_quoted(metric.unit)}"] if metric.unit else []
        name = _quoted(metric.name)
        yield [
            _time(point.time_unix_nano),
            kind,
            service,
            name,
            *measured,
            *quantiles,
            *unit,
            *_pairs(point.attributes),
        ]


_LINES: Final[dict[Signal, Callable[[Any, str], Iterator[list[str]]]]] = {
    Signal.LOGS: _log_line,
    Signal.TRACES: _span_line,
    Signal.METRICS: _metric_lines,
}


def _ids(record: Any) -> list[str]:
    names = ("trace_id", "span_id", "parent_span_id")
    return [f"{name}={getattr(record, name).hex()}" for name in names if getattr(record, name, b"")]


def _pairs(attributes: Iterable[Any]) -> Iterator[str]:
    return (f"{_quoted(attribute.key)}={_text(attribute.value)}" for attribute in attributes)


# Everything, as a tree: walked by the schema, so that no field is forgotten.


def _tree(batch: Batch) -> Iterator[str]:
    return _branches(batch.message, "")


def _branches(message: Message, indent: str) -> Iterator[str]:
    for field, value in message.ListFields():
        if field.message_type is None:
            values = value if field.is_repeated else [value]
            text = ", ".join(_scalar(field, one) for one in values)
            yield f"{indent}{field.name}={f'[{text}]' if field.is_repeated else text}"
        elif field.message_type.name == "AnyValue":
            yield f"{indent}{field.name}={_text(value)}"
        elif field.message_type.name == "KeyValue":
            yield f"{indent}{field.name}:"
            yield from (f"{indent}  {pair}" for pair in _pairs(value))
        else:
            for index, one in enumerate(value if field.is_repeated else [value]):
                yield f"{indent}{f'{field.message_type.name} #{index}' if field.is_repeated else f'{field.name}:'}"
                yield from _branches(one, f"{indent}  ")


_RENDERERS: Final[dict[str, Callable[[Batch], Iterator[str]]]] = {
    "basic": _nothing,
    "normal": _lines,
    "detailed": _tree,
}


# Values.


def _scalar(field: FieldDescriptor, value: Any) -> str:
    if field.enum_type is not None:
        return _choice(field.enum_type, value)
    if field.name.endswith("time_unix_nano"):
        return _time(value)
    if isinstance(value, bytes):
        return value.hex()
    return _quoted(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _text(value: Any) -> str:
    """An AnyValue."""
    plain = _plain(value)
    return _quoted(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False))


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    held = getattr(value, kind)
    if kind == "array_value":
        return [_plain(one) for one in held.values]
    if kind == "kvlist_value":
        return {pair.key: _plain(pair.value) for pair in held.values}
    return held.hex() if isinstance(held, bytes) else held


def _quoted(text: str) -> str:
    """As it is where that is one plain word; else in quotes, and what a terminal would obey is made visible."""
    text = _cut(text, _MAX_VALUE)
    if text and text.isprintable() and not any(char in text for char in ' "='):
        return text
    inside = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else repr(char)[1:-1] for char in inside) + '"'


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def _time(nanoseconds: int) -> str:
    if not nanoseconds:
        return "-"
    seconds, fraction = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def _choice(enum: EnumDescriptor, number: int) -> str:
    """An enum's value without the prefix that all its values share: `SPAN_KIND_SERVER` is `SERVER`."""
    known = enum.values_by_number.get(number)
    return known.name.removeprefix(f"{_WORDS.sub('_', enum.name).upper()}_") if known else str(number)
