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
    """The queue in front of an exporter. Full when `queue_size` (in units of `sizer`) or `max_bytes` is reached.

    `max_bytes`: 128 MiB in memory, and all that the storage gives with a `storage`, unless it is written.
    `num_consumers: 1` keeps the order. `dead_letter` sets aside what is given up, which needs a `storage`.
    """

    enabled: bool = True
    queue_size: int = 100_000
    sizer: Literal["items", "bytes", "requests"] = "items"
    max_bytes: Size | None = None
    num_consumers: int = 4
    storage: str | None = None
    on_full: Literal["refuse", "drop_oldest", "drop_newest", "drop_lowest_severity"] = "refuse"
    dead_letter: bool = False
    batch: BatchSettings = BatchSettings()
    block_on_overflow: bool = False
    wait_for_result: bool = False

    def __post_init__(self) -> None:
        for name in ("queue_size", "num_consumers", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{value} is too small; write at least 1", name)
        if self.dead_letter and self.storage is None:
            raise SettingError("needs a storage; write for example storage: file_storage", "dead_letter")
        if self.wait_for_result and self.storage is not None:
            raise SettingError(
                "can't be combined with a storage, which answers once the request is stored", "wait_for_result"
            )


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
