"""Tells systemd how the process is: ready, reloading, stopping, and that it still lives (sd_notify(3))."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time


def ready() -> None:
    """All has started, or the reload is over."""
    _send("READY=1")


def reloading() -> None:
    """A reload has begun. `Type=notify-reload` asks for the time."""
    _send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


def stopping() -> None:
    """The stop has begun."""
    _send("STOPPING=1")


async def keep_alive() -> None:
    """Tell the watchdog, where there is one, that the event loop still turns. Runs until it is cancelled."""
    microseconds = int(os.environ.get("WATCHDOG_USEC") or 0)
    if not microseconds or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        _send("WATCHDOG=1")
        await asyncio.sleep(microseconds / 2e6)


def _send(message: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # "@" stands for the zero byte of an abstract socket. Nobody is helped if this process fails when systemd is deaf.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel,
    ):
        channel.sendto(message.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
