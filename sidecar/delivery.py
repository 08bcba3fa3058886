"""The settings by which an exporter's batches are queued, joined and retried, named as the Collector's are."""

from __future__ import annotations

from typing import Literal

from config import Duration, SettingError, Settings, Size


class BatchSettings(Settings):
    """How waiting requests are joined before they are sent. `min_size: 0` sends each as it comes."""

    flush_timeout: Duration = Duration("200ms")
    min_size: int = 8192
    max_size: int = 0
    sizer: Literal["items", "bytes"] = "items"

    def __post_init__(self) -> None:
        if self.max_size and self.max_size < self.min_size:
            raise SettingError(f"max_size {self.max_size} is below min_size {self.min_size}", "max_size")


class QueueSettings(Settings):
    """The queue in front of an exporter. Full when `queue_size` (in units of `sizer`) or `max_bytes` is reached."""

    enabled: bool = True
    queue_size: int = 100_000
    sizer: Literal["items", "bytes", "requests"] = "items"
    max_bytes: Size = Size("128MiB")
    num_consumers: int = 4
    storage: str | None = None
    on_full: Literal["refuse", "drop_oldest", "drop_newest"] = "refuse"
    batch: BatchSettings = BatchSettings()
    block_on_overflow: bool = False
    wait_for_result: bool = False

    def __post_init__(self) -> None:
        for name in ("queue_size", "num_consumers", "max_bytes"):
            if getattr(self, name) < 1:
                raise SettingError(f"{getattr(self, name)} is too small; write at least 1", name)


class RetrySettings(Settings):
    """How a batch is sent again after a failure that may pass. `max_elapsed_time: 0` means for ever."""

    enabled: bool = True
    initial_interval: Duration = Duration("5s")
    multiplier: float = 1.5
    randomization_factor: float = 0.5
    max_interval: Duration = Duration("30s")
    max_elapsed_time: Duration = Duration("300s")

    def __post_init__(self) -> None:
        if self.multiplier < 1:
            raise SettingError(f"{self.multiplier:g} would make the waits shorter; write at least 1", "multiplier")
        if not 0 <= self.randomization_factor <= 1:
            raise SettingError("must be from 0 to 1", "randomization_factor")


class DeliverySettings(Settings):
    """Settings of every exporter that sends over a network: one whose settings derive from it gets an outbox."""

    timeout: Duration = Duration("5s")
    sending_queue: QueueSettings = QueueSettings()
    retry_on_failure: RetrySettings = RetrySettings()
