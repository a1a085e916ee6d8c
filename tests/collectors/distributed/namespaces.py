"""Two network namespaces, joined by a third: two machines as far as the network can tell.

trainer's   10.77.N.1 ==== veth ==== 10.77.N.2   workers'
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from reap.workers.launchers.base import Task
from reap.workers.process_context import RemoteContext
from reap.workers.progress import Control

RUN = "import pickle, sys; sys.exit(pickle.load(sys.stdin.buffer).run())"
ROOT = Path(__file__).parents[3]

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="network namespaces need root, and ip and tc of iproute2",
)


def ip(*words: str) -> str:
    """Run `ip`."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20).stdout


class Cable:
    """The way between two namespaces, through a router that is a third.

    Args:
        number: of the namespaces.

    Attributes:
        near: the trainer's namespace.
        far: the workers' namespace.
        near_address: the trainer's address.
        far_address: the workers' address.
    """

    def __init__(self, number: int) -> None:
        self.near, self.far, self._router = f"reap-near-{number}", f"reap-far-{number}", f"reap-router-{number}"
        self.near_address, self.far_address = f"10.77.{number}.1", f"10.78.{number}.1"

    def lay(self) -> None:
        """Make the namespaces, and join them."""
        for name in (self.near, self.far, self._router):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for name, address in ((self.near, self.near_address), (self.far, self.far_address)):
            end, other, gateway = "cable", f"to-{name[5:9].strip('-')}", f"{address.rpartition('.')[0]}.2"
            ip("link", "add", end, "netns", name, "type", "veth", "peer", "name", other, "netns", self._router)
            for place, device, own in ((name, end, address), (self._router, other, gateway)):
                ip("-n", place, "address", "add", f"{own}/24", "dev", device)
                ip("-n", place, "link", "set", device, "up")
            ip("-n", name, "route", "add", "default", "via", gateway)
        self._forward("1")

    def cut(self) -> None:
        """Let nothing through any more; neither end is told."""
        self._forward("0")

    def slow(self, rate: str) -> None:
        """Let no more than this through, from the workers to the trainer."""
        words = ("dev", "to-near", "root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms")
        self._in_router("tc", "qdisc", "replace", *words)

    def _forward(self, is_on: str) -> None:
        self._in_router("sh", "-c", f"echo {is_on} > /proc/sys/net/ipv4/ip_forward")

    def _in_router(self, *command: str) -> None:
        subprocess.run(["ip", "netns", "exec", self._router, *command], check=True, capture_output=True, timeout=20)

    def pids(self, name: str) -> list[int]:
        """The processes in a namespace."""
        return [int(pid) for pid in ip("netns", "pids", name).split()]

    def listening(self) -> list[str]:
        """The addresses on which processes in the trainer's namespace listen."""
        out = subprocess.run(
            ["ip", "netns", "exec", self.near, "cat", "/proc/net/tcp"], check=True, capture_output=True, text=True, timeout=20
        ).stdout
        rows = [line.split() for line in out.splitlines()[1:]]
        return [_address(row[1].partition(":")[0]) for row in rows if row[3] == "0A"]

    def wait_for_listener(self, namespace: str, port: int, timeout: float = 60.0) -> None:
        """Wait until a process in a namespace listens on a port."""
        wait = f"until grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done"
        subprocess.run(["ip", "netns", "exec", namespace, "sh", "-c", wait], check=True, timeout=timeout)

    def take_up(self) -> None:
        """End what runs there, and remove the namespaces."""
        for name in (self.near, self.far, self._router):
            with contextlib.suppress(subprocess.CalledProcessError):
                for pid in self.pids(name):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                ip("netns", "del", name)


def _address(number: str) -> str:
    """An address as `/proc/net/tcp` has it, in the usual form."""
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(number)))


@contextlib.contextmanager
def laid(number: int) -> Generator[Cable]:
    """A cable, for as long as the body runs."""
    cable = Cable(number)
    cable.take_up()  # of a run that was killed
    try:
        cable.lay()
        yield cable
    finally:
        cable.take_up()


class FarJob:
    """A process in another namespace; see `reap.workers.launchers.base.Job`."""

    control: Control | None = None
    log: Path | None = None

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def place(self) -> str:
        return f"pid {self._process.pid}"

    @property
    def has_ended(self) -> bool:
        return False  # as far as anyone can tell from another machine

    @property
    def exit_code(self) -> int | None:
        return None

    @property
    def state(self) -> str:
        return "out of sight"

    def fileno(self) -> int:
        return -1

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """A process of another machine cannot be killed over a network that is cut."""

    def close(self) -> None:
        self._process.poll()


class FarLauncher:
    """Starts processes in another namespace, as a scheduler does on another machine: over no network of theirs.

    Args:
        namespace: its name.
    """

    is_local = False

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    @property
    def context(self) -> RemoteContext:
        return RemoteContext.capture()

    def launch(self, task: Task) -> FarJob:
        command = ["ip", "netns", "exec", self._namespace, sys.executable, "-c", RUN]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True)
        assert process.stdin
        process.stdin.write(pickle.dumps(task))
        process.stdin.close()
        return FarJob(process)

    def close(self) -> None:
        """Nothing is held."""


class Trainer:
    """A program in the trainer's namespace, that is told what to do line by line.

    Args:
        cable: the cable.
        module: the program.
        *arguments: its arguments.
        environment: variables that it has beside those of this process.
    """

    def __init__(self, cable: Cable, module: str, *arguments: str, environment: Mapping[str, str]) -> None:
        command = ["ip", "netns", "exec", cable.near, sys.executable, "-m", module, *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )

    def tell(self, line: str) -> None:
        """Give it a line."""
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self, timeout: float = 40.0) -> str:
        """Its next line; TimeoutError if none comes."""
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise TimeoutError
        return self.process.stdout.readline().rstrip()

    def ask(self, line: str, timeout: float = 40.0) -> str:
        """Its answer to a line."""
        self.tell(line)
        return self.hear(timeout)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def running(
    cable: Cable, module: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Generator[Trainer]:
    """A program in the trainer's namespace, for as long as the body runs."""
    trainer = Trainer(cable, module, *arguments, environment=environment)
    try:
        yield trainer
    finally:
        trainer.close()
