"""A queue file on a thread of its own: whatever is asked while the disk works becomes one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from sidecar.batch import Batch
from sidecar.storage.queue_file import QueueFile, Row

T = TypeVar("T")

# Seconds until deletions are tried again after the disk has refused them.
_PATIENCE: Final = 1.0


class StoredQueue:
    """The asynchronous face of a `QueueFile`. Everything happens in the order in which it was asked for.

    Deletions and notes are written with the next append or as soon as the disk is free.

    Attributes:
        bytes: the size of the requests that are stored. Its user takes off what it deletes.
        unclaimed: rows that were appended, and that their sender's task does not know yet: others may read them before.
            Its user takes rows out.
    """

    def __init__(self, file: QueueFile) -> None:
        self.file = file
        self.bytes = 0
        self.unclaimed: set[int] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"queue {file.path.stem}")
        self._appends: list[tuple[Batch, int, asyncio.Future[int]]] = []
        self._gone: list[int] = []
        self._tried: list[int] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._writer: asyncio.Task[None] | None = None
        self._is_closed = False

    async def append(self, batches: Sequence[tuple[Batch, int]]) -> list[int]:
        """Store requests, each with its severity; committed when it returns. Returns their ids.

        Raises:
            StorageError: nothing has been stored.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in batches]
        self._appends += [(batch, severity, future) for (batch, severity), future in zip(batches, futures, strict=True)]
        self._write()
        return [await future for future in futures]

    def delete(self, ids: Sequence[int]) -> None:
        """Forget requests, soon."""
        self._gone += ids
        self._write()

    def bury(self, ids: Sequence[int], reason: str, message: str) -> None:
        """Set requests aside as dead letters, soon."""
        self._thread.submit(self.file.bury, list(ids), reason, message)

    def count_attempt(self, ids: Sequence[int]) -> None:
        """Note a failed attempt, soon."""
        self._tried += ids
        self._write()

    async def written(self) -> None:
        """Return when everything that was asked for so far is on disk, or the disk has refused it."""
        if self._writer is not None:
            self._waiting.append(asyncio.get_running_loop().create_future())
            await self._waiting[-1]

    async def read(self, ids: Sequence[int]) -> list[Batch | None]:
        """Requests by id. None where one is damaged: it has been set aside."""
        return await self.call(lambda: [self.file.read(id_) for id_ in ids])

    async def rows(self, after: int, limit: int) -> list[Row]:
        """As `QueueFile.rows`."""
        return await self.call(lambda: self.file.rows(after, limit))

    async def call(self, function: Callable[[], T]) -> T:
        """Run something on the file's thread, after what has been asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def close(self) -> None:
        """Write what is left, and let go of the file. Works twice."""
        while self._writer is not None:
            await asyncio.wait([self._writer])
        self._is_closed = True
        await asyncio.to_thread(self._thread.shutdown)
        self.file.close()

    def _write(self) -> None:
        if self._writer is None and not self._is_closed:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._appends or self._gone or self._tried or self._waiting:
                if not await self._write_some():
                    # The disk is full or gone. Deletions wait for the next change, or a little.
                    asyncio.get_running_loop().call_later(_PATIENCE, self._write)
                    return
        finally:
            self._writer = None

    async def _write_some(self) -> bool:
        appends, self._appends = self._appends, []
        gone, self._gone = self._gone, []
        tried, self._tried = self._tried, []
        waiting, self._waiting = self._waiting, []
        batches = [(batch, severity) for batch, severity, _ in appends]
        try:
            ids = await self.call(lambda: self.file.change(batches, gone, tried))
        except Exception as error:  # noqa: BLE001 (whatever it is, those who wait must hear of it)
            self._gone = gone + self._gone
            for _, _, future in appends:
                if not future.done():
                    future.set_exception(error)
            return False
        finally:
            for each in waiting:
                if not each.done():
                    each.set_result(None)
        self.unclaimed.update(ids)
        self.bytes += sum(len(batch.encode()) for batch, _ in batches)
        for (_, _, future), id_ in zip(appends, ids, strict=True):
            if not future.done():
                future.set_result(id_)
        return True
