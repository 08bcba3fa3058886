"""PEM texts from files, and into OpenSSL: what the TLS of servers and of clients has in common."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from config import Secret
from sidecar.errors import StartError


def read_pem(file: str | None, pem: str | Secret | None, setting: str) -> bytes:
    """The text that two settings give: `…_file`, or `…_pem` with the text itself; empty where neither does.

    Args:
        file: the path.
        pem: the text.
        setting: the former's name, for messages: `exporters.otlp: tls.ca_file`.

    Raises:
        StartError: the file can't be read.
    """
    if pem:
        return (pem.reveal() if isinstance(pem, Secret) else pem).encode()
    if not file:
        return b""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise StartError(f"{setting}: can't read {file}: {error.strerror}; write the path of a PEM file") from None


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


def unusable(error: Exception, owner: str) -> StartError:
    """Why OpenSSL has refused them, in words."""
    reason = str(getattr(error, "reason", None) or "not PEM").lower().replace("_", " ")
    return StartError(
        f"{owner}: the certificate, its key or the authority is unusable ({reason}); "
        "write PEM texts that belong together"
    )
