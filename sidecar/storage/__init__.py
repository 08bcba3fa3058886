"""Queues on disk: requests that survive a crash, in one SQLite file per exporter.

Whoever needs it imports it only then: SQLite takes 2 MiB, and not everybody has queues on disk.
"""

from sidecar.storage.queue_file import DeadLetter, Fsync, QueueFile, Row
from sidecar.storage.stored_queue import StoredQueue

__all__ = ["DeadLetter", "Fsync", "QueueFile", "Row", "StoredQueue"]
