"""The memory limiter: what it measures, when it refuses, and how it recovers."""

import ctypes
import gc
import logging
import os
import struct
import sys
from types import SimpleNamespace

import pytest

import processors.memory_limiter as module
from config.problems import ConfigError
from processors.memory_limiter import MemoryLimiter
from processors.memory_limiter.measure import control_group, physical, resident
from sidecar import Batch, BatchContext, Retryable, Signal, StartError
from sidecar.testing import Bench

MIB = 1 << 20


class Machine:
    """Memory as the tests say it is: megabytes in use, now and after some was given back."""

    def __init__(self):
        self.used = 0
        self.group_used = 0
        self.group_limit = None
        self.after_giving_back = None
        self.given_back = 0
        self.measured = 0

    def resident(self):
        self.measured += 1
        return self.used * MIB

    def control_group(self):
        if self.group_limit is None:
            return None
        return SimpleNamespace(allowed=lambda: self.group_limit * MIB, used=self.in_group)

    def in_group(self):
        if self.group_used is None:
            raise FileNotFoundError("memory.current")
        return self.group_used * MIB

    def give_back(self):
        self.given_back += 1
        if self.after_giving_back is not None:
            self.used = self.after_giving_back


@pytest.fixture
def machine(monkeypatch):
    """A machine with 1,000 MiB."""
    machine = Machine()
    monkeypatch.setattr(module, "resident", machine.resident)
    monkeypatch.setattr(module, "control_group", machine.control_group)
    monkeypatch.setattr(module, "physical", lambda: 1000 * MIB)
    monkeypatch.setattr(module, "_give_back", machine.give_back)
    return machine


@pytest.fixture
def bench():
    """A bench with a clock that moves when told to."""
    return Bench()


async def started(bench, settings):
    """A limiter that has started."""
    limiter = bench.make(MemoryLimiter, settings)
    await limiter.start()
    return limiter


def passes(limiter):
    """Whether a batch that can't even be decoded passes."""
    batch = Batch(Signal.LOGS, b"\xff", context=BatchContext())
    try:
        return limiter.process(batch) is batch
    except Retryable:
        return False


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ("{limit_mib: 400, spike_limit_mib: 80}", 320),
        ("{limit_mib: 400}", 320),
        ("{limit_mib: 400, limit_percentage: 10}", 320),
        ("{limit_percentage: 50}", 400),
        ("{limit_percentage: 50, spike_limit_percentage: 20}", 300),
    ],
)
async def test_data_are_refused_above_the_soft_limit(machine, bench, settings, most):
    """The limit less what may come between two measurements: by default a fifth."""
    limiter = await started(bench, f"{settings[:-1]}, check_interval: 1s}}")

    machine.used = most
    assert passes(limiter)
    machine.used = most + 1
    bench.clock.advance(1)
    assert not passes(limiter)
    machine.used = most
    bench.clock.advance(1)
    assert passes(limiter)


async def test_a_refusal_is_retryable_and_says_why(machine, bench):
    """Senders keep their data and are told when to come back."""
    limiter = await started(bench, "{limit_mib: 400, check_interval: 2s}")
    machine.used = 350

    with pytest.raises(Retryable, match="350 MiB of resident memory are in use, above 320 MiB") as refusal:
        limiter.process(Batch(Signal.LOGS, b"", context=BatchContext()))

    assert (refusal.value.reason, refusal.value.after, refusal.value.http_status) == ("memory", 2, 503)


async def test_memory_is_measured_once_per_interval(machine, bench):
    """Reading it costs as much as many records; in between the last word holds."""
    limiter = await started(bench, "{limit_mib: 400, check_interval: 5s}")
    before = machine.measured

    for _ in range(10):
        assert passes(limiter)
        bench.clock.advance(0.4)
    assert machine.measured == before + 1
    machine.used = 399
    bench.clock.advance(0.9)
    assert passes(limiter)
    bench.clock.advance(0.1)
    assert not passes(limiter)


