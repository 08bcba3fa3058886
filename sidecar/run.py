"""The process: signals, deadlines, exit codes, and the lines that a person sees at the start."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final, TextIO, TypeVar

from config.resolve import Resolved
from sidecar.errors import StartError
from sidecar.registry import Registry
from sidecar.service import Service
from sidecar.telemetry import logs

T = TypeVar("T")
logger = logging.getLogger("sidecar.run")

OK: Final = 0
CAN_NOT_START: Final = 1
WRONG_DOCUMENT: Final = 2


def run(resolved: Resolved, registry: Registry, out: TextIO = sys.stderr) -> int:
    """Run until SIGTERM or SIGINT, then drain.

    Returns:
        0 after a stop that drained, 1 when something could not start.

    Raises:
        ConfigError: components refuse their settings; nothing has been started.
    """
    logs.set_up(resolved.service.telemetry.logs.level, resolved.service.telemetry.logs.encoding, out)
    return _on_fastest_loop(_serve(resolved, registry, out))


def _on_fastest_loop(main: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop  # a tenth less CPU per record; not on every platform
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _serve(resolved: Resolved, registry: Registry, out: TextIO) -> int:
    service = Service(resolved, registry)
    stopping = asyncio.Event()
    _on_signals(stopping)
    try:
        await service.start()
    except StartError as error:
        logger.error("%s", error)
        return CAN_NOT_START
    # What exists now lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    out.write(banner(service))
    out.flush()
    await stopping.wait()
    logger.info("stopping; a second signal ends at once, without draining")
    await service.stop()
    return OK


def _on_signals(stopping: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT stops in order. A second one ends the process as that signal does by itself."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def banner(service: Service) -> str:
    """What a person wants to see once everything is up: who listens where, what flows where, and what to try."""
    listeners = service.host.listeners.serving()
    lines = ["", "ready"]
    lines += [f"  listening  {address:<26} {', '.join(_short(path) for path in paths)}" for address, paths in listeners]
    for pipeline in service.resolved.pipelines:
        parts = (pipeline.receivers, pipeline.processors, pipeline.exporters)
        lines.append(
            f"  pipeline   {pipeline.id!s:<26} {' → '.join(', '.join(map(str, part)) for part in parts if part)}"
        )
    return "\n".join([*lines, *_to_try(service, listeners), "", ""])


def _short(path: str) -> str:
    """A path as it is; a gRPC method by its service alone."""
    service = path.strip("/").partition("/")[0]
    return service.rpartition(".")[2] if "." in service else path


def _to_try(service: Service, listeners: list[tuple[str, list[str]]]) -> list[str]:
    """Two lines to paste into another shell, where there is something to try."""
    lines = []
    for address, paths in listeners:
        if "/v1/telemetry/events" in paths and address.startswith("http://"):
            event = '{"events":[{"source":"app","severity":"info","kind":"log","message":"hello"}]}'
            lines.append(f"  curl {address}/v1/telemetry/events -H 'Content-Type: application/json' -d '{event}'")
    own = {lease.address for lease in service.own_metrics.leases}
    lines += [f"  curl {address}/metrics" for address, paths in listeners if "/metrics" in paths and address not in own]
    return ["", "try, from another shell", *lines] if lines else []
