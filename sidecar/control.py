"""How `sidecar reload` talks to the running process: one line over a Unix socket, and the outcome as the answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

Handler = Callable[[], Awaitable[tuple[bool, str]]]

_OK: Final = b"ok\n"
_FAILED: Final = b"failed\n"
# A reload starts components and waits for the listeners that change; a minute is more than any of them may take.
_PATIENCE: Final = 60.0


def default_path() -> Path:
    """Where the socket is unless the command line says otherwise: private to the user, or to the systemd unit."""
    directory = os.environ.get("RUNTIME_DIRECTORY") or os.environ.get("XDG_RUNTIME_DIR")
    if directory:
        return Path(directory.partition(":")[0]) / "otlp-sidecar.sock"
    return Path(tempfile.gettempdir()) / f"otlp-sidecar-{os.getuid()}.sock"


class ControlServer:
    """Answers `reload` on a socket that only this user can reach."""

    def __init__(self, path: Path, reload: Handler) -> None:
        self._path = path
        self._reload = reload
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the path can't be used; FileExistsError when another sidecar answers there.
        """
        if self._path.exists():
            if _is_alive(self._path):
                raise FileExistsError(f"another sidecar answers at {self._path}")
            self._path.unlink()
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, path=self._path, limit=1024)
        finally:
            os.umask(before)

    async def stop(self) -> None:
        """Let go of the socket."""
        if self._server is not None:
            self._server.close()
            self._server = None
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, ValueError):
            async with asyncio.timeout(5):
                command = await reader.readline()
            if command.strip() == b"reload":
                succeeded, report = await self._reload()
            else:
                succeeded, report = False, "the only command is `reload`"
            writer.write((_OK if succeeded else _FAILED) + report.encode())
            await writer.drain()
        writer.close()


def ask_to_reload(path: Path) -> tuple[bool, str]:
    """Have the sidecar at that socket read its document again, and wait for the outcome.

    Returns:
        Whether the new document runs now, and what there is to say.

    Raises:
        OSError: nobody answers there.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(path))
        connection.sendall(b"reload\n")
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    succeeded = answer.startswith(_OK)
    return succeeded, answer.partition(b"\n")[2].decode(errors="replace")


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        try:
            connection.connect(str(path))
        except OSError:
            return False
        return True
