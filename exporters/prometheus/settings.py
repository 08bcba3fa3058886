"""What a user writes below `prometheus`: the Collector's names, and our own for what it does not have."""

from __future__ import annotations

import operator
from typing import Annotated, Final, Literal

import msgspec

from config import Duration, Endpoint, SettingError, Settings
from config.settings import Ignored
from exporters.prometheus.labels import Selection
from exporters.prometheus.names import LEGAL_LABEL, Strategy
from sidecar.callers import AuthSettings
from sidecar.net import HttpServerSettings

BUCKETS: Final = tuple(
    map(Duration, ["5ms", "10ms", "25ms", "50ms", "100ms", "250ms", "500ms", "1s", "2.5s", "5s", "10s", "30s", "60s"])
)
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class AttributeSelection(Settings):
    """Attribute keys by globs (`*`, `?`, `[ab]`). Only `excluded` given means all but those."""

    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def selection(self) -> Selection:
        """As a predicate of keys."""
        return Selection.of(self.included, self.excluded)


class ResourceConversionSettings(Settings):
    """The deprecated form of `resource_constant_labels`."""

    enabled: bool = False
    exclude_service_attributes: bool = False


class IdentityLabelSettings(Settings):
    """The labels that say whose a series is; an empty name leaves the label out."""

    job: str = "job"
    instance: str = "instance"

    def __post_init__(self) -> None:
        for name in ("job", "instance"):
            _check_label(getattr(self, name) or name, name)


class ExponentialSettings(Settings):
    """The text formats' bounds for exponential histograms: the powers of two from one exponent to another."""

    min_exponent: int = -10
    max_exponent: int = 20

    def __post_init__(self) -> None:
        if not -1022 <= self.min_exponent <= self.max_exponent <= 1023:
            raise SettingError("must be from -1022 to 1023, and not above max_exponent", "min_exponent")
        if self.max_exponent - self.min_exponent > 200:
            raise SettingError("more than 200 buckets; write a smaller range of exponents", "max_exponent")


class LogMetricSettings(Settings):
    """Which attributes of log records become labels of their counters.

    `severity` is the record's; any other key is looked for in the record, then in its resource.
    """

    labels: tuple[str, ...] = ("service.name", "severity", "telemetry.source", "telemetry.kind")
    buckets: tuple[Duration, ...] = BUCKETS
    aggregation_cardinality_limit: _Positive = 2000

    def __post_init__(self) -> None:
        _check_buckets(self.buckets)


class SpanMetricSettings(Settings):
    """Which attributes of spans become labels of their metrics, and the buckets of their durations.

    `span.name`, `span.kind` and `status.code` are the span's; any other key is looked for in the span, then in its
    resource.
    """

    labels: tuple[str, ...] = ("service.name", "span.name", "span.kind", "status.code")
    buckets: tuple[Duration, ...] = BUCKETS
    aggregation_cardinality_limit: _Positive = 2000

    def __post_init__(self) -> None:
        _check_buckets(self.buckets)


def _check_label(name: str, *path: str) -> None:
    if not LEGAL_LABEL.fullmatch(name) or name.startswith("__"):
        raise SettingError(f"{name!r} is not a label name; write letters, digits and _", *path)


def _check_buckets(buckets: tuple[Duration, ...]) -> None:
    if not buckets or any(map(operator.ge, buckets, buckets[1:])):
        raise SettingError("must ascend; write for example [5ms, 50ms, 500ms, 5s]", "buckets")


