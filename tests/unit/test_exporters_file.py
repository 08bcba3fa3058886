"""What the `file` exporter leaves on disk, when all goes well and when it does not."""

import asyncio
import errno
import json
import os
import threading

import pytest
import zstandard
from support.otlp import logs, metrics, traces
from support.peers import running

from config.problems import ConfigError
from exporters.file import FileExporter
from sidecar import SCHEMAS, Batch, Permanent, Retryable, Signal, StartError
from sidecar.net import otlp_json
from sidecar.testing import Bench


@pytest.fixture
async def bench():
    """What surrounds the exporter."""
    bench = Bench()
    yield bench
    await bench.close()


@pytest.fixture
def path(tmp_path):
    """Where the exporter writes."""
    return tmp_path / "telemetry.jsonl"


@pytest.fixture
def make(bench, path):
    """Makes an exporter to that path."""
    return lambda yaml="": bench.make(FileExporter, f"path: {path}\n{yaml}", "file")


async def test_a_request_is_a_line(make, path):
    """OTLP/JSON, each batch on a line of its own, whatever the signal."""
    async with running(make()) as exporter:
        for batch in (logs(2, body="one\ntwo"), traces(1), metrics(1)):
            await exporter.export(batch)

    lines = path.read_bytes().splitlines()
    assert [list(json.loads(line)) for line in lines] == [["resourceLogs"], ["resourceSpans"], ["resourceMetrics"]]
    assert otlp_json.decode(Signal.LOGS, lines[0]).data == logs(2, body="one\ntwo").encode()


async def test_a_line_is_there_when_export_returns(make, path):
    """Nothing waits in the sidecar's memory."""
    async with running(make()) as exporter:
        await exporter.export(logs(1))
        assert path.read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("encoding", ["json", "proto"])
async def test_binary_forms(make, path, encoding, compression):
    """What is not a line begins with its length in four bytes, as the Collector writes and reads it."""
    batches = [logs(3), traces(2)]
    async with running(make(f"format: {encoding}\ncompression: {compression}")) as exporter:
        for batch in batches:
            await exporter.export(batch)

    data = path.read_bytes()
    if (encoding, compression) == ("json", "none"):
        pieces = data.splitlines()
    else:
        pieces = []
        while data:
            size = int.from_bytes(data[:4], "big")
            pieces.append(data[4 : 4 + size])
            data = data[4 + size :]
    if compression == "zstd":
        pieces = [zstandard.ZstdDecompressor().decompress(piece) for piece in pieces]
    if encoding == "json":
        pieces = [otlp_json.decode(batch.signal, piece).data for batch, piece in zip(batches, pieces, strict=True)]
    assert pieces == [batch.encode() for batch in batches]


async def test_a_restart_goes_on(make, path):
    """What an earlier run wrote stays, unless `append: false`."""
    for _ in range(2):
        async with running(make()) as exporter:
            await exporter.export(logs())
    assert path.read_bytes().count(b"\n") == 2

    async with running(make("append: false")) as exporter:
        await exporter.export(logs())
    assert path.read_bytes().count(b"\n") == 1


async def test_only_the_owner_reads(make, path, tmp_path):
    """Files are private unless `permissions` says otherwise."""
    async with running(make()):
        assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    async with running(make("permissions: '0640'")):
        assert path.stat().st_mode & 0o777 == 0o640


async def test_a_missing_directory(bench, tmp_path):
    """Start fails and says what to do; `create_directory` does it."""
    yaml = f"path: {tmp_path / 'a' / 'b' / 'x.jsonl'}"
    with pytest.raises(StartError, match=r"exporters\.file/x: path: .*No such file.*create_directory: true"):
        await bench.make(FileExporter, yaml, "file/x").start()

    async with running(bench.make(FileExporter, f"{yaml}\ncreate_directory: true\ndirectory_permissions: '0750'")):
        assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o750


async def test_a_directory_is_no_file(bench, tmp_path):
    """Start fails and says what to do."""
    with pytest.raises(StartError, match="write the path of a file"):
        await bench.make(FileExporter, f"path: {tmp_path}").start()


async def test_rotation(bench, make, path, tmp_path):
    """A file that would grow too large is put aside under the time, and the oldest of those are removed."""
    batch = logs(1, body="x" * 400_000)
    exporter = make("rotation: {max_megabytes: 1, max_backups: 2}")
    async with running(exporter):
        for _ in range(9):
            await exporter.export(batch)
            bench.clock.advance(1)

    backups = sorted(one.name for one in tmp_path.iterdir() if one != path)
    assert backups == ["telemetry-2023-11-14T22-13-26.000.jsonl", "telemetry-2023-11-14T22-13-28.000.jsonl"]
    assert all((tmp_path / name).read_bytes().count(b"\n") == 2 for name in backups)
    assert path.read_bytes().count(b"\n") == 1


async def test_two_rotations_in_one_moment(make, path, tmp_path):
    """The second does not overwrite the first."""
    async with running(make("rotation: {max_megabytes: 1}")) as exporter:
        for _ in range(5):
            await exporter.export(logs(1, body="x" * 700_000))

    assert len(list(tmp_path.iterdir())) == 5


async def test_old_backups_are_removed(bench, make, path, tmp_path):
    """`max_days` goes by the time in the name; other files of the folder stay."""
    other = tmp_path / "telemetry-notes.jsonl"
    other.touch()
    exporter = make("rotation: {max_megabytes: 1, max_days: 2}")
    async with running(exporter):
        for days in (0, 0, 1, 5):
            bench.clock.advance(days * 86_400)
            await exporter.export(logs(1, body="x" * 700_000))

    backups = sorted(one.name for one in tmp_path.iterdir() if one not in {path, other})
    assert backups == ["telemetry-2023-11-20T22-13-20.000.jsonl"]
    assert other.exists()


