"""The text formats: 0.0.4 (and 1.0.0, which only adds quoted names) and OpenMetrics 1.0.

A page is made in chunks of about a millisecond, so that whoever sends it can let other work run in between. The speed
of a scrape is decided here: numbers are formatted in C, a chunk at a time, and a histogram is filled into one template
per family and set of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from typing import Any, ClassVar, Final

import orjson

from exporters.prometheus.exemplars import Exemplar, shown_labels
from exporters.prometheus.labels import ESCAPED, quote, written
from exporters.prometheus.names import is_legal
from exporters.prometheus.series import Counter, Gauge, Histogram, Series, Summary
from exporters.prometheus.slices import slices
from exporters.prometheus.store import Family

_HELP_ESCAPED: Final = {code: text for code, text in ESCAPED.items() if code != ord('"')}
# Characters per chunk.
_CHUNK: Final = 256 * 1024
# Stand for the labels and the timestamp in a template: no name holds NUL once it is quoted.
_LABELS: Final = "\0"
_STAMP: Final = "\0\0"


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What a page shows beside names, labels and values."""

    timestamps: bool = False
    created: bool = False


class TextFormat:
    """Text 0.0.4 and 1.0.0."""

    types: ClassVar[dict[str, str]] = {"unknown": "untyped", "info": "gauge"}
    end: ClassVar[str] = ""

    def __init__(self, options: TextOptions = TextOptions()) -> None:
        self.options = options

    def render(self, families: Iterable[Family]) -> Iterator[bytes]:
        """The page in chunks. Series may come and go meanwhile: a chunk shows what is so when it is made."""
        buffer: list[str] = []
        size = 0
        for family in families:
            head = self.head(family)
            for some in slices(family):
                text = head + self.rows(family, some)
                head = ""
                buffer.append(text)
                size += len(text)
                if size > _CHUNK:
                    yield "".join(buffer).encode("utf-8", "replace")
                    buffer, size = [], 0
        buffer.append(self.end)
        yield "".join(buffer).encode("utf-8", "replace")

    def head(self, family: Family) -> str:
        """The comment lines of a family."""
        name = _metric_name(family.name)
        help_ = family.help.translate(_HELP_ESCAPED)
        return (
            f"# HELP {name} {help_}\n" if help_ else ""
        ) + f"# TYPE {name} {self.types.get(family.type, family.type)}\n"

    def rows(self, family: Family, some: Sequence[Any]) -> str:
        """The lines of some series of a family."""
        if family.type == "histogram":
            return self.histograms(family, some)
        if family.type == "summary":
            return "".join([self.summary(family, one) for one in some])
        before, alone = _opening(family.name, labelled=True), _sample(family.name, "")
        values = number_texts([one.value for one in some])
        return "".join(
            [
                f"{before}{one.labels}}} {value}{tail}\n" if one.labels else f"{alone} {value}{tail}\n"
                for one, value, tail in zip(some, values, self.tails(family, some), strict=False)
            ]
        )

    def tails(self, family: Family, some: Sequence[Gauge | Counter]) -> Iterable[str]:  # noqa: ARG002 (OpenMetrics')
        """What follows each value."""
        return [self.stamp(one) for one in some] if self.options.timestamps else repeat("")

    def stamp(self, series: Series) -> str:
        """The timestamp with the blank before it."""
        return f" {series.time // 1_000_000}" if self.options.timestamps and series.time else ""

    def histograms(self, family: Family, some: Sequence[Histogram]) -> str:
        """The lines of histograms."""
        templates: dict[tuple[object, ...], str] = {}
        out = []
        for one in some:
            totals = self.totals(one)
            key = (one.bounds, totals, bool(one.labels), bool(one.exemplars))
            template = templates.get(key)
            if template is None:
                template = templates[key] = self.template(family, one, totals)
            text = template % self.arguments(one, totals)
            if self.options.timestamps:
                text = text.replace(_STAMP, self.stamp(one))
            out.append(text.replace(_LABELS, one.labels) + self.created(family, one))
        return "".join(out)

    def template(self, family: Family, like: Histogram, totals: Sequence[str]) -> str:
        """A template for every histogram that has the same bounds and shows the same kinds of lines."""
        stamp = _STAMP if self.options.timestamps else ""
        tail = stamp + self.exemplar_slot(like)
        name = family.name.replace("%", "%%")
        labels = f"{_LABELS}," if like.labels else ""
        before = _opening(f"{name}_bucket", labelled=True)
        lines = [f'{before}{labels}le="{bound}"}} %d{tail}\n' for bound in [*map(bound_text, like.bounds), "+Inf"]]
        slot = _LABELS if like.labels else ""
        lines += [f"{_sample(f'{name}_{suffix}', slot)} %s{stamp}\n" for suffix in totals]
        return "".join(lines)

    def totals(self, one: Histogram) -> tuple[str, ...]:
        """Which lines follow the buckets, in their order."""
        return ("count",) if one.sum is None else ("sum", "count")

    def exemplar_slot(self, like: Histogram) -> str:  # noqa: ARG002 (OpenMetrics')
        """Where a bucket's exemplar goes in the template; "" for none."""
        return ""

    def arguments(self, one: Histogram, totals: tuple[str, ...]) -> tuple[object, ...]:
        """What the template is filled with."""
        return (*accumulate(one.counts), *self.total_texts(one, totals))

    def total_texts(self, one: Histogram | Summary, totals: tuple[str, ...]) -> list[str]:
        """The values of the lines that follow the buckets or quantiles."""
        return [number_text(one.count if which == "count" else one.sum or 0.0) for which in totals]

    def summary(self, family: Family, one: Summary) -> str:
        """The lines of a summary."""
        stamp = self.stamp(one)
        labels = f"{one.labels}," if one.labels else ""
        before = _opening(family.name, labelled=True)
        lines = [
            f'{before}{labels}quantile="{bound_text(rank)}"}} {number_text(value)}{stamp}\n'
            for rank, value in self.quantiles(one)
        ]
        totals = self.summary_totals(one)
        for suffix, value in zip(totals, self.total_texts(one, totals), strict=True):
            lines.append(f"{_sample(f'{family.name}_{suffix}', one.labels)} {value}{stamp}\n")
        return "".join(lines) + self.created(family, one)

    def quantiles(self, one: Summary) -> Sequence[tuple[float, float]]:
        """The quantiles that the format can show."""
        return one.quantiles

    def summary_totals(self, one: Summary) -> tuple[str, ...]:  # noqa: ARG002 (OpenMetrics')
        """Which lines follow the quantiles, in their order."""
        return ("sum", "count")

    def created(self, family: Family, one: Series) -> str:  # noqa: ARG002 (OpenMetrics')
        """The line that says from when on a series counts; "" for none."""
        return ""