async def test_the_control_group_counts_where_it_has_a_limit(machine, bench):
    """What others in the container use brings the end nearer, although this process is small."""
    machine.group_limit = 500
    limiter = await started(bench, "{limit_mib: 400, spike_limit_mib: 80}")

    machine.group_used = 420
    assert passes(limiter)
    machine.group_used = 421
    bench.clock.advance(1)
    assert not passes(limiter)


async def test_a_percentage_is_of_the_control_group(machine, bench):
    """Where there is one with a limit; it counts with all that is in it."""
    machine.group_limit = 500
    limiter = await started(bench, "{limit_percentage: 80, spike_limit_percentage: 20}")

    machine.used, machine.group_used = 300, 320
    assert passes(limiter)
    machine.used = 301
    bench.clock.advance(1)
    assert not passes(limiter)
    machine.used, machine.group_used = 0, 321
    bench.clock.advance(1)
    assert not passes(limiter)


async def test_a_limit_above_the_control_groups_end_still_protects(machine, bench):
    """400 MiB in a container of 256: the container's end is what counts."""
    machine.group_limit = 256
    limiter = await started(bench, "{limit_mib: 400, spike_limit_mib: 390}")

    machine.used, machine.group_used = 5, 200
    assert passes(limiter)
    machine.group_used = 210
    bench.clock.advance(1)
    assert not passes(limiter)


async def test_memory_is_given_back_before_data_are_refused(machine, bench):
    """Garbage and what the allocator keeps must not look like data for ever."""
    limiter = await started(bench, "{limit_mib: 400}")
    machine.used, machine.after_giving_back = 350, 100

    assert passes(limiter)
    assert machine.given_back == 1


async def test_giving_back_has_its_intervals(machine, bench):
    """It stops the world for a moment: rarely above the soft limit, at each check above the hard one."""
    limiter = await started(bench, "{limit_mib: 400, min_gc_interval_when_soft_limited: 3s}")

    def given_back_in(seconds):
        before = machine.given_back
        for _ in range(seconds):
            passes(limiter)
            bench.clock.advance(1)
        return machine.given_back - before

    machine.used = 350
    assert given_back_in(6) == 2
    machine.used = 450
    assert given_back_in(3) == 3
    machine.used = 0
    assert given_back_in(6) == 0


async def test_health_and_log_tell_once(machine, bench, caplog):
    """A person sees what is wrong and that it is over, without a line per request."""
    caplog.set_level(logging.INFO)
    limiter = await started(bench, "limit_mib: 400")
    health = limiter.context.health

    machine.used = 350
    for _ in range(5):
        passes(limiter)
        bench.clock.advance(1)
    assert (health.status, "350 MiB of resident memory" in health.message) == ("degraded", True)
    machine.used = 0
    passes(limiter)

    assert health.status == "ok"
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "data are refused",
        "data are accepted again",
    ]


async def test_a_group_that_vanishes_is_no_error(machine, bench):
    """The process may be moved while it runs; the other limit still holds."""
    machine.group_limit = 500
    limiter = await started(bench, "limit_mib: 400")

    machine.group_used = None
    assert passes(limiter)
    machine.used = 350
    bench.clock.advance(1)
    assert not passes(limiter)


async def test_a_system_that_tells_nothing_is_a_start_error(machine, bench, monkeypatch):
    """A limiter that can't measure must not look like protection."""
    monkeypatch.setattr(module, "resident", lambda: int("x"))

    with pytest.raises(StartError, match=r"processors\.test: memory can't be measured.*remove it"):
        await started(bench, "limit_mib: 400")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("", r"limit_mib.*limit_percentage"),
        ("{limit_mib: 400, check_interval: 0s}", r"check_interval.*1s"),
        ("{limit_mib: 400, spike_limit_mib: 400}", r"spike_limit_mib.*below limit_mib"),
        ("{limit_percentage: 101}", r"limit_percentage.*1 to 100"),
        ("{limit_percentage: 50, spike_limit_percentage: 60}", r"spike_limit_percentage.*below limit_percentage"),
        ("{limit_mib: -1}", r"limit_mib.*negative"),
    ],
)
def test_wrong_settings_are_problems(bench, settings, problem):
    """Each says what would be right."""
    with pytest.raises(ConfigError, match=problem):
        bench.make(MemoryLimiter, settings)


