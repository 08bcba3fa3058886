"""Real programs under test: started, waited for by what they say, and ended by pid with all that they have started."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

# Seconds within which a program must do what it is waited for.
PATIENCE = 20.0
_MAX_LINES = 10_000


def find_free_port():
    """A TCP port of 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class Exit:
    """How a program ended. `code` is negative where a signal ended it."""

    code: int
    output: str


class ManagedProcess:
    """A program, and everything that it writes.

    Used as `async with ManagedProcess(…) as process`, it is running inside and is ended on the way out, also when the
    test fails. It leads a process group of its own, so that its children end with it.
    """

    def __init__(self, *command, env=None, cwd=None):
        self.command = [str(part) for part in command]
        self.lines = []
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._process = None
        self._readers = []
        self._changed = asyncio.Condition()

    async def __aenter__(self):
        """Start, and wait until it is ready; end it where that fails."""
        try:
            await self.start()
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(self, failure, *_):
        """End it at once, if it has not ended. Where the test has failed, show what the program has to say."""
        await self.kill()
        if failure is not None:
            sys.stdout.write(f"--- {' '.join(self.command)}\n{self.output}\n")

    async def start(self):
        """Start the program, and wait until it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            env=self._env,
            cwd=self._cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=2**20,
        )
        self._readers = [
            asyncio.create_task(self._read(stream), name=f"reads {self.command[0]}")
            for stream in (self._process.stdout, self._process.stderr)
        ]
        await self.wait_until_ready()

    async def wait_until_ready(self):
        """Return when the program can be used. For programs that need no wait: at once."""

    @property
    def pid(self):
        """The program's process id."""
        return self._process.pid

    @property
    def is_running(self):
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def output(self):
        """Everything that it has written to stdout and stderr."""
        return "\n".join(self.lines)

    async def wait_for_line(self, pattern, within=PATIENCE):
        """The match of the first line, already written or still to come, in which the pattern is found."""

        def match():
            return next((found for line in self.lines if (found := re.search(pattern, line))), None)

        await self._wait_for(lambda: match() or self._ended_reading(), f"line {pattern!r}", within)
        found = match()
        if found is None:
            code = await self._process.wait()
            raise AssertionError(f"{self.command[0]} exited {code} without a line {pattern!r}:\n{self.output}")
        return found

    async def wait_for_port(self, port, within=PATIENCE):
        """Return when something listens on that port of 127.0.0.1."""
        async with self._within(within, f"listener on port {port}"):
            while True:
                if not self.is_running:
                    raise AssertionError(f"{self.command[0]} exited {self._process.returncode}:\n{self.output}")
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    await writer.wait_closed()
                    return
                await asyncio.sleep(0.02)

    def send_signal(self, number):
        """Send a signal to the program alone."""
        self._process.send_signal(number)

    async def stop(self, number=signal.SIGTERM, within=PATIENCE):
        """Send a signal, and return how the program ended."""
        self.send_signal(number)
        return await self.wait(within)

    async def wait(self, within=PATIENCE):
        """Return how the program ended, when it has."""
        async with self._within(within, "end"):
            code = await self._process.wait()
            await asyncio.gather(*self._readers)
        return Exit(code, self.output)

    async def kill(self):
        """End the program and its children at once. Works twice."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        # A child that has left the group may hold the pipes open for as long as it lives.
        _, open_still = await asyncio.wait(self._readers, timeout=2) if self._readers else (None, ())
        for reader in open_still:
            reader.cancel()

    def memory(self):
        """The resident set in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the program has ended")

    def cpu_seconds(self):
        """The processor time that all its threads have used, in steps of a hundredth."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def _read(self, stream):
        async for line in stream:
            async with self._changed:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                del self.lines[:-_MAX_LINES]
                self._changed.notify_all()
        async with self._changed:
            self._changed.notify_all()

    def _ended_reading(self):
        return all(stream.at_eof() for stream in (self._process.stdout, self._process.stderr))

    async def _wait_for(self, condition, what, within):
        async with self._within(within, what), self._changed:
            await self._changed.wait_for(condition)

    @contextlib.asynccontextmanager
    async def _within(self, seconds, what):
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise AssertionError(f"{self.command[0]}: no {what} within {seconds} s:\n{self.output}") from None


class SidecarProcess(ManagedProcess):
    """`sidecar run` as a process of its own.

    Args:
        document: the YAML text; None for what `arguments` say, or else the built-in document.
        folder: where the document is written, and the socket on which `sidecar reload` reaches it.
        arguments: more of the command line.
        env: more of the environment.
    """

    def __init__(self, document, folder, *arguments, env=None):
        self.control = Path(folder) / "control.sock"
        command = [Path(sys.executable).with_name("sidecar"), "run", "--control", self.control]
        if document is not None:
            self.document = Path(folder) / "sidecar.yaml"
            self.document.write_text(document)
            command += ["--config", self.document]
        super().__init__(*command, *arguments, env={"PYTHONUNBUFFERED": "1", **(env or {})}, cwd=folder)

    async def wait_until_ready(self):
        """Return when it says that it is ready."""
        await self.wait_for_line("^ready")
