"""TLS for everything that listens: certificate, key, the clients' authority, and their renewal without a restart."""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from config import Duration, Secret, SettingError, Settings
from sidecar.errors import StartError

_LOGGER: Final = logging.getLogger("sidecar.net.tls")
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsServerSettings(Settings):
    """The server's certificate and key, as files or inline PEM.

    With `client_ca_file` (or `client_ca_pem`) a client must show a certificate of that authority. Files are read again
    every `reload_interval`; 0 reads them only at start.
    """

    cert_file: str | None = None
    cert_pem: Secret | None = None
    key_file: str | None = None
    key_pem: Secret | None = None
    client_ca_file: str | None = None
    client_ca_pem: Secret | None = None
    min_version: Literal["1.2", "1.3"] = "1.2"
    reload_interval: Duration = Duration("1m")

    def __post_init__(self) -> None:
        for name in ("cert", "key", "client_ca"):
            if getattr(self, f"{name}_file") and getattr(self, f"{name}_pem"):
                raise SettingError(f"both {name}_file and {name}_pem are given; write one of them", f"{name}_pem")
        if not (self.cert_file or self.cert_pem) or not (self.key_file or self.key_pem):
            raise SettingError("a server needs both a certificate and its key; write cert_file and key_file")


class Material(NamedTuple):
    """What the settings lead to: PEM texts. Compares by value, so that a renewal shows."""

    cert: bytes
    key: bytes
    client_ca: bytes | None

    @classmethod
    def read(cls, settings: TlsServerSettings, owner: str) -> Self:
        """Read the files.

        Raises:
            StartError: one can't be read.
        """
        cert, key, client_ca = (
            _read(getattr(settings, f"{name}_file"), getattr(settings, f"{name}_pem"), f"{owner}: tls.{name}_file")
            for name in ("cert", "key", "client_ca")
        )
        return cls(cert or b"", key or b"", client_ca)


def load_identity(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Give a context its certificate and key.

    Raises:
        ssl.SSLError: they are not PEM, the key has a password, or they don't belong together.
    """
    # OpenSSL reads them from a file only. Nobody else may read this one, and it is gone at once.
    with tempfile.NamedTemporaryFile() as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        # A password, so that an encrypted key is an error and not a question on the terminal.
        context.load_cert_chain(file.name, password="")


def _read(path: str | None, pem: Secret | None, where: str) -> bytes | None:
    if pem:
        return pem.reveal().encode()
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StartError(f"{where}: can't read {path}: {error.strerror}") from None


def server_context(material: Material, settings: TlsServerSettings, owner: str) -> ssl.SSLContext:
    """A context that serves the certificate, and asks clients for theirs where an authority is given.

    Raises:
        StartError: the texts are not a certificate and its key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.set_alpn_protocols(["http/1.1"])
    try:
        load_identity(context, material.cert, material.key)
        if material.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=material.client_ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not PEM"
        raise StartError(
            f"{owner}: tls: the certificate, its key or the clients' authority is unusable "
            f"({str(reason).lower().replace('_', ' ')}); write PEM files that belong together"
        ) from None
    return context


class Renewal:
    """Reads the files again from time to time, and says when they hold something new that works.

    Files that don't work (a certificate whose key is not there yet) are logged, and the old ones stay in use.
    """

    def __init__(
        self, settings: TlsServerSettings, material: Material, owner: str, renew: Callable[[Material], Awaitable[None]]
    ) -> None:
        self._settings = settings
        self._material = material
        self._owner = owner
        self._renew = renew
        self._task: asyncio.Task[None] | None = None
        if settings.reload_interval:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"tls renewal of {owner}")

    async def stop(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        last_problem = ""
        while True:
            await asyncio.sleep(self._settings.reload_interval)
            try:
                material = await asyncio.to_thread(Material.read, self._settings, self._owner)
                if material == self._material:
                    continue
                server_context(material, self._settings, self._owner)
                await self._renew(material)
            except StartError as error:
                if str(error) != last_problem:
                    last_problem = str(error)
                    _LOGGER.warning("%s; the previous certificate stays in use", error)
                continue
            self._material = material
            last_problem = ""
            _LOGGER.info("%s: new TLS certificate in use", self._owner)
