"""Queues on disk: requests that survive a crash, in one SQLite file per exporter."""

from sidecar.storage.queue_file import DeadLetter, Fsync, QueueFile, Row, StorageError
from sidecar.storage.stored_queue import StoredQueue

__all__ = ["DeadLetter", "Fsync", "QueueFile", "Row", "StorageError", "StoredQueue"]
