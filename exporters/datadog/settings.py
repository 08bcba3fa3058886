"""What a user writes below `datadog`, and what the environment says where that is silent."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from config.settings import Ignored
from exporters.datadog.delivery import Compression
from exporters.datadog.deltas import InitialValue
from exporters.datadog.resource import Defaults
from sidecar import DeliverySettings, Duration, Rate, Secret, SettingError, Settings, Url

SITES: Final = (
    "datadoghq.com",
    "us3.datadoghq.com",
    "us5.datadoghq.com",
    "ap1.datadoghq.com",
    "ap2.datadoghq.com",
    "uk1.datadoghq.com",
    "datadoghq.eu",
    "ddog-gov.com",
    "us2.ddog-gov.com",
)
# Regions are added now and then; a web address (app.datadoghq.com) or another company's domain never is one.
_SITE: Final = re.compile(r"(?:[a-z]{2}\d+\.)?(?:datadoghq\.com|datadoghq\.eu|ddog-gov\.com)")


class ApiSettings(Settings):
    """The account at Datadog.

    Attributes:
        key: an API key; default DD_API_KEY. It is sent to Datadog alone, and shown nowhere.
        site: where the account is, such as datadoghq.eu; default DD_SITE, else datadoghq.com.
    """

    key: Secret = Secret()
    site: str = ""
    fail_on_invalid_key: Ignored = None

    def __post_init__(self) -> None:
        if self.site:
            _check_site(self.site)


class LogsSettings(Settings):
    """How logs are sent.

    Attributes:
        endpoint: the intake's URL, for stand-ins and proxies; its path is appended.
        compression: of the requests.
        dump_payloads: write the body of each request to the sidecar's own log, at level debug.
    """

    endpoint: Url | None = None
    compression: Compression = "gzip"
    dump_payloads: bool = False
    use_compression: Ignored = None
    compression_level: Ignored = None
    batch_wait: Ignored = None


class ObfuscationSettings(Settings):
    """What is done to the queries of database spans that go to the intake; an Agent has settings of its own.

    Attributes:
        enabled: the values in SQL statements and the arguments of commands to Redis and Memcached are taken out.
    """

    enabled: bool = True


class TracesSettings(Settings):
    """Where spans go, and how they are named.

    Attributes:
        endpoint: the intake's URL, for stand-ins and proxies; its path is appended.
        agent_url: a Datadog Agent to send to instead: `http://localhost:8126`, `unix:///var/run/datadog/apm.socket`. It
            computes the statistics, which are computed here otherwise.
        span_name_as_resource_name: the operation name is the span's own name.
        span_name_remappings: other words for operation names.
        ignore_resources: regular expressions; traces whose root span has such a resource name are left out.
        obfuscation: of queries.
    """

    endpoint: Url | None = None
    agent_url: str | None = None
    span_name_as_resource_name: bool = False
    span_name_remappings: Mapping[str, str] = {}
    ignore_resources: tuple[str, ...] = ()
    obfuscation: ObfuscationSettings = ObfuscationSettings()
    compute_stats_by_span_kind: Ignored = None
    compute_top_level_by_span_kind: Ignored = None
    peer_tags_aggregation: Ignored = None
    peer_tags: Ignored = None
    trace_buffer: Ignored = None

    def __post_init__(self) -> None:
        for index, pattern in enumerate(self.ignore_resources):
            try:
                re.compile(pattern)
            except re.error as error:
                message = f"{pattern!r} is not a regular expression: {error}"
                raise SettingError(message, "ignore_resources", index) from None
        if self.agent_url and not self.agent_url.startswith("unix:"):
            try:
                Url(self.agent_url)
            except ValueError as error:
                raise SettingError(str(error), "agent_url") from None


class HistogramSettings(Settings):
    """What histograms become.

    Attributes:
        mode: `distributions`: sketches. `counters`: a count for each bucket. `nobuckets`: aggregations alone.
        send_aggregation_metrics: also `.count`, `.sum`, `.min` and `.max`.
    """

    mode: Literal["distributions", "counters", "nobuckets"] = "distributions"
    send_aggregation_metrics: bool = False

    def __post_init__(self) -> None:
        if self.mode == "nobuckets" and not self.send_aggregation_metrics:
            raise SettingError(
                "without buckets and without aggregations nothing would be left; add send_aggregation_metrics: true",
                "mode",
            )


class SumSettings(Settings):
    """What cumulative sums become.

    Attributes:
        cumulative_monotonic_mode: `to_delta`: counts of what was added. `raw_value`: gauges of the value as it is.
        initial_cumulative_monotonic_value: whether the first value of a series counts: always (`keep`), never (`drop`),
            or where the series has begun after the exporter (`auto`).
    """

    cumulative_monotonic_mode: Literal["to_delta", "raw_value"] = "to_delta"
    initial_cumulative_monotonic_value: InitialValue = "auto"


class SummarySettings(Settings):
    """What summaries become, beside `.count` and `.sum`.

    Attributes:
        mode: whether their quantiles are sent, as gauges.
    """

    mode: Literal["gauges", "noquantiles"] = "gauges"


class MetricsSettings(Settings):
    """Where metrics go, and what they become.

    Attributes:
        endpoint: the intake's URL, for stand-ins and proxies; its path is appended.
        dogstatsd_url: an Agent to send to instead: `udp://localhost:8125`, `unix:///var/run/datadog/dsd.socket`;
            default DD_DOGSTATSD_URL.
        delta_ttl: for how long a cumulative series is remembered after its last point; a number is in seconds.
        resource_attributes_as_tags: all resource attributes become tags, of every signal.
        instrumentation_scope_metadata_as_tags: tags with the name and the version of the instrumentation.
    """

    endpoint: Url | None = None
    dogstatsd_url: str | None = None
    histograms: HistogramSettings = HistogramSettings()
    sums: SumSettings = SumSettings()
    summaries: SummarySettings = SummarySettings()
    delta_ttl: Duration | int = 3600
    resource_attributes_as_tags: bool = False
    instrumentation_scope_metadata_as_tags: bool = False

    def __post_init__(self) -> None:
        if self.dogstatsd_url:
            _check_dogstatsd_url(self.dogstatsd_url, "dogstatsd_url")


class EventsSettings(Settings):
    """Which logs raise a Datadog Event too.

    Attributes:
        enabled: whether any do.
        endpoint: the intake's URL, for stand-ins and proxies; its path is appended. Service checks go there too.
        min_severity: the lowest severity that does.
        aggregation: of events that are alike, one in so long a time is sent.
        rate: how many are sent at most.
    """

    enabled: bool = True
    endpoint: Url | None = None
    min_severity: Literal["fatal", "error", "warn", "info", "debug"] = "fatal"
    aggregation: Duration = Duration("5m")
    rate: Rate = Rate("10/m")


class DatadogSettings(DeliverySettings):
    """An account at Datadog, and how each signal is mapped to it.

    Attributes:
        hostname: the host of everything that passes, whatever resources say, but for `datadog.host.name`. By default
            it is what the resource says, else this host's name for what was sent from it.
        env: the environment of resources that name none; default DD_ENV.
        resource_attributes_as_tags: resource attributes that become tags of every signal beside the well-known ones;
            `*` stands for any characters.
    """

    timeout: Duration = Duration("15s")
    api: ApiSettings = ApiSettings()
    hostname: str | None = None
    env: str | None = None
    resource_attributes_as_tags: tuple[str, ...] = ()
    host_metadata: Ignored = None
    hostname_detection_timeout: Ignored = None
    logs: LogsSettings = LogsSettings()
    traces: TracesSettings = TracesSettings()
    metrics: MetricsSettings = MetricsSettings()
    events: EventsSettings = EventsSettings()


@dataclass(frozen=True, slots=True)
class Account:
    """Where to send, and with which key."""

    key: Secret
    site: str

    @classmethod
    def of(cls, settings: DatadogSettings, environment: Mapping[str, str] = os.environ) -> Account:
        """The account of the settings, else of the environment.

        Raises:
            SettingError: there is no key, or DD_SITE is not a site.
        """
        key = settings.api.key or Secret(environment.get("DD_API_KEY", "").strip())
        if not key:
            raise SettingError("no API key; set DD_API_KEY or api.key", "api", "key")
        site = settings.api.site or environment.get("DD_SITE", "").strip() or SITES[0]
        _check_site(site)
        return cls(key, site)

    def url(self, host: str, path: str, endpoint: str | None = None, beside: str = "") -> str:
        """The address of an intake.

        Args:
            host: the intake's name at Datadog, before the site.
            path: of the intake.
            endpoint: where it is instead; its path is appended unless it is there already.
            beside: the path with which an endpoint may be written, when it is shared by several intakes.
        """
        if endpoint is None:
            return f"https://{host}.{self.site}{path}"
        return endpoint.removesuffix(beside or path) + path


def defaults_of(settings: DatadogSettings, environment: Mapping[str, str] = os.environ) -> Defaults:
    """What holds where a resource says nothing."""
    return Defaults(
        hostname=settings.hostname or "",
        this_host=socket.gethostname(),
        env=settings.env or environment.get("DD_ENV", ""),
        service=environment.get("DD_SERVICE", ""),
        version=environment.get("DD_VERSION", ""),
        tag_patterns=("*",) if settings.metrics.resource_attributes_as_tags else settings.resource_attributes_as_tags,
    )


def dogstatsd_url_of(settings: DatadogSettings, environment: Mapping[str, str] = os.environ) -> str:
    """Where metrics go as DogStatsD: of the settings, else of the environment; "" where they go to the intake.

    Raises:
        SettingError: DD_DOGSTATSD_URL is no such address.
    """
    url = settings.metrics.dogstatsd_url
    if url is None:
        url = environment.get("DD_DOGSTATSD_URL", "").strip()
        if url:
            _check_dogstatsd_url(url, "metrics", "dogstatsd_url")
    return url


def _check_dogstatsd_url(url: str, *path: str) -> None:
    if re.fullmatch(r"udp://[^/]+|unix://.+", url) is None:
        raise SettingError(
            f"{url!r} is no address for DogStatsD; write for example udp://localhost:8125 or unix:///path", *path
        )


def _check_site(site: str) -> None:
    if _SITE.fullmatch(site) is None:
        raise SettingError(f"{site!r} is not a Datadog site; known: {', '.join(SITES)}", "api", "site")
