"""Writes telemetry to a file: OTLP JSON, one request per line, for replay, audit and a look with jq."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, ParamSpec

from sidecar import Batch, Clock, Context, Duration, Exporter, Retryable, SettingError, Settings, StartError
from sidecar.net import otlp_json
from sidecar.net.compress import zstd

P = ParamSpec("P")

_OCTAL: Final = re.compile(r"0?[0-7]{3}")
_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}")
_DAY_MS: Final = 86_400_000


class RotationSettings(Settings):
    """When a file is put aside, and how many of those are kept. 0 keeps all."""

    max_megabytes: int = 100
    max_days: int = 0
    max_backups: int = 100
    localtime: bool = False

    def __post_init__(self) -> None:
        if self.max_megabytes < 1:
            raise SettingError(f"{self.max_megabytes} is too small; write at least 1", "max_megabytes")
        for name in ("max_days", "max_backups"):
            if getattr(self, name) < 0:
                raise SettingError(f"{getattr(self, name)} is negative; write 0 to keep all", name)


class FileSettings(Settings):
    """Settings of `file`, named as the Collector's are.

    `append`: go on where an earlier run ended; unlike the Collector's, it is the default, so that no restart loses what
    was written. `flush_interval`: how often what has been written is forced to disk; 0 leaves that to the system.
    `permissions`: of files that are made; telemetry is nobody else's business by default.
    """

    path: str
    format: Literal["json", "proto"] = "json"
    compression: Literal["none", "zstd"] = "none"
    append: bool = True
    rotation: RotationSettings | None = None
    flush_interval: Duration = Duration("1s")
    create_directory: bool = False
    directory_permissions: str = "0755"
    permissions: str = "0600"

    def __post_init__(self) -> None:
        if not self.path:
            raise SettingError("empty; write the path of a file", "path")
        for name in ("directory_permissions", "permissions"):
            if not _OCTAL.fullmatch(getattr(self, name)):
                raise SettingError(f"{getattr(self, name)!r} is not octal; write for example 0640", name)


class FileExporter(Exporter[FileSettings]):
    """Appends each batch in one piece, or not at all: a line is never half.

    A batch is delivered when the system has it, so that a crash of the sidecar loses nothing. A full disk is a
    `Retryable`. All work on the file is done by one thread of its own, since a disk may take as long as it likes.
    """

    def __init__(self, settings: FileSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._file = _File(settings, context.clock)
        self._thread: ThreadPoolExecutor | None = None
        self._is_written = False

    async def start(self) -> None:
        """Open the file.

        Raises:
            StartError: it can't be opened.
        """
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=str(self.context.id))
        try:
            await self._do(self._file.open)
        except OSError as error:
            where = f"exporters.{self.context.id}: path"
            raise StartError(f"{where}: can't write to {self.settings.path}: {_what_to_do(error)}") from None
        if self.settings.flush_interval:
            self.context.spawn(self._flush_now_and_then(), "flush")

    async def stop(self) -> None:
        """Force what has been written to disk, and close the file."""
        thread = self._thread
        if thread is None:
            return
        try:
            await self._do(self._file.close)
        except OSError as error:
            self.context.logger.error("can't flush %s: %s", self.settings.path, _what_to_do(error))
        self._thread, self._is_written = None, False
        thread.shutdown(wait=False)

    async def export(self, batch: Batch) -> None:
        """Write a batch.

        Raises:
            Retryable: the disk is full, or broken. Nothing of the batch is in the file.
            Permanent: the batch can't be decoded.
        """
        piece = self._piece(batch)
        try:
            await self._do(self._file.write, piece)
        except OSError as error:
            message = f"can't write to {self.settings.path}: {_what_to_do(error)}"
            self.context.health.degraded(message)
            raise Retryable(message, reason="disk") from None
        self._is_written = True
        self.context.health.ok()

    def _piece(self, batch: Batch) -> bytes:
        """As the Collector's exporter writes it: JSON ends with its line; what is binary begins with its length."""
        is_json = self.settings.format == "json"
        data = otlp_json.encode(batch.message) if is_json else batch.encode()
        if self.settings.compression == "zstd":
            data = zstd(data)
        elif is_json:
            return data + b"\n"
        return len(data).to_bytes(4, "big") + data

    async def _flush_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self.settings.flush_interval)
            if self._is_written:
                self._is_written = False
                try:
                    await self._do(self._file.flush)
                except OSError as error:
                    self.context.health.degraded(f"can't flush {self.settings.path}: {_what_to_do(error)}")

    async def _do(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, functools.partial(work, *args, **kwargs))


