"""The `tls` block of what connects to a server: whom to trust, and how to prove who is calling."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config import Secret, SettingError, Settings
from sidecar.net.pem import load_identity, read_pem, unusable

# Where Debian, Red Hat and Alpine keep the bundle, for a Python whose OpenSSL looks elsewhere.
_SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)


class ClientTlsSettings(Settings):
    """Named as the Collector's client settings are. Each PEM is given as a file or as text, not both.

    `insecure`: without TLS at all. `insecure_skip_verify`: with TLS, but any server is believed.
    """

    insecure: bool = False
    insecure_skip_verify: bool = False
    ca_file: str = ""
    ca_pem: str = ""
    cert_file: str = ""
    cert_pem: str = ""
    key_file: str = ""
    key_pem: Secret = Secret()
    server_name_override: str = ""

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            if getattr(self, f"{name}_file") and getattr(self, f"{name}_pem"):
                raise SettingError(f"{name}_file and {name}_pem say the same thing; write one of them", f"{name}_pem")
        if bool(self.cert_file or self.cert_pem) != bool(self.key_file or self.key_pem):
            missing = "key_file" if self.cert_file or self.cert_pem else "cert_file"
            raise SettingError(f"a certificate and its key belong together; write {missing} too, or neither", missing)

    @property
    def asks_for_tls(self) -> bool:
        """Whether anything is set that has a meaning only with TLS."""
        return self.insecure_skip_verify or bool(self.ca_file or self.ca_pem or self.cert_file or self.cert_pem)

    def read(self, owner: str) -> TlsMaterial:
        """Read the files.

        Args:
            owner: the component and the setting, for messages: `exporters.otlp: tls`.

        Raises:
            StartError: a file can't be read.
        """
        return TlsMaterial(
            ca=read_pem(self.ca_file, self.ca_pem, f"{owner}.ca_file"),
            certificate=read_pem(self.cert_file, self.cert_pem, f"{owner}.cert_file"),
            key=read_pem(self.key_file, self.key_pem, f"{owner}.key_file"),
        )

    def context(self, owner: str) -> ssl.SSLContext:
        """What the standard library needs for a connection.

        Raises:
            StartError: a file can't be read, or holds no certificate or key.
        """
        material = self.read(owner)
        try:
            context = ssl.create_default_context(cadata=material.ca.decode() or None)
            if material.certificate:
                load_identity(context, material.certificate, material.key)
        except (ssl.SSLError, ValueError) as error:
            raise unusable(error, owner) from None
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """PEM texts; empty where nothing is set."""

    ca: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<TlsMaterial>"


def system_authorities() -> bytes | None:
    """The operating system's certificate authorities as PEM; None where there is no such file."""
    for path in (ssl.get_default_verify_paths().cafile, *_SYSTEM_BUNDLES):
        if path and Path(path).is_file():
            return Path(path).read_bytes()
    return None
