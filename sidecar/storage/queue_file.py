"""One exporter's queue as a SQLite file: what SQLite does well (crash safety, inspection) stays SQLite's.

Every request is a row with a checksum. A row that does not match it is set aside among the dead letters. A file that
SQLite calls damaged, at the start or later, is moved aside, and what can still be read of it goes into a fresh one. Not
safe for several threads: `StoredQueue` gives it a thread of its own.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import sqlite3
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
import zstandard

from sidecar.batch import Batch, BatchContext, Identity
from sidecar.errors import StorageError
from sidecar.signals import Signal
from sidecar.storage.write_ahead_log import PAGE, WriteAheadLog

T = TypeVar("T")
Fsync: TypeAlias = Literal["always", "interval", "never"]

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, so that the order survives deletions
    signal TEXT NOT NULL,
    items INTEGER NOT NULL,
    size INTEGER NOT NULL,                 -- of the serialized request
    severity INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    stored_at INTEGER NOT NULL,            -- Unix time in nanoseconds
    context BLOB NOT NULL,                 -- JSON
    checksum INTEGER NOT NULL,             -- CRC-32 of signal, items, context and data
    data BLOB NOT NULL                     -- the serialized request, compressed by zstd
);
CREATE TABLE dead_letters (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    signal TEXT NOT NULL,
    items INTEGER NOT NULL,
    size INTEGER NOT NULL,
    stored_at INTEGER NOT NULL,
    buried_at INTEGER NOT NULL,
    reason TEXT NOT NULL,
    message TEXT NOT NULL,
    context BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    data BLOB NOT NULL
);
"""
_COLUMNS: Final = {
    "batches": "id, signal, items, size, severity, attempts, stored_at, context, checksum, data",
    "dead_letters": "id, signal, items, size, stored_at, buried_at, reason, message, context, checksum, data",
}
_INSERT: Final = (
    "INSERT INTO batches (signal, items, size, severity, stored_at, context, checksum, data)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_SIGNALS: Final = {signal.value: signal for signal in Signal}
# Faster than zstd's fastest regular level, at twice the size: what counts here is the time.
_LEVEL: Final = -5
# WAL keeps every commit through a crash of the process in all modes; they differ in what a power failure may take.
_SYNCHRONOUS: Final[dict[Fsync, str]] = {"always": "FULL", "interval": "NORMAL", "never": "OFF"}


@dataclass(frozen=True, slots=True)
class Row:
    """One stored request without its data. `stored_at`: Unix time in nanoseconds."""

    id: int
    signal: Signal
    items: int
    size: int
    severity: int
    attempts: int
    stored_at: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One request that was set aside, without its data."""

    id: int
    signal: str
    items: int
    size: int
    stored_at: int
    buried_at: int
    reason: str
    message: str


class QueueFile:
    """An open file. Every method is one transaction, committed when it returns.

    Raises, from every method: `StorageError` when the disk is full or can't be written.
    """

    def __init__(
        self, path: Path, fsync: Fsync = "interval", on_damage: Callable[[str], None] = lambda _message: None
    ) -> None:
        """Open or create.

        Args:
            path: the file; SQLite keeps others beside it while it is open.
            fsync: what a power failure may take.
            on_damage: is told what was damaged, where it has been moved, and what goes on.

        Raises:
            StorageError: the file can't be opened, or was written by a newer sidecar.
        """
        self.path = path
        self._fsync = fsync
        # Compressing costs a quarter of a microsecond per record, and saves three times that in pages to be written.
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._on_damage = on_damage
        try:
            self._mend_log()
            self._connection = self._open()
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error
        except sqlite3.OperationalError as error:
            raise StorageError(f"{path}: {error}") from error
        except sqlite3.DatabaseError:
            self._connection = self._start_afresh()

    # Opening.

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5)
        connection.text_factory = _text
        try:
            connection.execute(f"PRAGMA page_size = {PAGE}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._fsync]}")
            connection.execute("PRAGMA cell_size_check = ON")
            # Pages: 16 MiB. What is delivered within that time never has to be copied into the file.
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
            connection.execute("PRAGMA cache_size = -2048")  # KiB; rows are written once and read once
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
            elif version > SCHEMA_VERSION:
                raise StorageError(
                    f"{self.path} was written by a newer sidecar (schema {version}, this one reads {SCHEMA_VERSION}); "
                    "run that one, or name another directory"
                )
            connection.execute("SELECT count(*), max(id) FROM batches").fetchone()
            connection.execute("SELECT max(id) FROM dead_letters").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _mend_log(self) -> None:
        """After a crash: see to it that a damaged byte in the log costs no more than the requests on its page."""
        beside = self._beside("-wal")
        log = WriteAheadLog.read(beside)
        if log is None or not log.commits:
            return
        aside = self._aside("-wal")
        shutil.copyfile(beside, aside)
        # Reading is what makes SQLite look at the log, and closing what makes it throw the log away.
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
            _, valid, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if valid >= log.commits[-1]:
            aside.unlink()
            return
        # A crash tears only the last write, which nobody was told of.
        is_torn = len(log.commits) == 1 or valid >= log.commits[-2]
        if not is_torn:
            beside.write_bytes(log.mended())
        what = "was torn by the crash, or is damaged" if is_torn else "is damaged, and the requests after it go on"
        self._on_damage(f"{beside}: a write {what}; a copy is at {aside}")

    def _start_afresh(self) -> sqlite3.Connection:
        """Move a damaged file aside, and copy into a fresh one what can still be read."""
        aside = self._aside()
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self._beside(suffix).rename(aside.with_name(aside.name + suffix))
        connection = self._open()
        kept = 0
        for source in (aside, _with_fresh_schema(aside, connection)):
            with contextlib.suppress(sqlite3.DatabaseError), _transaction(connection):
                for table, columns, row in _readable_rows(source):
                    marks = ", ".join("?" * len(row))
                    connection.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})", row)  # noqa: S608
                    kept += 1
            if kept:
                break
        for suffix in ("", "-wal", "-shm"):
            aside.with_name(f"{aside.name}.mended{suffix}").unlink(missing_ok=True)
        self._on_damage(f"{self.path} is damaged: it has been moved to {aside}, and {kept} requests in it go on")
        return connection

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _aside(self, suffix: str = "") -> Path:
        return self._beside(f".damaged-{time.time_ns()}{suffix}")

    # The queue.

    def change(
        self, appended: Sequence[tuple[Batch, int]], gone: Iterable[int] = (), tried: Iterable[int] = ()
    ) -> list[int]:
        """Store requests, forget others, and note failed attempts, in one transaction.

        Args:
            appended: requests, each with its severity.
            gone: rows that have arrived or were given up.
            tried: rows that failed once more.

        Returns:
            The ids of the new rows, ascending.
        """
        now = time.time_ns()
        rows = []
        for batch, severity in appended:
            data, context = self._compressor.compress(batch.encode()), _pack(batch.context)
            signal, items = batch.signal.value, len(batch)
            checksum = _checksum(signal, items, context, data)
            rows.append((signal, items, len(batch.encode()), severity, now, context, checksum, data))
        leaving, failed = [(id_,) for id_ in gone], [(id_,) for id_ in tried]

        def write(connection: sqlite3.Connection) -> list[int]:
            ids = [int(connection.execute(_INSERT, row).lastrowid or 0) for row in rows]
            connection.executemany("DELETE FROM batches WHERE id = ?", leaving)
            connection.executemany("UPDATE batches SET attempts = attempts + 1 WHERE id = ?", failed)
            return ids

        return self._do(write)

    def rows(self, after: int, limit: int) -> list[Row]:
        """The next rows in their order, without their data."""
        found = self._all(
            f"SELECT id, signal, {_sound('items')}, {_sound('size')}, {_sound('severity')}, {_sound('attempts')},"  # noqa: S608
            f" {_sound('stored_at', time.time_ns())} FROM batches WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        # A signal that is none shows when the row is read: it has its part in the checksum.
        return [Row(id_, _SIGNALS.get(signal, Signal.LOGS), *rest) for id_, signal, *rest in found]

    def read(self, id_: int) -> Batch | None:
        """One request; None when it does not match its checksum, which sets it aside, or is there no more."""
        found = self._all("SELECT signal, items, context, checksum, data FROM batches WHERE id = ?", (id_,))
        for signal, items, context, checksum, data in found:
            if _checksum(signal, items, context, data) == checksum:
                return Batch(Signal(signal), _decompressed(data), context=_unpack(context), items=items)
            self.bury([id_], "corrupt", "the stored request does not match its checksum")
        return None

    def totals(self) -> tuple[int, int, int]:
        """Requests, items and bytes that are stored."""
        ((count, items, size),) = self._all(
            f"SELECT count(*), coalesce(sum({_sound('items')}), 0), coalesce(sum({_sound('size')}), 0) FROM batches"  # noqa: S608
        )
        return count, items, size

    # Dead letters.

    def bury(self, ids: Iterable[int], reason: str, message: str) -> None:
        """Set requests aside, for a person to look at."""
        now = time.time_ns()
        wanted = list(ids)

        def move(connection: sqlite3.Connection) -> None:
            for id_ in wanted:
                connection.execute(
                    "INSERT INTO dead_letters"
                    " (signal, items, size, stored_at, buried_at, reason, message, context, checksum, data)"
                    " SELECT signal, items, size, stored_at, ?, ?, ?, context, checksum, data"
                    " FROM batches WHERE id = ?",
                    (now, reason, message[:1000], id_),
                )
                connection.execute("DELETE FROM batches WHERE id = ?", (id_,))

        self._do(move)

    def dead_letters(self) -> list[DeadLetter]:
        """What has been set aside, oldest first."""
        found = self._all(
            "SELECT id, signal, items, size, stored_at, buried_at, reason, message FROM dead_letters ORDER BY id"
        )
        return [DeadLetter(*row) for row in found]

    def dead_letter(self, id_: int) -> Batch | None:
        """One request that was set aside, as it is; None when there is none of that id."""
        found = self._all("SELECT signal, items, context, data FROM dead_letters WHERE id = ?", (id_,))
        for signal, items, context, data in found:
            return Batch(Signal(signal), _decompressed(data), context=_unpack(context), items=items)
        return None

    def replay(self, ids: Iterable[int] | None = None) -> int:
        """Put dead letters back at the end of the queue: those given, or all. Returns how many."""
        wanted = [letter.id for letter in self.dead_letters()] if ids is None else list(ids)

        def move(connection: sqlite3.Connection) -> int:
            moved = 0
            for id_ in wanted:
                moved += connection.execute(
                    "INSERT INTO batches (signal, items, size, severity, stored_at, context, checksum, data)"
                    " SELECT signal, items, size, 0, ?, context, checksum, data FROM dead_letters WHERE id = ?",
                    (time.time_ns(), id_),
                ).rowcount
                connection.execute("DELETE FROM dead_letters WHERE id = ?", (id_,))
            return moved

        return self._do(move)

    def purge(self, table: Literal["batches", "dead_letters"]) -> int:
        """Delete everything of one kind. Returns how many requests."""
        return self._do(lambda connection: connection.execute(f"DELETE FROM {table}").rowcount)  # noqa: S608

    # Upkeep.

    def sync(self) -> None:
        """Bring everything onto the disk itself, and give free pages back to the file system."""
        with self._words():
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._connection.execute("PRAGMA incremental_vacuum(1000)").fetchall()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _all(self, query: str, values: Sequence[int] = ()) -> list[tuple[Any, ...]]:
        return self._do(lambda connection: connection.execute(query, values).fetchall())

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Work in one transaction; where the file proves to be damaged, again in what can be saved of it."""
        with self._words():
            try:
                with _transaction(self._connection):
                    return work(self._connection)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
            self._connection.close()
            self._connection = self._start_afresh()
            with _transaction(self._connection):
                return work(self._connection)

    @contextlib.contextmanager
    def _words(self) -> Iterator[None]:
        """SQLite's word for a disk that can't be written becomes ours."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StorageError(f"{self.path}: {error}") from error


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _with_fresh_schema(path: Path, fresh: sqlite3.Connection) -> Path:
    """A copy of a file with the first page of a fresh one, for the case that it is the first page which is damaged."""
    fresh.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    (_, _, own) = fresh.execute("PRAGMA database_list").fetchone()
    with Path(own).open("rb") as file:
        page = bytearray(file.read(PAGE))
    # The size in pages, and no free pages ("Database File Format", §1.3).
    page[28:40] = struct.pack(">III", path.stat().st_size // PAGE, 0, 0)
    copy = path.with_name(f"{path.name}.mended")
    shutil.copyfile(path, copy)
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(f"{path}-wal", f"{copy}-wal")
    with copy.open("r+b") as file:
        file.write(page)
    return copy


def _readable_rows(path: Path) -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """The rows of a damaged file that can still be read, one by one, so that one bad page costs only what is on it.

    Yields: table, columns, values.
    """
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as damaged:
        damaged.text_factory = _text
        for table, columns in _COLUMNS.items():
            # Either may stand on the damaged page.
            first = _number(damaged, f"SELECT min(id) FROM {table}") or 1  # noqa: S608
            last = _number(damaged, f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'")  # noqa: S608
            last = last or _number(damaged, f"SELECT max(id) FROM {table}")  # noqa: S608
            for id_ in range(first, last + 1):
                with contextlib.suppress(sqlite3.DatabaseError):
                    query = f"SELECT {columns} FROM {table} WHERE id = ?"  # noqa: S608
                    row = damaged.execute(query, (id_,)).fetchone()
                    if row is not None:
                        yield table, columns, row


def _number(connection: sqlite3.Connection, query: str) -> int:
    """The only number of an answer; 0 where there is none, or none can be had."""
    with contextlib.suppress(sqlite3.DatabaseError):
        for (number,) in connection.execute(query):
            return number if isinstance(number, int) else 0
    return 0


def _text(data: bytes) -> str:
    """Text as it is, also where damage has made it something else."""
    return data.decode(errors="replace")


def _sound(column: str, otherwise: int = 0) -> str:
    """A number column as it is, unless damage has made it something else."""
    return f"iif(typeof({column}) = 'integer' AND {column} BETWEEN 0 AND {2**62}, {column}, {otherwise})"


def _checksum(signal: object, items: object, context: object, data: object) -> int:
    """Of any values: a damaged row may hold anything."""
    blobs = [one if isinstance(one, bytes) else repr(one).encode() for one in (signal, items, context, data)]
    return functools.reduce(lambda sum_, one: zlib.crc32(one, sum_), blobs, 0)


def _decompressed(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


def _pack(context: BatchContext) -> bytes:
    identity = context.identity
    fields = {
        "identity": identity and [identity.kind, identity.name, identity.machine_id, identity.account_id],
        "peer": context.peer,
        "transport": context.transport,
        "metadata": dict(context.metadata),
        "received_at": context.received_at,
    }
    return msgspec.json.encode(fields)


def _unpack(data: bytes) -> BatchContext:
    fields = msgspec.json.decode(data)
    identity = fields.pop("identity")
    return BatchContext(identity=identity and Identity(*identity), **fields)
