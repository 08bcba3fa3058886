"""DogStatsD over real sockets: every transport, what the kernel loses, and a reload."""

import asyncio
import contextlib
import socket
import struct

import pytest
from support.otlp_receiver import items
from support.processes import find_free_port
from support.wire import until

from sidecar import Signal, StartError
from sidecar.receivers.dogstatsd import DogStatsDReceiver
from sidecar.testing import Bench


@contextlib.asynccontextmanager
async def running(settings, bench=None):
    """A receiver and its bench."""
    bench = bench or Bench()
    receiver = bench.make(DogStatsDReceiver, settings, "dogstatsd")
    await receiver.start()
    try:
        yield receiver, bench
    finally:
        await receiver.stop()
        await bench.close()


def lines(bench):
    """How many lines have arrived."""
    return bench.metrics.value("sidecar_dogstatsd_lines")


def names(bench):
    """The metrics that were handed on."""
    return sorted(metric.name for metric in items(bench, Signal.METRICS))


async def test_udp_on_both_addresses_of_localhost():
    """On one port."""
    async with running("endpoint: localhost:0") as (receiver, bench):
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
                sender.sendto(b"n:1|c\nm:1|g", (host, receiver.port))
        await until(lambda: lines(bench) >= 2)
    assert names(bench) == ["m", "n"]


async def test_unix_sockets_of_both_kinds(tmp_path):
    """Any program of this host may write to them; their files go with them."""
    datagram, stream = tmp_path / "d.sock", tmp_path / "s.sock"
    async with running(f"{{endpoint: null, socket: '{datagram}', stream_socket: '{stream}'}}") as (_, bench):
        for path in (datagram, stream):
            assert path.stat().st_mode & 0o777 == 0o722
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"by_datagram:1|c\n", str(datagram))
        _, writer = await asyncio.open_unix_connection(str(stream))
        packets = b"".join(struct.pack("<I", len(data)) + data for data in (b"a:1|c", b"", b"b:1|c\nc:1|c\n"))
        for byte in packets:
            writer.write(bytes((byte,)))
            await writer.drain()
        await until(lambda: lines(bench) == 4)
        writer.close()
        await writer.wait_closed()
    assert names(bench) == ["a", "b", "by_datagram", "c"]
    assert not datagram.exists()
    assert not stream.exists()


async def test_what_was_sent_before_a_stop_is_read(tmp_path):
    """On every socket, also by who has connected only just."""
    settings = f"{{endpoint: '127.0.0.1:0', socket: '{tmp_path}/d.sock', stream_socket: '{tmp_path}/s.sock'}}"
    async with running(settings) as (receiver, bench):
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream,
        ):
            stream.connect(f"{tmp_path}/s.sock")
            stream.sendall(struct.pack("<I", 5) + b"a:1|c")
            datagram.sendto(b"b:1|c", f"{tmp_path}/d.sock")
            udp.sendto(b"c:1|c", ("127.0.0.1", receiver.port))
            await receiver.stop()
        assert names(bench) == ["a", "b", "c"]


async def test_a_packet_too_large_to_be_true_ends_its_connection(tmp_path):
    """It is counted, and others go on."""
    path = tmp_path / "s.sock"
    async with running(f"{{endpoint: null, stream_socket: '{path}'}}") as (_, bench):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
        assert bench.dropped == {(Signal.METRICS, "malformed"): 1}


async def test_what_the_kernel_has_no_room_for_is_shown():
    """Beside how much room there is."""
    async with running("{endpoint: '127.0.0.1:0', receive_buffer_size: 1KiB}") as (receiver, bench):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(200):  # the loop has no turn meanwhile
                sender.sendto(b"n:1|c" + b" " * 1000, ("127.0.0.1", receiver.port))
        lost = bench.metrics.value("sidecar_dogstatsd_lost_datagrams", transport="udp")
        assert lost > 0
        await until(lambda: lines(bench) + lost == 200)
        assert 0 < bench.metrics.value("sidecar_dogstatsd_receive_buffer_bytes", transport="udp") < 10_000


async def test_a_successor_takes_the_sockets_over():
    """At a reload both are there for a moment: nothing that is sent meanwhile is lost."""
    settings = f"{{endpoint: '127.0.0.1:{find_free_port()}', aggregation_interval: %s}}"
    bench = Bench()
    async with running(settings % "10s", bench) as (old, _):
        new = bench.make(DogStatsDReceiver, settings % "20s", "dogstatsd")
        await new.start()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(100):
                sender.sendto(b"n:1|c", ("127.0.0.1", new.port))
                if number == 50:
                    await old.stop()
            await until(lambda: lines(bench) == 100)
        await new.stop()
    total = sum(point.as_double for metric in items(bench, Signal.METRICS) for point in metric.sum.data_points)
    assert total == 100


async def test_an_address_that_is_taken_is_an_error_that_says_whose_it_is():
    """And by which setting it is asked for."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        with pytest.raises(StartError, match=rf"receivers.dogstatsd: endpoint: can't listen on 127.0.0.1:{port}"):
            async with running(f"endpoint: '127.0.0.1:{port}'"):
                pass


async def test_windows_end_by_themselves():
    """And a stop works without a start, and twice."""
    async with running("{endpoint: '127.0.0.1:0', aggregation_interval: 50ms}") as (receiver, bench):
        receiver.intake.take(b"n:1|c\n_e{1,1}:a|b")
        await asyncio.sleep(0)  # the clock starts with the first window
        bench.clock.advance(1)
        await until(lambda: len(bench.sink) == 2)
        await receiver.stop()
    unstarted = Bench().make(DogStatsDReceiver, "", "dogstatsd")
    await unstarted.stop()
    await unstarted.stop()
