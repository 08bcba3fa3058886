"""Sockets that one component has for itself: bound once, and taken over by the one that succeeds it at a reload."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from config import Endpoint
from sidecar.net.sockets import bind

# The largest payload of UDP; senders on Unix sockets stay far below.
_LARGEST: Final = 65_535
# How many datagrams are read at a time, before others have their turn.
_BURST: Final = 256
# How many bursts are read at the end. Who goes on sending is not waited for.
_LAST_BURSTS: Final = 64
# `SO_MEMINFO` of Linux: nine numbers of 32 bits, the last of them how many datagrams found the buffer full.
_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("9I")
# Any program of this host may send, as it may to a port.
_MODE: Final = 0o722


class OwnSockets:
    """The sockets of an endpoint.

    Args:
        endpoint: an address, or a Unix socket that any program of this host may write to.
        owner: the component and the setting, for messages: `receivers.dogstatsd: endpoint`.
        kind: streams or datagrams.
    """

    def __init__(self, endpoint: Endpoint, owner: str, kind: socket.SocketKind) -> None:
        self.endpoint = endpoint
        self.sockets: list[socket.socket] = []
        self._owner = owner
        self._kind = kind

    @property
    def port(self) -> int:
        """The bound port; 0 where there is none."""
        return int(self.sockets[0].getsockname()[1]) if self.sockets and self.endpoint.path is None else 0

    async def open(self) -> None:
        """Bind, or share what a component with the same owner has: what the kernel holds is read by either of them.

        Raises:
            StartError: the address can't be bound: names the owner, the address and what to do.
        """
        holder = self._other()
        if holder is not None:
            self.sockets = [one.dup() for one in holder.sockets]
        else:
            self.sockets = await bind(self.endpoint, self._owner, self._kind)
            if self.endpoint.path is not None:
                os.chmod(self.endpoint.path, _MODE)  # noqa: PTH101 (immediate; pathlib says it is not)
        for one in self.sockets:
            one.setblocking(False)
        _OPEN.append(self)

    def close(self) -> None:
        """Let go; the last one removes a Unix socket's file. Works twice, and without `open`."""
        if self not in _OPEN:
            return
        _OPEN.remove(self)
        for one in self.sockets:
            one.close()
        self.sockets = []
        if self.endpoint.path is not None and self._other() is None:
            Path(self.endpoint.path).unlink(missing_ok=True)

    def _other(self) -> OwnSockets | None:
        """Somebody who has the same sockets open. With port 0, everybody has a port of their own."""
        if self.endpoint.path is None and not self.endpoint.port:
            return None
        mine = (self.endpoint, self._owner, self._kind)
        return next((one for one in _OPEN if (one.endpoint, one._owner, one._kind) == mine), None)  # noqa: SLF001


_OPEN: Final[list[OwnSockets]] = []


class Datagrams:
    """Reads the datagrams that are sent to an endpoint.

    Args:
        endpoint: where to.
        owner: as of `OwnSockets`.
        buffer: bytes that the kernel is asked to keep for each socket; it may grant less (`net.core.rmem_max`).
        on_data: called with each datagram.
    """

    def __init__(self, endpoint: Endpoint, owner: str, buffer: int, on_data: Callable[[bytes], None]) -> None:
        self._own = OwnSockets(endpoint, owner, socket.SOCK_DGRAM)
        self._wanted = buffer
        self._on_data = on_data
        self._space = bytearray(_LARGEST)
        self._lost_before = 0

    @property
    def port(self) -> int:
        """The bound port; 0 where there is none."""
        return self._own.port

    async def open(self) -> None:
        """Bind, and read. Raises StartError."""
        await self._own.open()
        for one in self._own.sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._wanted)
            asyncio.get_running_loop().add_reader(one, self._read, one)

    def close(self) -> None:
        """Read what has arrived, and let go. Works twice, and without `open`."""
        for one in self._own.sockets:
            asyncio.get_running_loop().remove_reader(one)
            for _ in range(_LAST_BURSTS):
                if not self._read(one):
                    break
        self._lost_before = self.lost
        self._own.close()

    @property
    def lost(self) -> int:
        """How many datagrams the kernel had no room for."""
        return self._lost_before + sum(map(_lost, self._own.sockets))

    @property
    def buffer(self) -> int:
        """Bytes that the kernel does keep for each socket, its own bookkeeping included."""
        return min((one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for one in self._own.sockets), default=0)

    def _read(self, one: socket.socket) -> bool:
        """Read what is there, up to a burst. Returns whether there may be more."""
        space = memoryview(self._space)
        for _ in range(_BURST):
            try:
                size = one.recv_into(space)
            except OSError:
                return False
            self._on_data(bytes(space[:size]))
        return True


def _lost(one: socket.socket) -> int:
    try:
        return int(_MEMINFO.unpack(one.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[-1])
    except (OSError, struct.error):
        return 0  # a kernel that doesn't say
