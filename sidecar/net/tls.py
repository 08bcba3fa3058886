"""TLS for everything that listens: certificate, key, the clients' authority, and their renewal without a restart."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

from config import Duration, Secret, SettingError, Settings
from sidecar.errors import StartError

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
        # The ssl module takes a certificate only from a file; this one is readable by this user alone, and short-lived.
        with tempfile.NamedTemporaryFile() as file:
            file.write(material.key.rstrip() + b"\n" + material.cert)
            file.flush()
            context.load_cert_chain(file.name)
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
