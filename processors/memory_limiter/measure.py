"""How much memory this process and its control group have in use, and how much they may have."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Control groups without a limit say so with a number near 2^63.
_UNLIMITED: Final = 1 << 60
# macOS, <sys/proc_info.h>: proc_pidinfo fills a struct proc_taskinfo, whose first fields are virtual and resident size.
_PROC_PIDTASKINFO: Final = 4
_TASKINFO_SIZE: Final = 96


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The files of one control group that has a limit: version 2's or version 1's."""

    usage: Path
    limit: Path
    stat: Path
    reclaimable: str

    def used(self) -> int:
        """Bytes in use that can't be taken back: without the file cache, which the kernel drops before it kills."""
        used = int(self.usage.read_text())
        for line in self.stat.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == self.reclaimable:
                return max(used - int(value), 0)
        return used

    def allowed(self) -> int:
        """Bytes at which the kernel begins to kill."""
        text = self.limit.read_text().strip()
        return _UNLIMITED if text == "max" else int(text)


def control_group(proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> ControlGroup | None:
    """The control group with the lowest limit among this process's own and those above it; None without a limit."""
    limited = [group for group in _groups(proc, mount) if group.allowed() < _UNLIMITED]
    return min(limited, key=ControlGroup.allowed, default=None)


def _groups(proc: Path, mount: Path) -> Iterator[ControlGroup]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names = ("memory.current", "memory.max", "inactive_file")
            mounts = [mount, mount / "unified"]
        elif "memory" in controllers.split(","):
            names = ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")
            mounts = [mount / "memory"]
        else:
            continue
        own = Path(path.lstrip("/"))
        # In a container the path may be the host's, which is not there: what is mounted is then the group itself.
        for root in mounts:
            for folder in (root / own, *(root / above for above in own.parents)):
                if (folder / names[1]).is_file():
                    yield ControlGroup(folder / names[0], folder / names[1], folder / "memory.stat", names[2])


def resident(proc: Path = Path("/proc")) -> int:
    """Bytes of this process in memory now.

    Raises:
        OSError: this system does not tell.
    """
    if sys.platform == "darwin":
        return _resident_on_macos()
    pages = int((proc / "self" / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _resident_on_macos() -> int:
    # getrusage tells the peak alone, from which nothing would ever recover.
    buffer = ctypes.create_string_buffer(_TASKINFO_SIZE)
    call = ctypes.CDLL(None).proc_pidinfo
    filled = call(os.getpid(), _PROC_PIDTASKINFO, ctypes.c_uint64(0), buffer, _TASKINFO_SIZE)
    if filled < struct.calcsize("QQ"):
        raise OSError("proc_pidinfo does not answer")
    size: int = struct.unpack_from("QQ", buffer)[1]
    return size


def physical() -> int:
    """Bytes of memory in this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
