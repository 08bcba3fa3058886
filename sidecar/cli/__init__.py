"""The command `sidecar`."""

from sidecar.cli.main import main

__all__ = ["main"]
