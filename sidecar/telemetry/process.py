"""What the process itself uses: time, memory, processor. Names are the Collector's."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

from sidecar.telemetry.metrics import Meter


def observe_process(meter: Meter) -> None:
    """Add the gauges of this process."""
    started = time.monotonic()
    meter.gauge("otelcol_process_uptime", "Seconds since the start.", lambda: time.monotonic() - started)
    meter.gauge("otelcol_process_cpu_seconds", "Processor time, user and system.", time.process_time)
    meter.gauge("otelcol_process_memory_rss", "Resident memory in bytes.", resident_memory)


def resident_memory() -> int:
    """Bytes of memory that are resident; where /proc does not tell, the most that ever was."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
