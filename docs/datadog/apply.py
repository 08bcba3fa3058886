"""Bring the monitors and the dashboard of this folder to Datadog. What is there already, by name, is updated.

Needs DD_API_KEY and DD_APP_KEY; DD_SITE says where the account is (default datadoghq.com). DD_API_URL is for proxies.
Nothing but the standard library is used.
"""

# ruff: noqa: INP001 (a script, in no package)

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def main() -> int:
    """Apply everything; 1 when something was refused."""
    missing = [name for name in ("DD_API_KEY", "DD_APP_KEY") if not os.environ.get(name)]
    if missing:
        return fail(f"set {' and '.join(missing)}")
    try:
        for path in sorted((FOLDER / "monitors").glob("*.json")):
            apply_monitor(json.loads(path.read_text()))
        apply_dashboard(json.loads((FOLDER / "dashboard.json").read_text()))
    except urllib.error.HTTPError as error:
        return fail(f"{error.url}: {error.code} {error.read().decode(errors='replace')[:500]}")
    except OSError as error:
        return fail(str(error))
    return 0


def apply_monitor(monitor: dict[str, Any]) -> None:
    """Make a monitor, or update the one of that name."""
    found = call("GET", f"/api/v1/monitor?name={urllib.parse.quote(monitor['name'])}")
    same = [one["id"] for one in found if one["name"] == monitor["name"]]
    if same:
        # The type of a monitor can't be changed, and need not be sent.
        call("PUT", f"/api/v1/monitor/{same[0]}", {key: monitor[key] for key in monitor if key != "type"})
    else:
        call("POST", "/api/v1/monitor", monitor)
    say(f"{'updated' if same else 'made'} monitor {monitor['name']}")


def apply_dashboard(dashboard: dict[str, Any]) -> None:
    """Make the dashboard, or update the one of that title."""
    found = call("GET", "/api/v1/dashboard")["dashboards"]
    same = [one["id"] for one in found if one["title"] == dashboard["title"]]
    if same:
        call("PUT", f"/api/v1/dashboard/{same[0]}", dashboard)
    else:
        call("POST", "/api/v1/dashboard", dashboard)
    say(f"{'updated' if same else 'made'} dashboard {dashboard['title']}")


def call(method: str, path: str, body: Any = None) -> Any:
    """What Datadog's API answers.

    Raises:
        HTTPError: it refuses.
    """
    site = os.environ.get("DD_SITE") or "datadoghq.com"
    base = os.environ.get("DD_API_URL") or f"https://api.{site}"
    request = urllib.request.Request(  # noqa: S310 (the operator's own address)
        base + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            "DD-API-KEY": os.environ["DD_API_KEY"],
            "DD-APPLICATION-KEY": os.environ["DD_APP_KEY"],
        },
    )
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        return json.load(response)


def say(text: str) -> None:
    """Tell the operator."""
    sys.stdout.write(text + "\n")


def fail(text: str) -> int:
    """Tell the operator what went wrong."""
    sys.stderr.write(text + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
