"""Metrics as DogStatsD: lines for an Agent, in datagrams."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from exporters.datadog.delivery import Body, Request, Route, Unit
from exporters.datadog.metric_bodies import unit_of, within
from exporters.datadog.points import Key, Points
from exporters.datadog.sketches import value_of_key
from sidecar import Retryable, StartError

# What clients of Datadog pack: a UDP datagram that fits an Ethernet frame, and what an Agent reads from a socket.
MAX_UDP: Final = 1432
MAX_UNIX: Final = 8192
DATAGRAM: Final = Route("", "", compression="none")
"""Marks the requests that are datagrams."""

_DEFAULT_PORT: Final = 8125

# They would end a name or a tag.
_NOT_IN_NAME: Final = re.compile(r"[:|@\n]+")
_NOT_IN_TAG: Final = re.compile(r"[|,\n]+")


def datagrams(points: Points, limit: int) -> Iterator[Body]:
    """Lines packed into datagrams of at most `limit` bytes. A longer line is left to the network.

    A distribution is sent as the values that its bins stand for, with sample rates that give each its weight. It has no
    timestamp, which the protocol (1.3) knows for counts and gauges alone.
    """
    for data, units in within(_lines(points), limit):
        yield Body(b"\n".join(data), units)


def _lines(points: Points) -> Iterator[tuple[bytes, Unit]]:
    for kind, values in (("c", points.counts), ("g", points.gauges)):
        for key, value in values.items():
            line = f"{_name(key)}:{value.number!r}|{kind}{_tags(key)}|T{key.second}"
            yield line.encode(), unit_of(value.items)
    for key, distribution in points.distributions.items():
        unit = unit_of(distribution.items)
        for k, n in sorted(distribution.sketch.bins.items()):
            rate = f"|@{1 / n!r}" if n > 1 else ""
            yield f"{_name(key)}:{value_of_key(k)!r}|d{rate}{_tags(key)}".encode(), unit
            unit = ()


class DogStatsD:
    """A socket to an Agent.

    Args:
        url: `udp://host:port` or `unix:///path`.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._url = url
        self.max_datagram = MAX_UNIX if parts.scheme.startswith("unix") else MAX_UDP
        self._path = (parts.netloc + parts.path) if parts.scheme.startswith("unix") else ""
        self._address = (parts.hostname or "localhost", parts.port or _DEFAULT_PORT)
        self._socket: socket.socket | None = None

    async def open(self) -> None:
        """Make the socket.

        Raises:
            StartError: the host is not known.
        """
        if self._path:
            return
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)
        except OSError as error:
            raise StartError(f"metrics.dogstatsd_url: {self._url}: {error.strerror}; write udp://host:port") from None
        family, kind, protocol, _, address = found[0]
        self._socket = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        self._socket.connect(address)

    def close(self) -> None:
        """Let go of the socket. Works twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def send(self, request: Request, timeout: float) -> None:  # noqa: ASYNC109 (as of every sender)
        """Send one datagram. UDP does not tell whether anybody has it; a Unix socket tells whether anybody is there.

        Raises:
            Retryable: the Agent is not there, or does not keep up.
        """
        try:
            made = self._socket or self._connect()
            async with asyncio.timeout(max(0.0, timeout)):
                await asyncio.get_running_loop().sock_sendall(made, request.body)
        except OSError as error:  # a TimeoutError is one
            if self._path:
                self.close()
            raise Retryable(f"{self._url}: {error.strerror or type(error).__name__}") from None

    def _connect(self) -> socket.socket:
        if not self._path:
            raise OSError("not started")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            made.connect(self._path)
        except OSError:
            made.close()
            raise
        self._socket = made
        return made


def _name(key: Key) -> str:
    return _NOT_IN_NAME.sub("_", key.metric)


def _tags(key: Key) -> str:
    tags = [_NOT_IN_TAG.sub("_", one) for one in key.tags]
    if key.host:
        tags.append(f"host:{key.host}")
    return f"|#{','.join(tags)}" if tags else ""
