"""What the HTTP and the gRPC server have in common: one listener, its leases, and who serves what on it."""

from __future__ import annotations

import asyncio
import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Final, Generic, TypeVar

from config import Endpoint, SettingError, Settings
from sidecar.errors import StartError

_LOGGER: Final = logging.getLogger("sidecar.net")

S = TypeVar("S", bound=Settings)
H = TypeVar("H")

# How long a closing lease waits for the requests under way. Senders give up after 10 s (the SDKs' default).
GRACE: Final = 10.0
# How long a server that lets go waits after that, for answers to be read.
LAST_WORDS: Final = 1.0
# What senders are told to wait when their route has closed: long enough for a restart, short enough for every SDK.
RETRY_AFTER: Final = 1.0


class Claim(Generic[S, H]):
    """One route of one lease, as the table of its server holds it."""

    __slots__ = ("handler", "lease")

    def __init__(self, lease: Lease[S, H], handler: H) -> None:
        self.lease = lease
        self.handler = handler


class Lease(Generic[S, H]):
    """One component's part of a server."""

    def __init__(
        self, server: SharedServer[S, H], owner: str, settings: S | None, replaced: Collection[str] = ()
    ) -> None:
        self.owner = owner
        self.settings = settings
        self.routes: dict[str, H] = {}
        self.is_open = False
        # Requests under way. Counted by the server, on the path of every request.
        self.active = 0
        self.idle: asyncio.Event | None = None
        self._server = server
        self._replaced = replaced

    @property
    def port(self) -> int:
        """The bound port, from `open` on; of interest where the endpoint's port is 0."""
        return self._server.port

    @property
    def address(self) -> str:
        """The server's scheme and endpoint: `http://localhost:4318`."""
        return self._server.address

    def rivals(self) -> list[Lease[S, H]]:
        """The other leases of this server, without those of components that are being replaced."""
        return [
            one for one in self._server.leases if one is not self and one.owner.partition(":")[0] not in self._replaced
        ]

    def claim(self, route: str, handler: H) -> None:
        """Take a route: `POST /path`, or a gRPC method's path.

        Raises:
            SettingError: somebody has it, whom the message names.
        """
        holder = next((one for one in (self, *self.rivals()) if route in one.routes), None)
        if holder is not None:
            raise SettingError(
                f"{route} on {self._server.endpoint} is served by {holder.owner} already; give one of the two another "
                "path or another endpoint"
            )
        self.routes[route] = handler

    async def open(self) -> None:
        """Serve this lease's routes from now on; bind the socket if it is the server's first.

        A route that another lease serves stays there until that one closes or the routes are handed over.

        Raises:
            StartError: the address can't be bound: names the owner, the address and the setting.
        """
        table = self._server.table
        before = {key: claim for key in self.routes if (claim := table.get(key)) is None or not claim.lease.is_open}
        # First the routes, then the socket: nobody is to be told 404 by a server that is about to know better.
        table.update({key: Claim(self, self.routes[key]) for key in before})
        self.is_open = True
        try:
            await self._server.settle(self.owner)
        except BaseException:
            self.is_open = False
            for key, claim in before.items():
                if claim is None:
                    table.pop(key, None)
                else:
                    table[key] = claim
            raise

    async def close(self) -> None:
        """Answer "come again" on this lease's routes, and wait for the requests under way.

        That is 503 with `Retry-After`, or UNAVAILABLE with RetryInfo: a sender that is told that there is no such thing
        would drop its data, and most that close are followed by another. The last one to close lets go of the socket.
        Works twice, and without `open`.
        """
        self.is_open = False
        self._server.remove(self)
        if self.active:
            self.idle = self.idle or asyncio.Event()
            try:
                async with asyncio.timeout(GRACE):
                    await self.idle.wait()
            except TimeoutError:
                _LOGGER.warning("%s: %d requests were not finished in time", self.owner, self.active)
        try:
            await self._server.settle(self.owner)
        except StartError as error:
            # Those who stay wanted it to behave differently: it goes on as it is.
            _LOGGER.warning("%s", error)

    def done(self) -> None:
        """One request less under way."""
        self.active -= 1
        if self.idle is not None and not self.active:
            self.idle.set()

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        return f"<{type(self).__name__} {self._server.endpoint} [{len(self.routes)} routes] {state}: {self.owner}>"


