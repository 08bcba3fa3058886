"""The process: signals, deadlines, exit codes, reload triggers, and the lines that a person sees at the start."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

from config.dump import dump
from config.problems import ConfigError
from config.resolve import Resolved
from sidecar import kernel, notify
from sidecar.allocator import give_back, keep_large_buffers
from sidecar.control import ControlServer
from sidecar.errors import StartError
from sidecar.registry import Registry
from sidecar.service import Service
from sidecar.telemetry import logs
from sidecar.telemetry.metrics import Meter
from sidecar.watch import watch

T = TypeVar("T")
logger = logging.getLogger("sidecar.run")

OK: Final = 0
CAN_NOT_START: Final = 1
WRONG_DOCUMENT: Final = 2


@dataclass(frozen=True)
class Options:
    """How a process runs, beside its document.

    Attributes:
        load: reads the document again. Raises ConfigError.
        watched: the files that the document was read from, to reload when they change; empty for not watching.
        control: the socket on which `sidecar reload` is answered; None for none.
        out: where the log and the first lines go.
    """

    load: Callable[[], Resolved]
    watched: Sequence[str] = ()
    control: Path | None = None
    out: TextIO = sys.stderr


def run(options: Options, registry: Registry) -> int:
    """Run until SIGTERM or SIGINT, then drain.

    Returns:
        0 after a stop that drained, 1 when something could not start.

    Raises:
        ConfigError: the document is wrong; nothing has been started.
    """
    keep_large_buffers()
    return _on_fastest_loop(Process(options, registry).run())


def _on_fastest_loop(main: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop  # a tenth less CPU per record; not on every platform
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class Process:
    """One run of the sidecar."""

    def __init__(self, options: Options, registry: Registry) -> None:
        self._options = options
        self._registry = registry
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> int:
        """As the function `run`."""
        resolved = self._load()
        service = self._service = Service(resolved, self._registry)
        self._observe_document()
        if kernel.module is None:
            logger.info("requests are decoded in the ordinary way, without the compiled kernel: %s", kernel.WHY_NOT)
        self._on_signals()
        try:
            await service.start()
        except StartError as error:
            logger.error("%s", error)
            return CAN_NOT_START
        # What exists now lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        give_back()
        control = await self._listen_for_commands()
        self._options.out.write(banner(service))
        self._options.out.flush()
        self._spawn(notify.keep_alive())
        notify.ready()
        if self._options.watched:
            self._spawn(watch(self._options.watched, self._reload_quietly))
        await self._stopping.wait()
        notify.stopping()
        logger.info("stopping; a second signal ends at once, without draining")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if control is not None:
            await control.stop()
        await service.stop()
        return OK

    def _load(self) -> Resolved:
        resolved = self._options.load()
        telemetry = resolved.service.telemetry.logs
        logs.set_up(telemetry.level, telemetry.encoding, self._options.out)
        for warning in resolved.warnings:
            logger.warning("%s", str(warning).replace("warning: ", "", 1))
        return resolved

    def _on_signals(self) -> None:
        """SIGHUP reloads. The first SIGTERM or SIGINT stops in order; a second one ends the process at once."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self._stopping.set()
            for one in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(one)
                signal.signal(one, signal.SIG_DFL)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self._reload_quietly()))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen_for_commands(self) -> ControlServer | None:
        if self._options.control is None:
            return None
        control = ControlServer(self._options.control, self.reload)
        try:
            await control.start()
        except OSError as error:
            logger.warning("`sidecar reload` will not reach this process: %s; name another socket by --control", error)
            return None
        return control

    # Reload.

    async def reload(self) -> tuple[bool, str]:
        """Read the document again and run it. On any problem everything goes on as before.

        Returns:
            Whether the new document runs now, and what has changed or what is wrong.
        """
        notify.reloading()
        try:
            graph = await self._service.reload(self._load())
            self._hash = document_hash(graph.resolved)
        except (ConfigError, StartError) as error:
            self._results["failed"].add(1)
            self._service.host.board.last_reload_error = str(error)
            logger.error("reload refused, everything goes on as before:\n%s", error)
            return False, str(error)
        finally:
            notify.ready()
        self._results["ok"].add(1)
        self._service.host.board.last_reload_error = ""
        logger.info("reloaded: %s", graph.plan)
        return True, str(graph.plan)

    async def _reload_quietly(self) -> None:
        await self.reload()

    def _observe_document(self) -> None:
        meter = Meter(self._service.host.metrics)
        self._results = {
            result: meter.counter("sidecar_config_reload", "Reloads of the document.", result=result)
            for result in ("ok", "failed")
        }
        self._hash = document_hash(self._service.resolved)
        description = "Hash of the document that runs, with its defaults and without its secrets."
        meter.gauge("sidecar_config_hash", description, lambda: self._hash)


def document_hash(resolved: Resolved) -> int:
    """A number that tells effective documents apart, secrets aside: 48 bits, which a metric's double holds exactly."""
    return int(hashlib.sha256(dump(resolved).encode()).hexdigest()[:12], 16)


def banner(service: Service) -> str:
    """What a person wants to see once everything is up: who listens where, what flows where, and what to try."""
    listeners = service.host.listeners.serving()
    lines = ["", "ready"]
    for address, paths in listeners:
        names = map(_short, paths) if address.startswith("grpc:") else paths
        lines.append(f"  listening  {address:<26} {', '.join(dict.fromkeys(names))}")
    for pipeline in service.resolved.pipelines:
        parts = (pipeline.receivers, pipeline.processors, pipeline.exporters)
        flow = " → ".join(", ".join(map(str, part)) for part in parts if part)
        lines.append(f"  pipeline   {pipeline.id!s:<26} {flow}")
    return "\n".join([*lines, *_to_try(service, listeners), "", ""])


def _short(path: str) -> str:
    """A gRPC method by its service alone."""
    return path.strip("/").partition("/")[0].rpartition(".")[2]


def _to_try(service: Service, listeners: list[tuple[str, list[str]]]) -> list[str]:
    """Two lines to paste into another shell, where there is something to try."""
    lines = []
    for address, paths in listeners:
        if "/v1/telemetry/events" in paths and address.startswith("http://"):
            event = '{"events":[{"source":"app","severity":"info","kind":"log","message":"hello"}]}'
            lines.append(
                f"  curl {_for_curl(address)}/v1/telemetry/events -H 'Content-Type: application/json' -d '{event}'"
            )
    own = {lease.address for lease in service.own_metrics.leases}
    lines += [
        f"  curl {_for_curl(address)}/metrics"
        for address, paths in listeners
        if "/metrics" in paths and address not in own
    ]
    return ["", "try, from another shell", *lines] if lines else []


def _for_curl(address: str) -> str:
    """The address as curl takes it."""
    scheme, _, path = address.partition("://unix://")
    return f"--unix-socket {path} {scheme}://localhost" if path else address
