"""Mends a write-ahead log with a damaged byte in it, after which SQLite would silently forget every later commit.

The log is a chain of page images, each with a checksum over all before it (SQLite, "Database File Format", §4). After a
crash SQLite takes the frames up to the first that does not match. Behind a torn last write nothing follows; behind a
flipped byte whole commits do. Those are brought back by chaining the frames anew: what is wrong in the one bad page is
then found by the checksums of the requests on it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

Sums: TypeAlias = tuple[int, int]

PAGE: Final = 4096
_HEADER: Final = struct.Struct(">IIIIIIII")  # magic, version, page size, checkpoint, two salts, two checksums
_FRAME: Final = struct.Struct(">IIIIII")  # page number, pages after a commit, two salts, two checksums
_STRIDE: Final = _FRAME.size + PAGE
# The lowest bit says in which byte order checksums read the data.
_MAGIC: Final = 0x377F0682
_VERSION: Final = 3007000


class WriteAheadLog:
    """The log of a database that was not closed.

    Attributes:
        commits: the frames that end a transaction, counted from 1.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._magic, *_, self._salt1, self._salt2, first, second = _HEADER.unpack_from(data)
        if _checksum(data[:24], (0, 0), self._order) != (first, second):
            # The header itself is damaged: its frames tell the salts.
            self._magic = _MAGIC
            _, _, self._salt1, self._salt2, _, _ = _FRAME.unpack_from(data, _HEADER.size)
        self.commits = [number for number in range(1, self._count + 1) if self._ends_transaction(number)]

    @classmethod
    def read(cls, path: Path) -> WriteAheadLog | None:
        """The log at that path; None where there is none, or nothing in it."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        return cls(data) if len(data) >= _HEADER.size + _STRIDE else None

    def mended(self) -> bytes:
        """The same frames, up to the last commit, with checksums that match."""
        head = struct.pack(">IIIIII", self._magic, _VERSION, PAGE, 0, self._salt1, self._salt2)
        sums = _checksum(head, (0, 0), self._order)
        parts = [head, struct.pack(">II", *sums)]
        # What the frame before ends with: as it says, and as it should say.
        befores: list[Sums] = [_HEADER.unpack_from(self._data)[6:8], sums]
        for number in range(1, self.commits[-1] + 1):
            start = _HEADER.size + (number - 1) * _STRIDE
            page = self._data[start + _FRAME.size : start + _STRIDE]
            written: Sums = _FRAME.unpack_from(self._data, start)[4:6]
            numbers = self._numbers(self._data[start : start + 8], page, befores, written)
            befores = [written, self._sums(befores[0], numbers, page)]
            sums = self._sums(sums, numbers, page)
            parts += [numbers, struct.pack(">IIII", self._salt1, self._salt2, *sums), page]
        return b"".join(parts)

    def _numbers(self, numbers: bytes, page: bytes, befores: Sequence[Sums], written: Sums) -> bytes:
        """A frame's page number and the database's size; where one bit of them is flipped, as they were.

        An image on a wrong page would cost all that stands there.
        """
        if any(self._sums(before, numbers, page) == written for before in befores):
            return numbers
        value = int.from_bytes(numbers, "big")
        for bit in range(64):
            flipped = (value ^ (1 << bit)).to_bytes(8, "big")
            if self._sums(befores[0], flipped, page) == written:
                return flipped
        return numbers

    def _sums(self, before: Sums, numbers: bytes, page: bytes) -> Sums:
        return _checksum(page, _checksum(numbers, before, self._order), self._order)

    @property
    def _order(self) -> str:
        return ">" if self._magic & 1 else "<"

    @property
    def _count(self) -> int:
        return (len(self._data) - _HEADER.size) // _STRIDE

    def _ends_transaction(self, number: int) -> bool:
        _, pages, salt1, salt2, _, _ = _FRAME.unpack_from(self._data, _HEADER.size + (number - 1) * _STRIDE)
        # Frames of other salts are left from before the log was last begun anew.
        return bool(pages) and (salt1, salt2) == (self._salt1, self._salt2)


def _checksum(data: bytes, sums: Sums, order: str) -> Sums:
    """SQLite's checksum of an even number of 32-bit words ("Database File Format", §4.2)."""
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