class SharedServer(ABC, Generic[S, H]):
    """One endpoint's server: listens while a lease is open, and behaves as its leases say.

    `advice`: says what else there is to know when it can't listen.
    """

    kind: ClassVar[str]

    def __init__(self, endpoint: Endpoint, advice: Callable[[Any], str] = lambda _: "") -> None:
        self.endpoint = endpoint
        self.advice = advice
        self.port = endpoint.port
        self.table: dict[str, Claim[S, H]] = {}
        # Leases that were made and never opened go away by themselves: those of a document that was only looked at.
        self._leases: list[weakref.ref[Lease[S, H]]] = []
        self._applied: S | None = None
        self._lock = asyncio.Lock()

    def add(self, lease: Lease[S, H]) -> None:
        """Take in a lease.

        Raises:
            SettingError: another lease wants the server to behave differently.
        """
        if lease.settings is not None:
            for other in lease.rivals():
                if other.settings is not None and other.settings != lease.settings:
                    raise SettingError(
                        f"{lease.owner} and {other.owner} share {self.endpoint} and say differently how it behaves "
                        f"({_differences(lease.settings, other.settings)}); write the same for both, or two endpoints"
                    )
        self._leases = [weakref.ref(one) for one in (*self.leases, lease)]

    def remove(self, lease: Lease[S, H]) -> None:
        """Forget a lease that has closed. Routes of it that another one waits for are served by that one."""
        others = [one for one in self.leases if one is not lease]
        self._leases = [weakref.ref(one) for one in others]
        for one in others:
            if one.is_open:
                for route in one.routes.keys() & lease.routes.keys():
                    if self.table[route].lease is lease:
                        self.table[route] = Claim(one, one.routes[route])

    def hand_over(self) -> None:
        """Let each route be served by the lease that was made last of those that are open."""
        for lease in self.leases:
            if lease.is_open:
                self.table.update({key: Claim(lease, handler) for key, handler in lease.routes.items()})

    def forget_unopened(self) -> None:
        """Forget the leases that are not open."""
        self._leases = [weakref.ref(one) for one in self.leases if one.is_open]

    def forget_closed_routes(self) -> None:
        """Serve no more what nobody serves: what asked to come again is unknown from now on."""
        for route in [route for route, claim in self.table.items() if not claim.lease.is_open]:
            del self.table[route]

    @property
    def leases(self) -> list[Lease[S, H]]:
        """The leases, in the order in which they were made."""
        return [lease for ref in self._leases if (lease := ref()) is not None]

    @property
    def address(self) -> str:
        """Scheme and where it listens: `http://localhost:4318`, `grpc://localhost:4317`, `https://unix:///run/a.sock`.

        With TLS it is `https` or `grpcs`.
        """
        applied = self._applied or self.default_settings()
        scheme = self.kind.lower() + ("s" if getattr(applied, "tls", None) is not None else "")
        if self.endpoint.path is not None or self.endpoint.port:
            return f"{scheme}://{self.endpoint}"
        return f"{scheme}://{str(self.endpoint).rpartition(':')[0]}:{self.port}"

    @property
    def is_listening(self) -> bool:
        """Whether a lease is open."""
        return self._applied is not None

    @property
    def holder(self) -> str:
        """One of those who have a lease, for messages."""
        return next((lease.owner for lease in self.leases), "nobody")

    async def settle(self, owner: str) -> None:
        """Listen or not, and behave, as the leases now want it.

        Raises:
            StartError: it can't.
        """
        async with self._lock:
            if not any(lease.is_open for lease in self.leases):
                if self._applied is not None:
                    self._applied = None
                    await self.shut()
                    self.table.clear()
                return
            wanted = self._wanted()
            if self._applied is None:
                try:
                    self.port = await self.listen(wanted, owner)
                except StartError as error:
                    raise StartError(f"{error}{self.advice(self)}") from None
            elif wanted != self._applied:
                self.port = await self.change(wanted, owner)
            self._applied = wanted

    def _wanted(self) -> S:
        said = [lease.settings for lease in self.leases if lease.settings is not None]
        return said[-1] if said else self.default_settings()

    @abstractmethod
    def default_settings(self) -> S:
        """How the server behaves when no lease says anything."""

    @abstractmethod
    async def listen(self, settings: S, owner: str) -> int:
        """Bind and serve. Returns the port. Raises StartError."""

    @abstractmethod
    async def change(self, settings: S, owner: str) -> int:
        """Behave differently from now on, while listening. Returns the port. Raises StartError."""

    @abstractmethod
    async def shut(self) -> None:
        """Let go of the socket and of every connection."""

    def __repr__(self) -> str:
        state = "listening" if self._applied is not None else "closed"
        return f"<{type(self).__name__} {self.endpoint} [{len(self.leases)} leases] {state}>"


def _differences(one: Settings, other: Settings) -> str:
    return ", ".join(name for name in one.__struct_fields__ if getattr(one, name, None) != getattr(other, name, None))
