"""Two network namespaces, joined by a third: two machines as far as the network can tell.

trainer's   10.77.N.1 ==== veth ==== 10.77.N.2   workers'
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

ROOT = Path(__file__).parents[3]

PATIENCE = 200.0
"""Seconds for an answer; on a busy machine a program imports torch for half a minute."""

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
        staying: processes that `end_all` leaves alone.
    """

    def __init__(self, number: int) -> None:
        self.near, self.far, self._router = f"reap-near-{number}", f"reap-far-{number}", f"reap-router-{number}"
        self.near_address, self.far_address = f"10.77.{number}.1", f"10.78.{number}.1"
        self.staying: set[int] = set()

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

    def mend(self) -> None:
        """Let everything through again, at once, and end the workers."""
        self.end_all()
        with contextlib.suppress(subprocess.CalledProcessError):  # it is not slow
            self._in_router("tc", "qdisc", "del", "dev", "to-near", "root")
        self._forward("1")

    def end_all(self) -> None:
        """Kill all processes at both ends but those that are to stay."""
        for name in (self.near, self.far):
            for pid in set(self.pids(name)) - self.staying:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def carried(self) -> int:
        """Bytes that have left the router for the trainer."""
        (found,) = json.loads(ip("-n", self._router, "-s", "-j", "link", "show", "to-near"))
        return int(found["stats64"]["tx"]["bytes"])

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

    def wait_for_listener(self, namespace: str, port: int, timeout: float = 150.0) -> None:
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


class Program:
    """A program in a namespace, that is told what to do line by line, and has said that it is up.

    Args:
        namespace: its name.
        module: the program.
        *arguments: its arguments.
        environment: variables that it has beside those of this process.
    """

    def __init__(self, namespace: str, module: str, *arguments: str, environment: Mapping[str, str]) -> None:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", module, *arguments]
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

    def hear(self, timeout: float = PATIENCE) -> str:
        """Its next line; TimeoutError if none comes."""
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise TimeoutError
        return self.process.stdout.readline().rstrip()

    def ask(self, line: str, timeout: float = PATIENCE) -> str:
        """Its answer to a line."""
        self.tell(line)
        return self.hear(timeout)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def running(
    namespace: str, module: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Generator[Program]:
    """A program in a namespace, for as long as the body runs."""
    program = Program(namespace, module, *arguments, environment=environment)
    try:
        assert program.hear() == "up"
        yield program
    finally:
        program.close()