async def test_a_request_larger_than_a_file(make, path, tmp_path):
    """It has a file of its own, and an empty file is not put aside for it."""
    async with running(make("rotation: {max_megabytes: 1}")) as exporter:
        await exporter.export(logs(1, body="x" * 2_000_000))

    assert [one.name for one in tmp_path.iterdir()] == [path.name]


async def test_another_program_may_rotate(make, path):
    """When the file is moved or removed, the next batch goes to a new file at the path."""
    async with running(make()) as exporter:
        await exporter.export(logs())
        path.rename(path.with_suffix(".1"))
        await exporter.export(logs())
        path.unlink()
        await exporter.export(logs())

    assert path.read_bytes().count(b"\n") == 1
    assert path.with_suffix(".1").read_bytes().count(b"\n") == 1


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that has room for some bytes more, and then for none."""
    real = os.write
    room = {"bytes": 10**9}

    def write(descriptor, data):
        taken = min(len(data), room["bytes"], 1000)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room["bytes"] -= taken
        return real(descriptor, data[:taken])

    monkeypatch.setattr("exporters.file.os.write", write)
    return room


async def test_a_full_disk_is_a_matter_of_time(make, path, full_disk):
    """The sender keeps its batch, no half line is left, health says what to do, and later all is well."""
    async with running(make()) as exporter:
        await exporter.export(logs(20))
        before = path.read_bytes()
        full_disk["bytes"] = 1500

        with pytest.raises(Retryable, match=f"can't write to {path}: No space left on device; make room") as raised:
            await exporter.export(logs(40))

        assert raised.value.reason == "disk"
        assert path.read_bytes() == before
        assert exporter.context.health.status == "degraded"
        full_disk["bytes"] = 10**9
        await exporter.export(logs(40))
        assert exporter.context.health.status == "ok"

    assert [len(line) > 1000 for line in path.read_bytes().splitlines()] == [True, True]


async def test_the_directory_goes_away_and_comes_back(bench, tmp_path):
    """Until somebody makes it again, senders keep their batches."""
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "x.jsonl"
    async with running(bench.make(FileExporter, f"path: {path}")) as exporter:
        path.unlink()
        folder.rmdir()
        for _ in range(2):
            with pytest.raises(Retryable, match="No such file"):
                await exporter.export(logs())
        folder.mkdir()
        await exporter.export(logs())

    assert path.read_bytes().count(b"\n") == 1


async def test_what_is_written_is_forced_to_disk(make, monkeypatch):
    """Within `flush_interval` of a write, and not when there is nothing new."""
    flushed = asyncio.Event()
    loop = asyncio.get_running_loop()
    count = []

    def fsync(_descriptor):
        count.append(threading.current_thread().name)
        loop.call_soon_threadsafe(flushed.set)

    monkeypatch.setattr("exporters.file.os.fsync", fsync)
    async with running(make("flush_interval: 10ms")) as exporter:
        await exporter.export(logs())
        await flushed.wait()
        await asyncio.sleep(0.05)
        assert len(count) == 1
    assert len(count) == 2
    assert all(name.startswith("file") for name in count)


async def test_batches_at_once_do_not_mix(make, path):
    """Senders do not wait for each other's lines to end, and lines are whole all the same."""
    async with running(make()) as exporter:
        await asyncio.gather(*(exporter.export(logs(1, body=str(number) * 5000)) for number in range(20)))

    lines = path.read_bytes().splitlines()
    assert len(lines) == 20
    assert all(json.loads(line) for line in lines)


async def test_a_cancelled_sender_leaves_no_half_line(make, path):
    """A client that goes away does not stop a write that has begun."""
    async with running(make()) as exporter:
        tasks = [asyncio.create_task(exporter.export(logs(1, body="x" * 100_000))) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await exporter.export(logs())

    assert all(json.loads(line) for line in path.read_bytes().splitlines())


async def test_a_pipe_is_written_to_as_well(bench, tmp_path):
    """A path that is no regular file is neither rotated nor truncated."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with running(bench.make(FileExporter, f"path: {pipe}\nrotation: {{max_megabytes: 1}}")) as exporter:
            await exporter.export(logs(2))
            assert os.read(reader, 65536).count(b"\n") == 1
    finally:
        os.close(reader)


async def test_what_can_not_be_decoded(make, path):
    """A batch that is no request is refused for good; the file stays as it was."""
    async with running(make()) as exporter:
        with pytest.raises(Permanent):
            await exporter.export(Batch(Signal.LOGS, b"\xff", context=logs().context))

    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("{}", "path: .*required"),
        ("path: ''", "path: empty"),
        ("{path: x, permissions: rw}", "permissions: 'rw' is not octal; write for example 0640"),
        ("{path: x, rotation: {max_megabytes: 0}}", r"rotation\.max_megabytes: 0 is too small"),
        ("{path: x, rotation: {max_days: -1}}", r"rotation\.max_days: -1 is negative"),
        ("{path: x, format: xml}", "format: 'xml' is not a choice"),
    ],
)
def test_wrong_settings(bench, yaml, problem):
    """Each is refused at its place, with what would be right."""
    with pytest.raises(ConfigError, match=problem):
        bench.make(FileExporter, yaml)


async def test_stop_works_twice_and_without_start(make):
    """As every component's does."""
    exporter = make()
    await exporter.stop()
    await exporter.start()
    await exporter.stop()
    await exporter.stop()


def test_every_signal_is_taken():
    """Whatever a pipeline carries."""
    assert FileExporter.signals == set(SCHEMAS)
