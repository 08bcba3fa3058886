"""Takes in DogStatsD over UDP and Unix sockets, in an Agent's place."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from config import Endpoint, SettingError, Size
from sidecar.component import Context, Receiver
from sidecar.dogstatsd import AggregationSettings, DogStatsDIntake
from sidecar.net.own_sockets import Datagrams, OwnSockets
from sidecar.signals import Signal

# Clients pack at most 8 KiB. Nothing in the protocol says so, and a longer packet is no harm yet.
_MAX_PACKET: Final = 1 << 20
_PREFIX: Final = 4
# Of the loop: one to accept who has connected, one to begin, one to read, and one more for other loops' habits.
_LAST_TURNS: Final = 4


class DogStatsDSettings(AggregationSettings):
    """Where lines are received, and how they are added up.

    Attributes:
        endpoint: of UDP; null for none.
        socket: the path of a Unix datagram socket; null for none.
        stream_socket: the path of a Unix stream socket; null for none.
        receive_buffer_size: what the kernel is asked to keep of what was not read yet, for each datagram socket. It may
            grant less: `net.core.rmem_max`.
    """

    endpoint: Endpoint | None = Endpoint("localhost:8125")
    socket: Endpoint | None = None
    stream_socket: Endpoint | None = None
    receive_buffer_size: Size = Size("4MiB")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoint is None and self.socket is None and self.stream_socket is None:
            raise SettingError("must name at least one of endpoint, socket and stream_socket")
        for name in ("socket", "stream_socket"):
            endpoint = getattr(self, name)
            if endpoint is not None and endpoint.path is None:
                raise SettingError(f"{endpoint} is not a path; write for example unix:///run/dogstatsd.sock", name)


class DogStatsDReceiver(Receiver[DogStatsDSettings]):
    """A DogStatsD server: metrics, and events and service checks as log records."""

    signals = frozenset({Signal.METRICS, Signal.LOGS})

    def __init__(self, settings: DogStatsDSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.intake = DogStatsDIntake(self, settings, "dogstatsd")
        self._datagrams: dict[str, Datagrams] = {}
        for name, transport in (("endpoint", "udp"), ("socket", "unix")):
            endpoint = getattr(settings, name)
            if endpoint is not None:
                self._datagrams[transport] = Datagrams(
                    endpoint, f"receivers.{context.id}: {name}", settings.receive_buffer_size, self.intake.take
                )
        self._stream: PacketServer | None = None
        if settings.stream_socket is not None:
            owner = f"receivers.{context.id}: stream_socket"
            self._stream = PacketServer(settings.stream_socket, owner, self.intake.take, self._on_broken)

    @property
    def port(self) -> int:
        """The bound UDP port, from `start` on."""
        return self._datagrams["udp"].port

    async def start(self) -> None:
        """Listen."""
        for transport, datagrams in self._datagrams.items():
            await datagrams.open()
            self._show(transport, datagrams)
        if self._stream is not None:
            await self._stream.open()
        self.context.spawn(self.intake.run(), "windows")
        self.context.health.ok()

    async def stop(self) -> None:
        """Read what has arrived, let go of the sockets, and hand on what was added up."""
        for datagrams in self._datagrams.values():
            datagrams.close()
        if self._stream is not None:
            await self._stream.close()
        await self.intake.stop()

    def _show(self, transport: str, datagrams: Datagrams) -> None:
        meter = self.context.meter
        meter.gauge(
            "sidecar_dogstatsd_lost_datagrams",
            "Datagrams that the kernel had no room for, since the sockets were opened.",
            lambda: datagrams.lost,
            transport=transport,
        )
        meter.gauge(
            "sidecar_dogstatsd_receive_buffer_bytes",
            "What the kernel keeps of what was not read yet.",
            lambda: datagrams.buffer,
            transport=transport,
        )

    def _on_broken(self, size: int) -> None:
        self.context.logger.warning("a sender announced a packet of %d bytes; its connection is closed", size)
        self.context.dropped(Signal.METRICS, "malformed", 1)


class PacketServer:
    """A Unix stream socket on which each packet comes after its length: 32 bits, the lowest first.

    Args:
        endpoint: the path.
        owner: as of `OwnSockets`.
        on_data: called with each packet.
        on_broken: called with a length that is too large to be true; its connection is closed.
    """

    def __init__(
        self, endpoint: Endpoint, owner: str, on_data: Callable[[bytes], None], on_broken: Callable[[int], None]
    ) -> None:
        self.on_data = on_data
        self.on_broken = on_broken
        self.connections: set[_Connection] = set()
        self._own = OwnSockets(endpoint, owner, socket.SOCK_STREAM)
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Bind, and accept. Raises StartError."""
        await self._own.open()
        (one,) = self._own.sockets
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: _Connection(self), sock=one.dup())

    async def close(self) -> None:
        """Read what has arrived, and let go of the socket and of every connection. Works twice, and without `open`."""
        if self._server is None:
            return
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)
        self._server.close()
        self._server = None
        self._own.close()
        for connection in list(self.connections):
            connection.close()


class _Connection(asyncio.Protocol):
    """One sender."""

    def __init__(self, server: PacketServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """End."""
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Take the packets that are complete."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _PREFIX:
            size = int.from_bytes(buffer[start : start + _PREFIX], "little")
            if size > _MAX_PACKET:
                self._server.on_broken(size)
                self.close()
                return
            end = start + _PREFIX + size
            if len(buffer) < end:
                break
            self._server.on_data(bytes(buffer[start + _PREFIX : end]))
            start = end
        del buffer[:start]

    def close(self) -> None:
        """Hang up."""
        self._buffer.clear()
        if self._transport is not None:
            self._transport.close()