class OpenMetricsFormat(TextFormat):
    """OpenMetrics 1.0.

    What it forbids is left out rather than written, since a parser may refuse the whole page for it: the sum and count
    of a histogram without a sum, with a negative one or with negative bounds, and negative quantiles.
    """

    types: ClassVar[dict[str, str]] = {}
    end: ClassVar[str] = "# EOF\n"

    def head(self, family: Family) -> str:
        """TYPE, UNIT, HELP. A counter whose name lacks `_total` can't be one here, and is `unknown`."""
        name = _metric_name(family.base)
        known = family.type != "counter" or family.name.endswith("_total")
        unit = f"# UNIT {name} {family.unit}\n" if family.unit and family.base.endswith(f"_{family.unit}") else ""
        help_ = family.help.translate(ESCAPED)
        described = f"# HELP {name} {help_}\n" if help_ else ""
        return f"# TYPE {name} {family.type if known else 'unknown'}\n{unit}{described}"

    def stamp(self, series: Series) -> str:
        """The timestamp with the blank before it."""
        return f" {seconds_text(series.time)}" if self.options.timestamps and series.time else ""

    def tails(self, family: Family, some: Sequence[Gauge | Counter]) -> Iterable[str]:
        """What follows each value: timestamp and exemplar, and of counters the created line too."""
        tails = super().tails(family, some)
        if family.type != "counter" or not family.name.endswith("_total"):
            return tails
        if not self.options.created and not any([one.exemplar for one in some]):  # type: ignore[union-attr]  # noqa: C419 (twice as fast)
            return tails
        lines = [exemplar_text(one.exemplar) + "\n" + self.created(family, one) for one in some]  # type: ignore[union-attr]
        return [tail + line[:-1] for tail, line in zip(tails, lines, strict=False)]

    def exemplar_slot(self, like: Histogram) -> str:
        """A slot after every bucket, where the histogram has exemplars."""
        return "%s" if like.exemplars else ""

    def arguments(self, one: Histogram, totals: tuple[str, ...]) -> tuple[object, ...]:
        """What the template is filled with: each bucket's count, followed by its exemplar if there are any."""
        if not one.exemplars:
            return super().arguments(one, totals)
        exemplars = [exemplar_text(one.exemplars.get(bucket)) for bucket in range(len(one.bounds) + 1)]
        return (
            *chain.from_iterable(zip(accumulate(one.counts), exemplars, strict=True)),
            *self.total_texts(one, totals),
        )

    def totals(self, one: Histogram) -> tuple[str, ...]:
        """Both or none."""
        shown = one.sum is not None and one.sum >= 0 and not (one.bounds and one.bounds[0] < 0)
        return ("count", "sum") if shown else ()

    def quantiles(self, one: Summary) -> Sequence[tuple[float, float]]:
        """Those that are not negative."""
        return [(rank, value) for rank, value in one.quantiles if not value < 0]

    def summary_totals(self, one: Summary) -> tuple[str, ...]:
        """The sum only where it is a number from 0 on."""
        return ("count", "sum") if one.sum is not None and one.sum >= 0 else ("count",)

    def created(self, family: Family, one: Series) -> str:
        """The `_created` line, where asked for."""
        if not self.options.created or not one.start:
            return ""
        return f"{_sample(f'{family.base}_created', one.labels)} {seconds_text(one.start)}{self.stamp(one)}\n"


