"""Bind the addresses that an endpoint means, and say in words what to do where that fails."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from config import Endpoint
from sidecar.errors import StartError

BACKLOG: Final = 1024
# Addresses that this host may lack although the name means them: a host without IPv6 still has `localhost`.
_ABSENT: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


class Address(NamedTuple):
    """One address of an endpoint. `optional`: go on without it where this host has no such address."""

    family: socket.AddressFamily
    host: str
    optional: bool = False

    def text(self, port: int) -> str:
        """As people and gRPC write it."""
        return f"[{self.host}]:{port}" if self.family == socket.AF_INET6 else f"{self.host}:{port}"


async def addresses(endpoint: Endpoint, owner: str) -> list[Address]:
    """The addresses that the endpoint's host means. `localhost` means 127.0.0.1 and, where there is one, ::1.

    Raises:
        StartError: the host's name is unknown.
    """
    if endpoint.host == "localhost":
        return [Address(socket.AF_INET, "127.0.0.1"), Address(socket.AF_INET6, "::1", optional=True)]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise StartError(
            f"{owner}: can't listen on {endpoint}: the host {endpoint.host!r} is unknown ({error.strerror}); "
            "write an address of this host, localhost, or 0.0.0.0 for all"
        ) from None
    return [Address(*one) for one in dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found)]


async def bind(endpoint: Endpoint, owner: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> list[socket.socket]:
    """Sockets for the endpoint, which listen where they are streams: all of its addresses, or an error and none.

    Port 0 takes a free port, the same for all addresses, or only the first address where that is not to be had.

    Raises:
        StartError: names the owner, the address, the reason, and what to do.
    """
    if endpoint.path is not None:
        return [_bind_unix(Path(endpoint.path), owner, kind)]
    sockets: list[socket.socket] = []
    port = endpoint.port
    try:
        for address in await addresses(endpoint, owner):
            try:
                sockets.append(_bind_inet(address, port, kind))
            except OSError as error:
                if address.optional and (error.errno in _ABSENT or not endpoint.port):
                    continue
                raise StartError(explain(error, address.text(port), owner)) from None
            port = sockets[0].getsockname()[1]
    except StartError:
        close_all(sockets)
        raise
    return sockets


def close_all(sockets: Iterable[socket.socket]) -> None:
    """Close sockets, and remove the file of a Unix one."""
    for one in sockets:
        path = one.getsockname() if one.family == socket.AF_UNIX else ""
        one.close()
        if path:
            Path(path).unlink(missing_ok=True)


def explain(error: OSError, address: str, owner: str) -> str:
    """Why an address can't be listened on, and what to do: the text of a StartError."""
    port = address.rpartition(":")[2]
    reasons = {
        errno.EADDRINUSE: f"the address is in use; stop what holds it (`ss -lntup 'sport = :{port}'` shows it) or "
        "change the setting",
        errno.EACCES: "not permitted; ports below 1024 need privileges: choose a higher one",
        errno.EADDRNOTAVAIL: "not an address of this host; write localhost, or 0.0.0.0 for all",
    }
    reason = reasons.get(error.errno or 0, os.strerror(error.errno) if error.errno else str(error))
    return f"{owner}: can't listen on {address}: {reason}"


def _bind_inet(address: Address, port: int, kind: socket.SocketKind) -> socket.socket:
    one = socket.socket(address.family, kind)
    try:
        if kind == socket.SOCK_STREAM:
            # Lets a restart bind while old connections are in TIME_WAIT. Never SO_REUSEPORT, nor this one for
            # datagrams: a second process would share the port silently.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            # `::` means every address of both families, as it does in the Collector.
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address.host != "::"))
        one.bind((address.host, port))
        if kind == socket.SOCK_STREAM:
            one.listen(BACKLOG)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


def _bind_unix(path: Path, owner: str, kind: socket.SocketKind) -> socket.socket:
    _remove_stale(path, owner, kind)
    one = socket.socket(socket.AF_UNIX, kind)
    try:
        one.bind(str(path))
        if kind == socket.SOCK_STREAM:
            one.listen(BACKLOG)
        one.setblocking(False)
    except OSError as error:
        one.close()
        raise StartError(_explain_unix(error, path, owner)) from None
    return one


def _remove_stale(path: Path, owner: str, kind: socket.SocketKind) -> None:
    """Remove a socket file that a process left behind when it died.

    Raises:
        StartError: somebody listens there, or the file is not a socket.
    """
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return
    if not is_socket:
        raise StartError(f"{owner}: can't listen on unix://{path}: a file that is not a socket has that name")
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StartError(_explain_unix(error, path, owner)) from None
        else:
            raise StartError(
                f"{owner}: can't listen on unix://{path}: another process listens there; stop it or change the setting"
            )


def _explain_unix(error: OSError, path: Path, owner: str) -> str:
    reasons = {
        errno.ENOENT: f"the folder {path.parent} does not exist; make it, or change the setting",
        errno.EACCES: f"this user may not write in {path.parent}; allow it, or change the setting",
        errno.ENAMETOOLONG: "the path is too long for a socket (107 bytes)",
    }
    reason = reasons.get(error.errno or 0, os.strerror(error.errno) if error.errno else str(error))
    return f"{owner}: can't listen on unix://{path}: {reason}"
