"""Metrics, from batches to requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from exporters.datadog.delivery import Request, Route
from exporters.datadog.dogstatsd import DATAGRAM, DogStatsD, datagrams
from exporters.datadog.intake import VERSION
from exporters.datadog.metric_bodies import divide_series, divide_sketches, series_bodies, sketch_bodies
from exporters.datadog.metrics import MetricMapper
from exporters.datadog.points import ClientStats
from exporters.datadog.resource import Origins, is_local
from exporters.datadog.settings import Account, DatadogSettings
from sidecar import Batch, Context, Signal
from sidecar.reading import read

SERIES_PATH: Final = "/api/v2/series"
SKETCHES_PATH: Final = "/api/beta/sketches"
MAX_COMPRESSED: Final = 512_000


class MetricsChannel:
    """Makes requests of batches of metrics: series and distributions for the intake, or datagrams for an Agent."""

    def __init__(
        self,
        settings: DatadogSettings,
        account: Account,
        origins: Origins,
        context: Context,
        stats_requests: Callable[[Iterable[ClientStats]], Iterator[Request]],
        dogstatsd: DogStatsD | None,
    ) -> None:
        self._context = context
        self._stats_requests = stats_requests
        metrics = settings.metrics
        self._max_datagram = dogstatsd.max_datagram if dogstatsd else 0
        self._mapper = MetricMapper(origins, metrics, context.clock.time_ns(), self._left_out)
        self._series = Route(account.url("api", SERIES_PATH, metrics.endpoint), "application/json", divide_series)
        self._sketches = Route(
            account.url("api", SKETCHES_PATH, metrics.endpoint, SERIES_PATH),
            "application/x-protobuf",
            divide_sketches,
            headers={"DD-Agent-Payload": VERSION},
        )

    def requests(self, batch: Batch) -> Iterator[Request]:
        """The requests that carry a batch. To be asked for once: cumulative series are remembered."""
        clock = self._context.clock
        local = is_local(batch.context.peer)
        points = self._mapper.map(read(batch), local=local, now_ns=clock.time_ns(), now=clock.monotonic())
        yield from self._stats_requests(points.client_stats)
        if self._max_datagram:
            for body in datagrams(points, self._max_datagram):
                yield Request.make(DATAGRAM, body)
            return
        for body in series_bodies(points):
            yield from _small_enough(Request.make(self._series, body))
        for body in sketch_bodies(points):
            yield Request.make(self._sketches, body)

    def _left_out(self, reason: str, points: int) -> None:
        self._context.dropped(Signal.METRICS, reason, points)


def _small_enough(request: Request) -> Iterator[Request]:
    halves = request.halves() if len(request.body) > MAX_COMPRESSED else []
    if not halves:
        yield request
    for half in halves:
        yield from _small_enough(half)