class _File:
    """The file itself. Blocks; used by one thread at a time."""

    def __init__(self, settings: FileSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._path = Path(settings.path)
        self._descriptor = -1
        self._is_regular = True

    def open(self) -> None:
        settings = self._settings
        if settings.create_directory:
            self._path.parent.mkdir(mode=int(settings.directory_permissions, 8), parents=True, exist_ok=True)
        self._open(0 if settings.append else os.O_TRUNC)

    def write(self, piece: bytes) -> None:
        """Append all of it, or nothing.

        Raises:
            OSError: nothing has been appended.
        """
        if self._is_regular:
            self._follow()
            self._rotate_before(len(piece))
        before = os.fstat(self._descriptor).st_size
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            written = len(piece) - len(rest)
            # Unless somebody else has appended meanwhile.
            if self._is_regular and os.fstat(self._descriptor).st_size == before + written:
                os.ftruncate(self._descriptor, before)
            raise

    def flush(self) -> None:
        if self._is_regular:
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            if self._is_regular:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _open(self, more_flags: int = 0) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | more_flags
        self._descriptor = os.open(self._path, flags, int(self._settings.permissions, 8))
        self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)

    def _reopen(self) -> None:
        self.close()
        self._open()

    def _follow(self) -> None:
        """Open the path again where another program has moved the file away, as logrotate does."""
        if self._descriptor < 0:
            self._open()
            return
        try:
            there, here = self._path.stat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            self._reopen()
        else:
            if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
                self._reopen()

    def _rotate_before(self, more: int) -> None:
        rotation = self._settings.rotation
        size = os.fstat(self._descriptor).st_size
        if rotation is None or not size or size + more <= rotation.max_megabytes * 2**20:
            return
        self._path.rename(self._backup_path(rotation))
        self._reopen()
        for old in self._superfluous(rotation):
            with contextlib.suppress(OSError):  # somebody else has removed it, or must
                old.unlink()

    def _backup_path(self, rotation: RotationSettings) -> Path:
        """The path with the time before its suffix: `data-2022-09-14T05-02-14.173.json`."""
        milliseconds = self._clock.time_ns() // 1_000_000
        while (path := self._path.with_stem(f"{self._path.stem}-{_stamp(milliseconds, rotation)}")).exists():
            milliseconds += 1
        return path

    def _superfluous(self, rotation: RotationSettings) -> set[Path]:
        """The backups that are too many or too old, by the time in their names."""
        begin, end = f"{self._path.stem}-", self._path.suffix
        stamps = {
            path.name[len(begin) : len(path.name) - len(end)]: path
            for path in self._path.parent.iterdir()
            if path.name.startswith(begin) and path.name.endswith(end)
        }
        newest_first = sorted(filter(_STAMP.fullmatch, stamps), reverse=True)
        oldest = _stamp(self._clock.time_ns() // 1_000_000 - rotation.max_days * _DAY_MS, rotation)
        too_many = newest_first[rotation.max_backups :] if rotation.max_backups else []
        too_old = [stamp for stamp in newest_first if stamp < oldest] if rotation.max_days else []
        return {stamps[stamp] for stamp in [*too_many, *too_old]}


def _stamp(milliseconds: int, rotation: RotationSettings) -> str:
    """A time of which a later one sorts after an earlier one."""
    seconds, rest = divmod(milliseconds, 1000)
    time = datetime.fromtimestamp(seconds, None if rotation.localtime else UTC)
    return f"{time:%Y-%m-%dT%H-%M-%S}.{rest:03d}"


def _what_to_do(error: OSError) -> str:
    advice = {
        errno.ENOENT: "make its directory, or set create_directory: true",
        errno.EACCES: "the sidecar's user needs the right to write there",
        errno.EISDIR: "write the path of a file, not of a directory",
        errno.ENOSPC: "make room, or set rotation with fewer max_backups",
    }.get(error.errno or 0)
    return f"{error.strerror}; {advice}" if advice else str(error.strerror)
