"""TLS for everything that listens: certificate, key, the clients' authority, and their renewal without a restart."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from config import Duration, Secret, SettingError, Settings
from sidecar.errors import StartError
from sidecar.net.pem import load_identity, read_pem, unusable

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


@dataclass(frozen=True, slots=True, repr=False)
class Certificates:
    """What the settings lead to. Compares by its texts, so that a renewal shows.

    Attributes:
        certificate, key: PEM texts.
        client_ca: the same, of the clients' authority; empty where clients need no certificate.
        context: what the standard library needs to serve with them.
    """

    certificate: bytes
    key: bytes
    client_ca: bytes
    context: ssl.SSLContext = field(compare=False)

    @classmethod
    def load(cls, settings: TlsServerSettings, owner: str) -> Self:
        """Read the files.

        Raises:
            StartError: one can't be read, or they are not a certificate and its key.
        """
        owner = f"{owner}: tls"
        certificate, key, client_ca = (
            read_pem(getattr(settings, f"{name}_file"), getattr(settings, f"{name}_pem"), f"{owner}.{name}_file")
            for name in ("cert", "key", "client_ca")
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[settings.min_version]
        context.set_alpn_protocols(["http/1.1"])
        try:
            load_identity(context, certificate, key)
            if client_ca:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(cadata=client_ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise unusable(error, owner) from None
        return cls(certificate, key, client_ca, context)


class Renewal:
    """Reads the files again from time to time, and hands over what they hold when it is new and works.

    Files that don't work (a certificate whose key is not there yet) are logged, and the old ones stay in use.
    """

    def __init__(
        self,
        settings: TlsServerSettings,
        current: Certificates,
        owner: str,
        renew: Callable[[Certificates], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._current = current
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
                fresh = await asyncio.to_thread(Certificates.load, self._settings, self._owner)
                if fresh != self._current:
                    await self._renew(fresh)
                    self._current = fresh
                    _LOGGER.info("%s: new TLS certificate in use", self._owner)
                last_problem = ""
            except (StartError, OSError) as error:
                if str(error) != last_problem:
                    last_problem = str(error)
                    _LOGGER.warning("%s; the previous certificate stays in use", error)
