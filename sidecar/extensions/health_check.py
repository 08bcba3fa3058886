"""Health of the whole for orchestrators and people, over HTTP."""

from __future__ import annotations

import time
from typing import Any

import orjson
from aiohttp import web

from config import Endpoint, Settings
from sidecar.component import Context, Extension
from sidecar.telemetry.health import Health


class HealthCheckSettings(Settings):
    """Where health is served."""

    endpoint: Endpoint = Endpoint("localhost:13133")
    path: str = "/"


class HealthCheck(Extension[HealthCheckSettings]):
    """Answers 200 while everything works or is retried, and 503 while starting, stopping, or when a component failed.

    The body is JSON: the status of the whole, and what is wrong. `/status` says more of each pipeline and exporter, and
    with `?verbose` of every component.
    """

    def __init__(self, settings: HealthCheckSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._lease = context.listeners.http(settings.endpoint, f"extensions.{context.id}: endpoint")
        for path in {settings.path, "/status"}:
            self._lease.route("GET", path, self._answer)

    async def start(self) -> None:
        """Listen."""
        await self._lease.open()

    async def stop(self) -> None:
        """Stop listening."""
        await self._lease.close()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        board = self.context.board
        details = board.inspect()
        problems = {one.component: one.message for one in board.failing}
        for name, exporter in details.get("exporters", {}).items():
            if exporter["concerns"]:
                problems.setdefault(f"exporters/{name}", "; ".join(exporter["concerns"]))
        status = "ok" if not problems and not board.last_reload_error else "degraded"
        if not board.is_serving:
            status = "unavailable" if board.ready else "starting or stopping"
        body: dict[str, Any] = {"status": status, "uptime_seconds": round(time.time() - board.started_at, 3)}
        if board.last_reload_error:
            body["last_reload"] = board.last_reload_error
        if problems:
            body["problems"] = problems
        if request.path == "/status":
            body |= details
        if "verbose" in request.query:
            body["components"] = {name: _entry(one) for name, one in sorted(board.components.items())}
        return web.Response(
            status=200 if board.is_serving else 503, body=orjson.dumps(body), content_type="application/json"
        )


def _entry(health: Health) -> dict[str, str | float]:
    return {"status": health.status, "message": health.message, "since": health.since}
