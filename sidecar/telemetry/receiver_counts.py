"""What receivers count of the requests that they refuse or mend: the same names and labels for all of them."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.errors import DeliveryError
from sidecar.telemetry.metrics import Meter


class ReceiverCounts:
    """The counts of one receiver. `transport`: how a request came, `grpc` or `http`."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def refused(self, error: DeliveryError, transport: str) -> None:
        """Count a request that was refused, perhaps before anybody knew how many items it holds."""
        self._meter.counter(
            "sidecar_receiver_refused_requests",
            "Requests that were refused, by reason.",
            transport=transport,
            reason=error.reason,
        ).add(1)

    def repaired(self, repairs: Mapping[str, int], transport: str) -> None:
        """Count what was mended in items that were kept, or left out of them, by reason."""
        for reason, times in repairs.items():
            self._meter.counter(
                "sidecar_receiver_repairs",
                "Values that were mended or left out, in items that were kept.",
                transport=transport,
                reason=reason,
            ).add(times)
