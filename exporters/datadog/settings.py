"""What a user writes below `datadog`, and what the environment says where that is silent."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from exporters.datadog.delivery import Compression
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
    """The account. `key` and `site` default to DD_API_KEY and DD_SITE."""

    key: Secret = Secret()
    site: str = ""

    def __post_init__(self) -> None:
        if self.site:
            _check_site(self.site)


class LogsSettings(Settings):
    """How logs are sent. `dump_payloads` writes each request's body to the sidecar's own log, at level debug."""

    endpoint: Url | None = None
    compression: Compression = "gzip"
    dump_payloads: bool = False


class EventsSettings(Settings):
    """Which logs raise a Datadog Event too. `aggregation`: of events that are alike, one in so long a time is sent."""

    enabled: bool = True
    endpoint: Url | None = None
    min_severity: Literal["fatal", "error", "warn", "info", "debug"] = "fatal"
    aggregation: Duration = Duration("5m")
    rate: Rate = Rate("10/m")


class DatadogSettings(DeliverySettings):
    """An account at Datadog, and how each signal is mapped to it.

    `hostname` is an operator's own word and beats what resources say; `env` is for resources that name none.
    `resource_attributes_as_tags`: resource attributes that become tags of every signal beside the well-known ones.
    Endpoints are for stand-ins and proxies: a bare URL gets the path of the intake.
    """

    timeout: Duration = Duration("15s")
    api: ApiSettings = ApiSettings()
    hostname: str | None = None
    env: str | None = None
    resource_attributes_as_tags: tuple[str, ...] = ()
    logs: LogsSettings = LogsSettings()
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

    def url(self, host: str, path: str, endpoint: str | None) -> str:
        """The address of an intake: of this site, or at `endpoint`, which may be a bare URL or a whole address."""
        if endpoint is None:
            return f"https://{host}.{self.site}{path}"
        return endpoint if re.search(r"//[^/]+/", endpoint) else endpoint + path


def defaults_of(settings: DatadogSettings, environment: Mapping[str, str] = os.environ) -> Defaults:
    """What holds where a resource says nothing."""
    return Defaults(
        hostname=settings.hostname or "",
        this_host=socket.gethostname(),
        env=settings.env or environment.get("DD_ENV", ""),
        service=environment.get("DD_SERVICE", ""),
        version=environment.get("DD_VERSION", ""),
        tag_patterns=settings.resource_attributes_as_tags,
    )


def _check_site(site: str) -> None:
    if _SITE.fullmatch(site) is None:
        raise SettingError(f"{site!r} is not a Datadog site; known: {', '.join(SITES)}", "api", "site")
