"""Reads the command line: `sidecar run | reload | validate | queue | components | schema | print-config`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from config import presets
from config.problems import ConfigError
from sidecar.cli import commands, queue
from sidecar.control import default_path
from sidecar.registry import Registry
from sidecar.run import OK, WRONG_DOCUMENT

_SOURCES = f"""\
a CONFIG is a file, preset:NAME (NAME: {", ".join(presets.names())}), env:NAME, or yaml:a::b: value.
Several are merged in their order. Without --config the preset `default` is used."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code: 0 when all went well, 1 when something could not start, 2 when the document or the command line
        is wrong.
    """
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options, Registry())
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return WRONG_DOCUMENT
    except BrokenPipeError:  # `sidecar schema | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sidecar", description="One process per host for telemetry.")
    parser.add_argument("--version", action="version", version=f"sidecar {version('otlp-sidecar')}")
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    document = argparse.ArgumentParser(add_help=False)
    document.add_argument("--config", "-c", action="append", default=[], metavar="CONFIG", help="see below; repeatable")
    document.add_argument(
        "--set", action="append", default=[], metavar="a.b=VALUE", help="one value, after all files; repeatable"
    )

    def verb(
        name: str, command: commands.Command, text: str, *, reads_document: bool = True
    ) -> argparse.ArgumentParser:
        made = verbs.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            parents=[document] if reads_document else [],
            epilog=_SOURCES if reads_document else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(command=command)
        return made

    run = verb("run", commands.run, "run until SIGTERM or SIGINT, then send what is held and end")
    run.add_argument("--watch", action="store_true", help="reload when a file of the document changes")
    again = verb("reload", commands.reload, "have the running sidecar read its document again", reads_document=False)
    for one in (run, again):
        one.add_argument("--control", type=Path, default=default_path(), metavar="SOCKET", help="default: %(default)s")
    verb("validate", commands.validate, "check the document as `run` would, and start nothing")
    shown = verb("print-config", commands.print_config, "print the document with all defaults, without secrets")
    shown.add_argument("--format", choices=["yaml", "json"], default="yaml")
    verb("components", commands.components, "list the components that are installed", reads_document=False)
    verb("schema", commands.schema, "print the JSON Schema of documents, for editors", reads_document=False)
    queue.add(verbs)
    return parser
