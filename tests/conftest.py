"""What holds for all tests: the production event loop, reproducible hypothesis examples, and nothing left behind."""

import asyncio
import contextlib
import inspect
import os
import time
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from support.processes import find_free_port

from sidecar import kernel

# gRPC's C core writes whatever it notices to stderr, past pytest.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

settings.register_profile(
    "sidecar",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# For `make sanitize`.
settings.register_profile("thorough", settings.get_profile("sidecar"), max_examples=2000, derandomize=False)
settings.load_profile("sidecar")

# Seconds that a test may take. Less than pytest-timeout's, which is the last resort.
_PATIENCE = 60
_PROCESS = Path("/proc/self")
# TCP states in /proc/net/tcp: ESTABLISHED, CLOSE_WAIT, LISTEN.
_OPEN = {"01", "08", "0A"}
# The flag of a listening socket in /proc/net/unix.
_UNIX_LISTENS = "00010000"


def pytest_asyncio_loop_factories():
    """Test on the loop that production runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def free_port():
    """A TCP port of 127.0.0.1 that nobody listens on. Only for programs that can't be told to take any port."""
    return find_free_port()


@pytest.fixture(params=["kernel", "protobuf"])
def either_path(request, monkeypatch):
    """Test what is done by the kernel and by protobuf, one after the other."""
    if request.param == "protobuf":
        monkeypatch.setattr(kernel, "module", None)
    elif kernel.module is None:
        pytest.skip(f"no kernel: {kernel.WHY_NOT}")


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """Fail the test that leaves a task, a TCP connection, a listening socket or a child process."""
    if inspect.iscoroutinefunction(inspect.unwrap(request.function)):
        request.getfixturevalue("no_task_left_behind")
    sockets, children = _open_sockets(), _children()
    yield
    # A closed gRPC connection and an ended process take a moment to go.
    deadline = time.monotonic() + 2
    while (left := _described(_open_sockets() - sockets) | (_children() - children)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"left behind by the test: {sorted(left)}"


@pytest.fixture
async def no_task_left_behind():
    """Fail the test that takes too long, or whose tasks are still running when it and its fixtures have ended."""
    before = asyncio.all_tasks()
    too_long = asyncio.get_running_loop().call_later(_PATIENCE, _cancel_all)
    yield
    too_long.cancel()
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:  # what has just been cancelled, or is the end of a call, takes a moment
        _, left = await asyncio.wait(left, timeout=2)
    assert not left, f"tasks left running by the test: {[task.get_name() for task in left]}"


def _cancel_all():
    # pytest-timeout interrupts by a signal, which uvloop does not let through, or by ending the whole process.
    for task in asyncio.all_tasks():
        task.cancel(f"the test takes longer than {_PATIENCE} s")


def _open_sockets():
    """The sockets of this process, by their names in /proc."""
    return {target for descriptor in _entries("fd") if (target := _target(descriptor)).startswith("socket:")}


def _described(sockets):
    """Those that are TCP connections or listen. The tables of the kernel are read only where there is a question."""
    found = set()
    if not sockets:
        return found
    for table in ("tcp", "tcp6"):
        for _, local, remote, state, *_, inode in _rows(table, 10):
            if state in _OPEN and f"socket:[{inode}]" in sockets:
                found.add(f"{table} {local} -> {remote} state {state} inode {inode}")
    for *_, flags, _type, _state, inode in _rows("unix", 7):
        if flags == _UNIX_LISTENS and f"socket:[{inode}]" in sockets:
            found.add(f"unix listener inode {inode}")
    return found


def _children():
    """The child processes of this process, zombies included."""
    found = set()
    for thread in _entries("task"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found |= {f"process {pid}" for pid in (thread / "children").read_text().split()}
    return found


def _entries(folder):
    return list((_PROCESS / folder).iterdir()) if _PROCESS.exists() else []


def _rows(table, columns):
    """The first columns of each row of a table of /proc/net."""
    path = _PROCESS / "net" / table
    if not path.exists():
        return []
    return [line.split()[:columns] for line in path.read_text().splitlines()[1:]]


def _target(descriptor):
    with contextlib.suppress(OSError):  # closed meanwhile
        return str(descriptor.readlink())
    return ""
