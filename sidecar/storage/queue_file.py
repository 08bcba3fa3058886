"""One exporter's queue as a SQLite file: what SQLite does well (crash safety, inspection) stays SQLite's.

Every request is a row with a checksum. A row that does not match it is set aside among the dead letters. A file that
SQLite calls damaged is moved aside, and what can still be read of it goes into a fresh one. Not safe for several
threads: `StoredQueue` gives it a thread of its own.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from sidecar.batch import Batch, BatchContext, Identity
from sidecar.signals import Signal

Fsync: TypeAlias = Literal["always", "interval", "never"]

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, so that the order survives deletions
    signal TEXT NOT NULL,
    items INTEGER NOT NULL,
    size INTEGER NOT NULL,
    severity INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    stored_at INTEGER NOT NULL,            -- Unix time in nanoseconds
    context BLOB NOT NULL,                 -- JSON
    checksum INTEGER NOT NULL,             -- CRC-32 of context and data
    data BLOB NOT NULL                     -- the serialized request
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
# WAL keeps every commit through a crash of the process in all modes; they differ in what a power failure may take.
_SYNCHRONOUS: Final[dict[Fsync, str]] = {"always": "FULL", "interval": "NORMAL", "never": "OFF"}


class StorageError(Exception):
    """The file can't take what it was given: the disk is full, or its directory is gone."""


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

    def __init__(self, path: Path, fsync: Fsync = "interval") -> None:
        """Open or create. `quarantined` is where a damaged file went, None when there was none.

        Raises:
            StorageError: the file can't be opened, or was written by a newer sidecar.
        """
        self.path = path
        self.quarantined: Path | None = None
        self._fsync = fsync
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise StorageError(f"{path}: {error}") from error
            self._connection = self._start_afresh()

    # Opening.

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._fsync]}")
            connection.execute("PRAGMA cell_size_check = ON")
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

    def _start_afresh(self) -> sqlite3.Connection:
        """Move a damaged file aside, and copy into a fresh one what can still be read."""
        self.quarantined = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).rename(
                    self.quarantined.with_name(self.quarantined.name + suffix)
                )
        connection = self._open()
        with contextlib.suppress(sqlite3.DatabaseError), _transaction(connection):
            for row in _readable_rows(self.quarantined):
                connection.execute(
                    "INSERT INTO batches (signal, items, size, severity, attempts, stored_at, context, checksum, data)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    row,
                )
        return connection

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
        with self._guarded():
            ids = []
            for batch, severity in appended:
                data, context = batch.encode(), _pack(batch.context)
                cursor = self._connection.execute(
                    "INSERT INTO batches (signal, items, size, severity, stored_at, context, checksum, data)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (batch.signal.value, len(batch), len(data), severity, now, context, _checksum(context, data), data),
                )
                ids.append(int(cursor.lastrowid or 0))
            self._connection.executemany("DELETE FROM batches WHERE id = ?", [(id_,) for id_ in gone])
            self._connection.executemany(
                "UPDATE batches SET attempts = attempts + 1 WHERE id = ?", [(id_,) for id_ in tried]
            )
            return ids

    def rows(self, after: int, limit: int) -> list[Row]:
        """The next rows in their order, without their data."""
        with self._guarded():
            found = self._connection.execute(
                "SELECT id, signal, items, size, severity, attempts, stored_at"
                " FROM batches WHERE id > ? ORDER BY id LIMIT ?",
                (after, limit),
            ).fetchall()
        return [Row(id_, Signal(signal), *rest) for id_, signal, *rest in found]

    def read(self, id_: int, signal: Signal, items: int) -> Batch | None:
        """One request; None when it does not match its checksum or can't be read: it is set aside then."""
        try:
            with self._guarded():
                found = self._connection.execute(
                    "SELECT context, checksum, data FROM batches WHERE id = ?", (id_,)
                ).fetchone()
        except sqlite3.DatabaseError:
            found = None
        if found is not None:
            context, checksum, data = found
            if _checksum(context, data) == checksum:
                return Batch(signal, data, context=_unpack(context), items=items)
        self.bury([id_], "corrupt", "the stored request does not match its checksum")
        return None

    def totals(self) -> tuple[int, int, int]:
        """Requests, items and bytes that are stored."""
        with self._guarded():
            count, items, size = self._connection.execute(
                "SELECT count(*), coalesce(sum(items), 0), coalesce(sum(size), 0) FROM batches"
            ).fetchone()
        return count, items, size

    # Dead letters.

    def bury(self, ids: Iterable[int], reason: str, message: str) -> None:
        """Set requests aside, for a person to look at."""
        now = time.time_ns()
        with self._guarded():
            for id_ in ids:
                self._connection.execute(
                    "INSERT INTO dead_letters"
                    " (signal, items, size, stored_at, buried_at, reason, message, context, checksum, data)"
                    " SELECT signal, items, size, stored_at, ?, ?, ?, context, checksum, data"
                    " FROM batches WHERE id = ?",
                    (now, reason, message[:1000], id_),
                )
                self._connection.execute("DELETE FROM batches WHERE id = ?", (id_,))

    def dead_letters(self) -> list[DeadLetter]:
        """What has been set aside, oldest first."""
        with self._guarded():
            found = self._connection.execute(
                "SELECT id, signal, items, size, stored_at, buried_at, reason, message FROM dead_letters ORDER BY id"
            ).fetchall()
        return [DeadLetter(*row) for row in found]

    def dead_letter(self, id_: int) -> Batch | None:
        """One request that was set aside, as it is; None when there is none of that id."""
        with self._guarded():
            found = self._connection.execute(
                "SELECT signal, items, context, data FROM dead_letters WHERE id = ?", (id_,)
            ).fetchone()
        if found is None:
            return None
        signal, items, context, data = found
        return Batch(Signal(signal), data, context=_unpack(context), items=items)

    def replay(self, ids: Iterable[int] | None = None) -> int:
        """Put dead letters back at the end of the queue: those given, or all. Returns how many."""
        wanted = [letter.id for letter in self.dead_letters()] if ids is None else list(ids)
        moved = 0
        with self._guarded():
            for id_ in wanted:
                cursor = self._connection.execute(
                    "INSERT INTO batches (signal, items, size, severity, stored_at, context, checksum, data)"
                    " SELECT signal, items, size, 0, ?, context, checksum, data FROM dead_letters WHERE id = ?",
                    (time.time_ns(), id_),
                )
                moved += cursor.rowcount
                self._connection.execute("DELETE FROM dead_letters WHERE id = ?", (id_,))
        return moved

    def purge(self, table: Literal["batches", "dead_letters"]) -> int:
        """Delete everything of one kind. Returns how many requests."""
        with self._guarded():
            return self._connection.execute(f"DELETE FROM {table}").rowcount  # noqa: S608 (one of two literals)

    # Upkeep.

    def sync(self) -> None:
        """Bring everything onto the disk itself, and give free pages back to the file system."""
        with self._guarded(transaction=False):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._connection.execute("PRAGMA incremental_vacuum(1000)").fetchall()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    @contextlib.contextmanager
    def _guarded(self, *, transaction: bool = True) -> Iterator[None]:
        """A transaction; SQLite's word for a disk that can't be written becomes ours."""
        try:
            with _transaction(self._connection) if transaction else contextlib.nullcontext():
                yield
        except sqlite3.OperationalError as error:
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


def _readable_rows(path: Path) -> Iterator[tuple[object, ...]]:
    """The rows of a damaged file that can still be read, one by one, so that one bad page costs only what is on it."""
    columns = "signal, items, size, severity, attempts, stored_at, context, checksum, data"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as damaged:
        try:
            (last,) = damaged.execute("SELECT seq FROM sqlite_sequence WHERE name = 'batches'").fetchone()
            (first,) = damaged.execute("SELECT min(id) FROM batches").fetchone()
        except (sqlite3.DatabaseError, TypeError):
            return
        for id_ in range(first or 1, last + 1):
            try:
                row = damaged.execute(f"SELECT {columns} FROM batches WHERE id = ?", (id_,)).fetchone()  # noqa: S608
            except sqlite3.DatabaseError:
                continue
            if row is not None:
                yield row


def _checksum(context: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(context))


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