# What the system tells.


@pytest.fixture
def system(tmp_path):
    """Makes /proc and /sys/fs/cgroup from texts, and finds the control group in them."""

    def find(own, files):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "cgroup").write_text(own)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return control_group(tmp_path / "proc", tmp_path / "cgroup")

    return find


def test_version_2_groups_are_read(system):
    """What is in use without the file cache, and the lowest limit of the group and those above it."""
    group = system(
        "0::/system.slice/sidecar.service\n",
        {
            "memory.stat": "",
            "system.slice/memory.max": "1000\n",
            "system.slice/memory.current": "700\n",
            "system.slice/memory.stat": "anon 500\ninactive_file 150\nactive_file 50\n",
            "system.slice/sidecar.service/memory.max": "max\n",
            "system.slice/sidecar.service/memory.current": "10\n",
        },
    )

    assert (group.allowed(), group.used()) == (1000, 550)


def test_version_1_groups_are_read(system):
    """In its own hierarchy; a number near 2^63 is no limit."""
    group = system(
        "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n",
        {
            "memory/a/b/memory.limit_in_bytes": "2000\n",
            "memory/a/b/memory.usage_in_bytes": "900\n",
            "memory/a/b/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
            "memory/a/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )

    assert (group.allowed(), group.used()) == (2000, 800)


def test_in_a_container_the_mounted_group_is_the_own_one(system):
    """The path that /proc names may be the host's, which is not mounted."""
    group = system(
        "0::/kubepods/burstable/pod1/abc\n",
        {"memory.max": "3000\n", "memory.current": "100\n", "memory.stat": "anon 100\n"},
    )

    assert (group.allowed(), group.used()) == (3000, 100)


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"memory.max": "max\n"}),
        ("0::/a\n", {}),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}),
    ],
)
def test_without_a_limit_there_is_no_group(system, own, files):
    """Then only this process counts."""
    assert system(own, files) is None


def test_without_control_groups_there_is_none(tmp_path):
    """As on macOS."""
    assert control_group(tmp_path / "proc", tmp_path / "cgroup") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_follows_what_is_in_use():
    """It rises with what is held and falls again: it is no peak."""
    before = resident()
    held = bytearray(os.urandom(1)) * (64 * MIB)
    during = resident()
    del held

    assert during - before > 60 * MIB
    assert resident() - before < 10 * MIB
    assert resident() < physical()


def test_resident_memory_on_macos(monkeypatch):
    """The second number of proc_taskinfo; an answer that is too short is an error."""
    calls = []

    def proc_pidinfo(pid, flavor, argument, buffer, size):
        calls.append((pid, flavor, argument.value, size))
        struct.pack_into("QQ", buffer, 0, 10 * MIB, 3 * MIB)
        return answered

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(proc_pidinfo=proc_pidinfo))
    answered = 96

    assert resident() == 3 * MIB
    assert calls == [(os.getpid(), 4, 0, 96)]
    answered = 0
    with pytest.raises(OSError, match="proc_pidinfo"):
        resident()


def test_giving_back_collects_garbage():
    """Cycles are garbage too, and a system without malloc_trim is no error."""
    cycle = SimpleNamespace()
    cycle.itself = cycle
    gc.disable()
    try:
        del cycle
        before = gc.get_stats()[2]["collected"]
        module._give_back()
        assert gc.get_stats()[2]["collected"] > before
    finally:
        gc.enable()
