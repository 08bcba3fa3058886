"""Judges pages in Prometheus's formats, more strictly than parsers do: what fails a scrape, or lies, is an error."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.utils import floatToGoString

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_QUOTED = r'"(?:[^"\\\n]|\\.)*"'
_PAIR = re.compile(rf"({_QUOTED}|[a-zA-Z_][a-zA-Z0-9_]*)=({_QUOTED})(?:,|$)", re.DOTALL)
_SAMPLE = re.compile(
    rf"""(?P<name>{_NAME})?(?:\{{(?P<inner>(?:[^"}}]|{_QUOTED})*)\}})?\ (?P<value>\S+)(?:\ (?P<time>[-0-9.]+))?"""
    rf"""(?:\ \#\ \{{(?P<labels>(?:[^"}}]|{_QUOTED})*)\}}\ (?P<measured>\S+)(?:\ (?P<at>[0-9.]+))?)?""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_SUFFIXES = {
    "counter": ("_total", "_created"),
    "histogram": ("_bucket", "_count", "_sum", "_created"),
    "summary": ("", "_count", "_sum", "_created"),
    "info": ("_info",),
}
_CLASSIC_SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("", "_count", "_sum")}

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Exemplar:
    """What stands behind the `#` of a sample."""

    labels: dict[str, str]
    value: float
    time: float | None


@dataclass
class Page:
    """A page that has been read. Samples by name and labels."""

    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)
    exemplars: dict[tuple[str, Labels], Exemplar] = field(default_factory=dict)
    times: dict[tuple[str, Labels], float] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name whose labels include these."""
        values = self.values(name, **labels)
        assert len(values) == 1, f"{len(values)} samples {name} {labels} in {sorted(map(str, self.samples))}"
        return values[0]

    def values(self, name: str, **labels: str) -> list[float]:
        """All samples of that name whose labels include these."""
        wanted = set(labels.items())
        return [value for (one, found), value in self.samples.items() if one == name and wanted <= found]

    def names(self) -> set[str]:
        """The names of all samples."""
        return {name for name, _ in self.samples}


def check(page: str | bytes) -> Page:
    """Read a page of text 0.0.4, 1.0.0 or OpenMetrics, and fail on whatever is wrong with it."""
    text = page.decode() if isinstance(page, bytes) else page
    openmetrics = text.endswith("# EOF\n")
    assert not text or text.endswith("\n"), "the last line is not ended"
    assert "\n\n" not in f"\n{text}" or not text, "an empty line"
    read = Page()
    closed: set[str] = set()
    family = ""
    for line in text.split("\n")[:-1]:
        if line == "# EOF":
            assert openmetrics, "EOF not at the end"
            continue
        name = _comment(line, read) if line.startswith("# ") else _sample(line, read, openmetrics=openmetrics)
        owner = name if line.startswith("# ") else _family_of(name, read, openmetrics=openmetrics)
        if owner != family:
            assert owner not in closed, f"{owner} is interrupted: {line}"
            closed.add(family)
            family = owner
    _check_distributions(read, openmetrics=openmetrics)
    _compare_with_client(text, read, openmetrics=openmetrics)
    return read


def _comment(line: str, read: Page) -> str:
    match = re.fullmatch(rf"# (HELP|TYPE|UNIT) ({_NAME}|{_QUOTED}) (.*)", line)
    assert match, f"no comment that a parser knows: {line}"
    name = _plain(match[2])
    table = {"HELP": read.helps, "TYPE": read.types, "UNIT": read.units}[match[1]]
    assert name not in table, f"{match[1]} of {name} twice"
    assert name not in read.seen, f"{match[1]} of {name} after its samples"
    table[name] = match[3]
    if match[1] == "UNIT":
        assert name.endswith(f"_{match[3]}"), f"{name} does not end with its unit {match[3]}"
    return name


def _sample(line: str, read: Page, *, openmetrics: bool) -> str:
    match = _SAMPLE.fullmatch(line)
    assert match, f"no sample that a parser knows: {line!r}"
    inner, name = match["inner"] or "", match["name"]
    if name is None:
        quoted = re.match(_QUOTED, inner)
        assert quoted, f"a sample without a name: {line}"
        name, inner = _plain(quoted[0]), inner[quoted.end() :].removeprefix(",")
    labels = _labels(inner)
    key = (name, frozenset(labels.items()))
    assert key not in read.samples, f"twice: {line}"
    read.samples[key] = _number(match["value"])
    if match["time"]:
        read.times[key] = float(match["time"]) if openmetrics else int(match["time"]) / 1000
    if match["measured"]:
        assert openmetrics, f"an exemplar outside OpenMetrics: {line}"
        shown = _labels(match["labels"])
        assert sum(len(one) + len(value) for one, value in shown.items()) <= 128, f"exemplar too long: {line}"
        read.exemplars[key] = Exemplar(shown, _number(match["measured"]), float(match["at"]) if match["at"] else None)
    return name


def _labels(inner: str) -> dict[str, str]:
    pairs = _PAIR.findall(inner)
    assert "".join(f"{name}={value}," for name, value in pairs).rstrip(",") == inner.rstrip(","), f"bad labels: {inner}"
    names = [_plain(name) for name, _ in pairs]
    assert len(set(names)) == len(names), f"a label twice: {inner}"
    assert not any(name.startswith("__") for name in names), f"a reserved label: {inner}"
    return {_plain(name): _plain(value) for name, value in pairs}


def _plain(text: str) -> str:
    if not text.startswith('"'):
        return text
    return re.sub(r'\\[\\"n]', lambda match: _ESCAPES[match[0]], text[1:-1])


def _number(text: str) -> float:
    assert re.fullmatch(r"[-+]?(\d+(\.\d*)?(e[-+]?\d+)?|Inf)|NaN", text), f"no number: {text}"
    return float(text)


def _family_of(sample: str, read: Page, *, openmetrics: bool) -> str:
    suffixes = _SUFFIXES if openmetrics else _CLASSIC_SUFFIXES
    for suffix in ("", "_total", "_created", "_bucket", "_count", "_sum", "_info"):
        family = sample.removesuffix(suffix)
        kind = read.types.get(family)
        if kind and sample == family + suffix and suffix in suffixes.get(kind, ("",)):
            read.seen.add(family)
            return family
    raise AssertionError(f"{sample} belongs to no family that has a TYPE")


def _check_distributions(read: Page, *, openmetrics: bool) -> None:
    for family, kind in read.types.items():
        if kind == "histogram":
            _check_histogram(family, read, openmetrics=openmetrics)
        if kind == "counter":
            for (name, labels), value in read.samples.items():
                if name in {family, f"{family}_total"}:
                    assert value >= 0, f"{name} {dict(labels)} is {value}"


def _check_histogram(family: str, read: Page, *, openmetrics: bool) -> None:
    series: dict[Labels, list[tuple[float, float, tuple[str, Labels]]]] = {}
    for (name, labels), value in read.samples.items():
        if name == f"{family}_bucket":
            bound = dict(labels)["le"]
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            series.setdefault(rest, []).append((float(bound), value, (name, labels)))
    assert series, f"{family} has no buckets"
    for rest, buckets in series.items():
        bounds = [bound for bound, _, _ in buckets]
        counts = [count for _, count, _ in buckets]
        assert bounds == sorted(set(bounds)), f"{family} bounds {bounds}"
        assert bounds[-1] == math.inf, f"{family} bounds {bounds}"
        assert counts == sorted(counts), f"{family} counts {counts}"
        count, total = (read.samples.get((f"{family}_{suffix}", rest)) for suffix in ("count", "sum"))
        assert count is None or count == counts[-1], f"{family} count {count}, +Inf {counts[-1]}"
        if openmetrics:
            assert (count is None) == (total is None), f"{family} has only one of sum and count"
        for (bound, _, key), below in zip(buckets, [-math.inf, *bounds], strict=False):
            exemplar = read.exemplars.get(key)
            assert exemplar is None or below < exemplar.value <= bound, f"{key} shows an exemplar of {exemplar}"
    names = {f"{family}_count", f"{family}_sum"}
    lone = [labels for name, labels in read.samples if name in names and labels not in series]
    assert not lone, f"{family} counts without buckets: {lone}"


def _compare_with_client(text: str, read: Page, *, openmetrics: bool) -> None:
    """The reference parser must read the same."""
    parse = (openmetrics_parser if openmetrics else text_parser).text_string_to_metric_families
    found = {}
    # It takes an escaped quote in an exemplar for the end of a label value (0.26).
    text = "\n".join(re.sub(r" # \{.*\\\".*", "", line, flags=re.DOTALL) for line in text.split("\n"))
    for family in parse(text):
        for sample in family.samples:
            name = sample.name
            if not openmetrics and family.type == "counter" and family.name in read.types:
                name = family.name  # it adds `_total` to counters that lack it
            key = (name, frozenset(sample.labels.items()))
            assert key not in found, f"twice: {sample}"
            found[key] = float(sample.value)
    assert same(found, read.samples), f"prometheus_client reads {found}, we read {read.samples}"


def same(one: dict[Any, float], other: dict[Any, float]) -> bool:
    """Whether two sets of samples are the same, with NaN equal to NaN."""
    return one.keys() == other.keys() and all(
        value == other[key] or (math.isnan(value) and math.isnan(other[key])) for key, value in one.items()
    )


def _schema() -> Any:
    """`io.prometheus.client.MetricFamily`, with the field numbers of its public definition."""
    field_type = descriptor_pb2.FieldDescriptorProto
    types = {
        "string": field_type.TYPE_STRING, "double": field_type.TYPE_DOUBLE, "uint64": field_type.TYPE_UINT64,
        "uint32": field_type.TYPE_UINT32, "int64": field_type.TYPE_INT64, "sint32": field_type.TYPE_SINT32,
        "sint64": field_type.TYPE_SINT64, "int32": field_type.TYPE_INT32,
    }  # fmt: skip
    messages = {
        "LabelPair": "name 1 string, value 2 string",
        "Gauge": "value 1 double",
        "Untyped": "value 1 double",
        "Counter": "value 1 double, exemplar 2 Exemplar, created_timestamp 3 google.protobuf.Timestamp",
        "Quantile": "quantile 1 double, value 2 double",
        "Summary": "sample_count 1 uint64, sample_sum 2 double, quantile 3 *Quantile, "
        "created_timestamp 4 google.protobuf.Timestamp",
        "Bucket": "cumulative_count 1 uint64, upper_bound 2 double, exemplar 3 Exemplar",
        "BucketSpan": "offset 1 sint32, length 2 uint32",
        "Exemplar": "label 1 *LabelPair, value 2 double, timestamp 3 google.protobuf.Timestamp",
        "Histogram": "sample_count 1 uint64, sample_sum 2 double, bucket 3 *Bucket, schema 5 sint32, "
        "zero_threshold 6 double, zero_count 7 uint64, negative_span 9 *BucketSpan, negative_delta 10 *sint64, "
        "positive_span 12 *BucketSpan, positive_delta 13 *sint64, created_timestamp 15 google.protobuf.Timestamp, "
        "exemplars 16 *Exemplar",
        "Metric": "label 1 *LabelPair, gauge 2 Gauge, counter 3 Counter, summary 4 Summary, untyped 5 Untyped, "
        "timestamp_ms 6 int64, histogram 7 Histogram",
        "MetricFamily": "name 1 string, help 2 string, type 3 int32, metric 4 *Metric, unit 5 string",
    }
    package = "io.prometheus.client"
    file = descriptor_pb2.FileDescriptorProto(
        name="metrics.proto", package=package, syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            field_name, number, kind = text.split()
            made = message.field.add(name=field_name, number=int(number), label=1 + 2 * kind.startswith("*"))
            kind = kind.removeprefix("*")
            if kind in types:
                made.type = types[kind]
            else:
                made.type = field_type.TYPE_MESSAGE
                made.type_name = f".{kind}" if "." in kind else f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.MetricFamily"))


METRIC_FAMILY = _schema()
_PROTOBUF_TYPES = ("counter", "gauge", "summary", "untyped", "histogram")


def metric_families(data: bytes) -> list[Any]:
    """The messages of a page in the protobuf format."""
    families = []
    while data:
        size, shift, position = 0, 0, 0
        while True:
            size |= (data[position] & 127) << shift
            shift += 7
            position += 1
            if data[position - 1] < 128:
                break
        families.append(METRIC_FAMILY.FromString(data[position : position + size]))
        data = data[position + size :]
    names = [family.name for family in families]
    assert len(set(names)) == len(names), f"a family twice: {names}"
    return families


def check_protobuf(data: bytes) -> Page:
    """Read a page in the protobuf format as Prometheus does: the same samples as of a text page."""
    read = Page()
    for family in metric_families(data):
        read.types[family.name] = _PROTOBUF_TYPES[family.type]
        read.helps[family.name] = family.help
        for metric in family.metric:
            names = [pair.name for pair in metric.label]
            assert len(set(names)) == len(names), f"a label twice: {names}"
            for name, more, value in _samples_of(family, metric):
                labels = {pair.name: pair.value for pair in metric.label} | more
                key = (name, frozenset(labels.items()))
                assert key not in read.samples, f"twice: {key}"
                read.samples[key] = value
    _check_distributions(read, openmetrics=False)
    return read


def _samples_of(family: Any, metric: Any) -> list[tuple[str, dict[str, str], float]]:
    name = family.name
    kind = _PROTOBUF_TYPES[family.type]
    if kind == "histogram":
        one = metric.histogram
        buckets = [
            (f"{name}_bucket", {"le": floatToGoString(bucket.upper_bound)}, bucket.cumulative_count)
            for bucket in one.bucket
        ]
        return [*buckets, (f"{name}_sum", {}, one.sample_sum), (f"{name}_count", {}, one.sample_count)]
    if kind == "summary":
        one = metric.summary
        quantiles = [(name, {"quantile": floatToGoString(each.quantile)}, each.value) for each in one.quantile]
        return [*quantiles, (f"{name}_sum", {}, one.sample_sum), (f"{name}_count", {}, one.sample_count)]
    return [(name, {}, getattr(metric, kind).value)]
