"""Keeps queues on disk, so that what was accepted survives a crash, a restart and a long outage."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from config import Duration, Settings, Size
from sidecar.component import Context, Storage
from sidecar.errors import StartError, StorageError
from sidecar.storage import Fsync, QueueFile, StoredQueue

_SUFFIX = ".queue"


class FileStorageSettings(Settings):
    """Where queues are kept, and how carefully.

    `fsync`: what a power failure may take. `always` nothing, at the price of a disk flush per request; `interval` the
    last second; `never` what the system has not written yet. A crash of the sidecar takes nothing in any case.
    `max_size`: of the requests as they were received. They are compressed, so that the files are smaller.
    """

    directory: str = "/var/lib/sidecar"
    create_directory: bool = False
    fsync: Fsync = "interval"
    max_size: Size = Size("1GiB")
    max_age: Duration = Duration("72h")


class FileStorage(Storage[FileStorageSettings]):
    """One SQLite file per exporter in a directory that one sidecar uses at a time."""

    def __init__(self, settings: FileStorageSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._queues: dict[Path, StoredQueue] = {}
        self._hold = contextlib.ExitStack()

    @property
    def max_bytes(self) -> int:
        """As the base says."""
        return self.settings.max_size

    @property
    def max_age(self) -> float:
        """As the base says."""
        return self.settings.max_age

    def room(self) -> int:
        """As the base says."""
        return self.settings.max_size - sum(queue.bytes for queue in self._queues.values())

    async def start(self) -> None:
        """Take hold of the directory."""
        directory = Path(self.settings.directory)
        if self.settings.create_directory:
            await asyncio.to_thread(directory.mkdir, mode=0o700, parents=True, exist_ok=True)
        where = f"extensions/{self.context.id}: directory {directory}"
        try:
            self._hold.enter_context(held(directory))
        except FileNotFoundError:
            raise StartError(f"{where} does not exist; create it, or write create_directory: true") from None
        except BlockingIOError:
            raise StartError(
                f"{where} is in use, by another sidecar or by this one until it is restarted; name another directory"
            ) from None
        except OSError as error:
            raise StartError(f"{where}: {error.strerror}; give this user the right to write there") from None
        self.context.spawn(self._keep_up(), "storage upkeep")

    async def stop(self) -> None:
        """Let go of the directory."""
        for queue in list(self._queues.values()):
            await self.close(queue)
        self._hold.close()

    async def open(self, owner: str) -> StoredQueue:
        """As the base says. A damaged file is moved aside, and said."""
        path = Path(self.settings.directory) / f"{quote(owner, safe='')}{_SUFFIX}"
        try:
            file = await asyncio.to_thread(QueueFile, path, self.settings.fsync, self._say_damage)
        except StorageError as error:
            raise StartError(f"extensions/{self.context.id}: {error}") from None
        queue = self._queues[path] = StoredQueue(file)
        return queue

    async def close(self, queue: StoredQueue) -> None:
        """As the base says."""
        self._queues.pop(queue.file.path, None)
        await queue.close()

    def _say_damage(self, message: str) -> None:
        self.context.logger.error("%s", message)
        self.context.meter.counter("sidecar_storage_damages", "Damaged files that have been moved aside.").add(1)

    async def _keep_up(self) -> None:
        """Once a second, bring onto the disk what `fsync: interval` promises."""
        while True:
            await asyncio.sleep(1)
            for queue in list(self._queues.values()):
                try:
                    await queue.call(queue.file.sync)
                except StorageError as error:
                    self.context.health.degraded(str(error))
                else:
                    self.context.health.ok()


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold a directory against every other process, and every other holder in this one.

    Raises:
        BlockingIOError: somebody holds it.
        OSError: it is missing, or can't be written.
    """
    lock = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def queue_files(directory: Path) -> dict[str, Path]:
    """The queue files of a directory, by their owners."""
    return {unquote(path.name.removesuffix(_SUFFIX)): path for path in sorted(directory.glob(f"*{_SUFFIX}"))}
