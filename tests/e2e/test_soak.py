"""Two hundred clients for a long time, some slow, cut off or too large: the sidecar is as before, and counts right.

`SOAK_REQUESTS` says how many requests they send together: 100000 take about half a minute.
"""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from support import hostile_clients as clients
from support.otlp_receiver import Remote
from support.processes import SidecarProcess, find_free_port
from support.wire import connect, until

CONNECTIONS = 200
REQUESTS = int(os.environ.get("SOAK_REQUESTS", "6000"))
# Of a thousand acts. Most senders are well, or nothing else would be under load.
SHARES = {
    clients.good: 600,
    clients.good_json: 100,
    clients.good_call: 100,
    clients.malformed: 50,
    clients.malformed_call: 20,
    clients.oversized: 30,
    clients.bomb: 30,
    clients.junk: 20,
    clients.cut_off_head: 20,
    clients.cut_off_body: 10,
    clients.cancelled_call: 10,
    clients.slow_head: 5,
    clients.slow_body: 5,
}
DOCUMENT = """
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "127.0.0.1:{grpc}"}}
      http:
        endpoint: "127.0.0.1:{http}"
        max_request_body_size: 100KiB
        read_header_timeout: 500ms
        read_timeout: 1s
exporters:
  debug: {{sampling_initial: 0, sampling_thereafter: 0}}
service:
  telemetry: {{metrics: {{readers: [{{pull: {{exporter: {{prometheus: {{host: 127.0.0.1, port: {own}}}}}}}}}]}}}}
  pipelines:
    logs: {{receivers: [otlp], exporters: [debug]}}
"""


class Sidecar(SidecarProcess):
    """The process under load, and what can be seen of it."""

    def __init__(self, folder):
        self.ports = {name: find_free_port() for name in ("grpc", "http", "own")}
        super().__init__(DOCUMENT.format(**self.ports), folder)

    async def metric(self, name, *labels):
        """The sum of a counter's series that carry these labels, as the sidecar tells of itself."""
        url = f"http://127.0.0.1:{self.ports['own']}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            page = await response.text()
        lines = [line for line in page.splitlines() if line.startswith(f"{name}_total{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in labels))

    def open_files(self):
        """How many files, sockets among them, it has open."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


async def client(number, requests, remote, seen):
    """One client after another on a connection, each doing one thing, in an order that differs for each number."""
    order = random.Random(number)
    acts = order.choices(list(SHARES), list(SHARES.values()), k=requests)
    while acts:
        async with connect(remote.http) as wire:
            while acts:
                act = acts.pop()
                assert await act(wire, remote) == clients.EXPECTED[act], act.__name__
                seen[act] += 1
                if act not in clients.KEEPS_CONNECTION:
                    break


async def load(remote, requests, seen, first=0):
    """All clients at once, until all have sent their share."""
    each = max(1, requests // CONNECTIONS)
    await asyncio.gather(*(client(first + number, each, remote, seen) for number in range(CONNECTIONS)))


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads memory and open files from /proc")
@pytest.mark.timeout(60 + REQUESTS // 200)
def test_a_long_load_leaves_nothing_behind(tmp_path):
    """The good has arrived once, all else is counted by reason; memory and open files are back at their level."""
    asyncio.run(soak(tmp_path))


async def soak(folder):
    """All of it. Not the test itself, which would have to be over after the time that others get."""
    seen = Counter()
    async with (
        Sidecar(folder) as sidecar,
        # One for both loads: the library decides when a connection that is let go of is closed.
        grpc.aio.insecure_channel(f"127.0.0.1:{sidecar.ports['grpc']}") as channel,
    ):
        remote = Remote(sidecar.ports["http"], channel)
        await load(remote, REQUESTS // 10, seen)
        open_files, memory = sidecar.open_files(), sidecar.memory()
        await load(remote, REQUESTS, seen, first=CONNECTIONS)

        good = seen[clients.good] + seen[clients.good_json] + seen[clients.good_call]
        assert await sidecar.metric("otelcol_receiver_accepted_log_records") == good
        assert await sidecar.metric("otelcol_exporter_sent_log_records") == good
        refused = "sidecar_receiver_refused_requests"
        malformed = seen[clients.malformed] + seen[clients.malformed_call]
        assert await sidecar.metric(refused, 'reason="malformed"') == malformed
        assert await sidecar.metric(refused, 'reason="too_large"') == seen[clients.oversized] + seen[clients.bomb]
        assert await sidecar.metric(refused, 'reason="slow"') == seen[clients.slow_body]
        await until(lambda: sidecar.open_files() <= open_files)
        assert sidecar.memory() <= memory + 8 * 2**20
        ended = await sidecar.stop()
    assert ended.code == 0
    assert "Traceback" not in ended.output
