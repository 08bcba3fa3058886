"""`sidecar queue`: look into the queues on disk, and put back or delete what is in them.

What reads them is imported where it is called: `sidecar run` imports this module too, and may need neither SQLite nor
OTLP/JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.errors import StorageError
from sidecar.registry import Registry
from sidecar.run import CAN_NOT_START, OK

if TYPE_CHECKING:
    from sidecar.storage import QueueFile


class _Refused(Exception):
    """What was asked for can't be done; the message says why."""


def add(verbs: Any) -> None:
    """Add the command to the command line (`verbs` is what argparse's `add_subparsers` gives)."""
    text = "look into the queues on disk, and change them"
    parser = verbs.add_parser("queue", help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=_command)
    parser.add_argument(
        "--directory", type=Path, default=Path("/var/lib/sidecar"), help="of the file_storage extension (%(default)s)"
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    def action(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = actions.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + "."
        )
        made.set_defaults(action=run)
        if name != "ls":
            made.add_argument("owner", help="as `ls` shows it, for example exporters/otlp")
        return made

    action("ls", _list, "list the queues, what waits in them, and their dead letters")
    show = action("show", _show, "print a dead letter as OTLP/JSON")
    show.add_argument("id", type=int, help="as `ls` shows it")
    replay = action("replay", _replay, "put dead letters back into the queue, to be sent after the next start")
    replay.add_argument("id", type=int, nargs="*", help="these only")
    purge = action("purge", _purge, "delete the dead letters of a queue")
    purge.add_argument("--waiting", action="store_true", help="delete what waits to be sent, instead")


def _command(options: argparse.Namespace, _registry: Registry) -> int:
    try:
        code: int = options.action(options)
    except (_Refused, StorageError) as error:
        sys.stderr.write(f"{error}\n")
        return CAN_NOT_START
    return code


def _list(options: argparse.Namespace) -> int:
    for owner, path in _queue_files(options.directory).items():
        with _opened(path) as file:
            requests, items, size = file.totals()
            print(f"{owner}: {items} items in {requests} requests wait, {size} bytes")
            for letter in file.dead_letters():
                buried = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(letter.buried_at / 1e9))
                print(f"  dead letter {letter.id}: {letter.items} {letter.signal}, {letter.size} bytes, {buried}")
                print(f"    {letter.reason}: {letter.message}")
    return OK


def _show(options: argparse.Namespace) -> int:
    from sidecar.net.otlp_json import encode

    with _opened(_path(options)) as file:
        batch = file.dead_letter(options.id)
    if batch is None:
        raise _Refused(f"{options.owner} has no dead letter {options.id}; `sidecar queue ls` lists them")
    sys.stdout.write(encode(batch.message).decode() + "\n")
    return OK


def _replay(options: argparse.Namespace) -> int:
    with _alone(options.directory), _opened(_path(options)) as file:
        print(f"{file.replay(options.id or None)} put back")
    return OK


def _purge(options: argparse.Namespace) -> int:
    with _alone(options.directory), _opened(_path(options)) as file:
        print(f"{file.purge('batches' if options.waiting else 'dead_letters')} deleted")
    return OK


def _path(options: argparse.Namespace) -> Path:
    files = _queue_files(options.directory)
    if options.owner not in files:
        raise _Refused(f"{options.directory} has no queue of {options.owner}; there: {', '.join(files) or 'none'}")
    return files[options.owner]


def _queue_files(directory: Path) -> dict[str, Path]:
    from sidecar.extensions.file_storage import queue_files

    return queue_files(directory)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[QueueFile]:
    from sidecar.storage import QueueFile

    with contextlib.closing(QueueFile(path)) as file:
        yield file


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the directory: a running sidecar would not notice what is changed behind its back."""
    from sidecar.extensions.file_storage import held

    try:
        with held(directory):
            yield
    except BlockingIOError:
        raise _Refused(f"{directory} is in use by a running sidecar; stop it first") from None
    except OSError as error:
        raise _Refused(f"{directory}: {error.strerror}") from None
