"""What each component says of itself, and the whole that follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Status: TypeAlias = Literal["starting", "ok", "degraded", "failed", "stopping", "stopped"]


@dataclass(slots=True)
class Health:
    """One component's word on itself.

    Attributes:
        status: `degraded`: works, or will again, by itself (an exporter that retries). `failed`: needs a person.
        message: what is wrong and what would be right; "" when nothing is.
        since: Unix time at which the status last changed.
    """

    component: str
    status: Status = "starting"
    message: str = ""
    since: float = field(default_factory=time.time)

    def report(self, status: Status, message: str = "") -> None:
        """Say how the component is. Cheap when nothing has changed."""
        if status != self.status:
            self.since = time.time()
        self.status = status
        self.message = message

    def ok(self) -> None:
        """All is well."""
        self.report("ok")

    def degraded(self, message: str) -> None:
        """Works in part, and will recover by itself."""
        self.report("degraded", message)

    def failed(self, message: str) -> None:
        """Does not work until a person does something."""
        self.report("failed", message)


class HealthBoard:
    """The health of all components and of the process.

    Attributes:
        ready: everything has started, and nothing is stopping.
        last_reload_error: why the newest document does not run; "" when it does.
        inspect: what there is to say of pipelines and exporters now, for people and programs.
    """

    def __init__(self) -> None:
        self.components: dict[str, Health] = {}
        self.ready = False
        self.last_reload_error = ""
        self.started_at = time.time()
        self.inspect: Callable[[], dict[str, Any]] = dict

    def add(self, health: Health) -> None:
        """Show a component's entry, in place of that of the one it succeeds."""
        self.components[health.component] = health

    def remove(self, health: Health) -> None:
        """Drop the entry of a component that is gone, unless a successor has taken its place."""
        if self.components.get(health.component) is health:
            del self.components[health.component]

    @property
    def is_serving(self) -> bool:
        """Whether data are taken in: everything has started, nothing is stopping, no component has failed."""
        return self.ready and not any(one.status == "failed" for one in self.components.values())

    @property
    def failing(self) -> list[Health]:
        """The components that are degraded or failed."""
        return [one for one in self.components.values() if one.status in {"degraded", "failed"}]