class PrometheusSettings(HttpServerSettings):
    """Where Prometheus scrapes, and how OTLP becomes what it reads.

    Attributes:
        namespace: stands before every metric name.
        const_labels: labels for every series that has no label of that name; not for `target_info`.
        send_timestamps: writes the points' own times. A series that vanishes then stays for five minutes.
        metric_expiration: how long a series is shown after it was last received; 0 means for ever. At least two or
            three times the slowest sender's interval. `gauge_expiration` and `counter_expiration` (histograms and
            summaries too) replace it for those.
        expire_by: what counts as received: any point, one whose time has moved, or one whose value has changed.
        delta_gaps: whether a delta that does not start where the last one ended adds up, or starts over.
        max_series: a histogram counts as one. What would come on top is refused and counted.
        enable_open_metrics: exemplars need it, and Prometheus asks for it first; the Collector's default is false.
        created_lines: `_created` lines in OpenMetrics, which older servers store as one more series each.
        distinct_label_values: equal values of attributes that meet in one label are written once.
    """

    endpoint: Endpoint = Endpoint("localhost:9464")
    path: str = "/metrics"
    auth: AuthSettings | None = None
    namespace: str = ""
    const_labels: dict[str, str] = msgspec.field(default_factory=dict)
    send_timestamps: bool = False
    metric_expiration: Duration = Duration("5m")
    gauge_expiration: Duration | None = None
    counter_expiration: Duration | None = None
    expire_by: Literal["receipt", "point_time", "value"] = "receipt"
    delta_gaps: Literal["add", "reset"] = "add"
    max_series: _Positive = 100_000
    max_families: _Positive = 10_000
    max_label_value_length: _Positive = 4096
    max_concurrent_scrapes: _Positive = 4
    translation_strategy: Strategy | None = None
    add_metric_suffixes: bool | None = None
    enable_open_metrics: bool = True
    created_lines: bool = False
    distinct_label_values: bool = False
    resource_constant_labels: AttributeSelection = AttributeSelection()
    resource_to_telemetry_conversion: ResourceConversionSettings | None = None
    identity_labels: IdentityLabelSettings = IdentityLabelSettings()
    without_scope_info: bool = False
    scope_info_enabled: bool = True
    target_info_enabled: bool = True
    target_info_attributes: AttributeSelection = AttributeSelection(included=("*",))
    exponential_histograms: ExponentialSettings = ExponentialSettings()
    logs: LogMetricSettings = LogMetricSettings()
    traces: SpanMetricSettings = SpanMetricSettings()
    compression_algorithms: Ignored = None
    response_headers: Ignored = None

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise SettingError(f"{self.path!r} is not a path; write for example /metrics", "path")
        for name in self.const_labels:
            _check_label(name, "const_labels", name)

    def strategy(self) -> Strategy:
        """The translation strategy, the deprecated setting included."""
        if self.translation_strategy is not None:
            return self.translation_strategy
        if self.add_metric_suffixes is False:
            return "UnderscoreEscapingWithoutSuffixes"
        return "UnderscoreEscapingWithSuffixes"

    def promoted(self) -> Selection:
        """The resource attributes that become labels, the deprecated setting included."""
        old = self.resource_to_telemetry_conversion
        if old is None or not old.enabled or self.resource_constant_labels != AttributeSelection():
            return self.resource_constant_labels.selection()
        identifying = ("service.name", "service.namespace", "service.instance.id")
        return Selection.of(("*",), identifying if old.exclude_service_attributes else ())

    def server(self) -> HttpServerSettings | None:
        """How the listener behaves; None where nothing is said, so that a shared one behaves as the others say."""
        said = HttpServerSettings(**{name: getattr(self, name) for name in HttpServerSettings.__struct_fields__})
        return said if said != HttpServerSettings() else None

    def deprecated(self) -> list[str]:
        """Warnings, each naming what to write instead."""
        warnings = []
        if self.add_metric_suffixes is not None:
            better = "UnderscoreEscapingWith" + ("Suffixes" if self.add_metric_suffixes else "outSuffixes")
            warnings.append(f"add_metric_suffixes is deprecated; write translation_strategy: {better}")
        if self.resource_to_telemetry_conversion is not None:
            warnings.append(
                "resource_to_telemetry_conversion is deprecated; write resource_constant_labels: {included: ['*']}"
            )
        return warnings