def _metric_name(name: str) -> str:
    return name if is_legal(name, metric=True) else quote(name)


def _opening(name: str, *, labelled: bool) -> str:
    """The start of a sample up to its first label; a name outside the classic grammar stands between the braces."""
    if is_legal(name, metric=True):
        return f"{name}{{"
    return f"{{{quote(name)}," if labelled else f"{{{quote(name)}"


def _sample(name: str, labels: str) -> str:
    if labels:
        return f"{_opening(name, labelled=True)}{labels}}}"
    return name if is_legal(name, metric=True) else f"{{{quote(name)}}}"


def number_texts(values: Sequence[float]) -> list[str]:
    """Values as both formats read them."""
    try:
        joined = orjson.dumps(values).decode()[1:-1]
    except TypeError:  # a sum of integers that has left 64 bits
        return list(map(number_text, values))
    texts = joined.split(",")
    if "e" in joined or "n" in joined:
        # Exponents as Go writes them, and what JSON calls null.
        return [
            number_text(value) if "e" in text or text == "null" else text
            for text, value in zip(texts, values, strict=True)
        ]
    return texts


def number_text(value: float) -> str:
    """One value."""
    if isinstance(value, int) or math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def bound_text(value: float) -> str:
    """A bound or a quantile in OpenMetrics' canonical form, in every format, so that changing it changes no series."""
    text = number_text(float(value))
    whole, dot, fraction = text.partition(".")
    # Go changes to exponents from 1e+06 on, Python only from 1e+16.
    if dot and "e" not in text and len(whole.lstrip("-")) > 6:
        sign = "-" if whole.startswith("-") else ""
        digits = whole.lstrip("-")
        mantissa = f"{digits[0]}.{digits[1:]}{fraction}".rstrip("0").rstrip(".")
        return f"{sign}{mantissa}e+{len(digits) - 1:02d}"
    return text


def seconds_text(nanoseconds: int) -> str:
    """A time as seconds, exact and without exponent."""
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    return f"{seconds}.{fraction:09d}".rstrip("0").rstrip(".")


def exemplar_text(exemplar: Exemplar | None) -> str:
    """An exemplar with the blank before it; "" for none."""
    if exemplar is None:
        return ""
    time = f" {seconds_text(exemplar.time)}" if exemplar.time else ""
    return f" # {{{written(shown_labels(exemplar))}}} {number_text(exemplar.value)}{time}"
