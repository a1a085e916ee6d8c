"""Programs of tests in processes of their own that start in milliseconds: what takes seconds to import is there already.

    test                          server: has imported torch, one thread      keeper            program
      Program(code, arguments) ---- code, descriptors ----> fork ------------> fork -----------> code as `__main__`
      pid, exit code <------------------------------------------------------- waits            ends as an interpreter does

The server is this module as a program; it ends with the process of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

ROOT = Path(__file__).parent.parent
LARGEST = 1 << 16
"""Bytes of a request."""
NUMBER = struct.Struct("i")


class Program:
    """A program that runs; the end of the block kills it.

    Args:
        code: its text, as for `python -c`.
        arguments: `sys.argv[1:]`.
        descriptors: handed over; their numbers there are the last of its arguments.

    Attributes:
        stdout: what it prints.
        stderr: what it complains of.
        pid: its process id.
    """

    def __init__(self, code: str, *arguments: str, descriptors: Sequence[int] = ()) -> None:
        outs, errors, self._status = (os.pipe() for _ in range(3))
        theirs = (outs[1], errors[1], self._status[1])
        socket.send_fds(_server(), [pickle.dumps((code, arguments))], [*theirs, *descriptors])
        for descriptor in theirs:
            os.close(descriptor)
        self.stdout, self.stderr = os.fdopen(outs[0]), os.fdopen(errors[0])
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        data = os.read(self._status[0], NUMBER.size)
        assert data, "the server of programs is gone: what it imports failed, perhaps; stderr has its words"
        return NUMBER.unpack(data)[0]

    def wait(self, timeout: float) -> int:
        """Its exit code, negative for a signal."""
        if self.returncode is None:
            assert select.select([self._status[0]], [], [], timeout)[0], f"the program did not end in {timeout} s"
            self.returncode = self._number()
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
        self.wait(100)
        for stream in (self.stdout, self.stderr):
            stream.close()
        os.close(self._status[0])


def run(code: str, *arguments: str, timeout: float) -> tuple[int, str, str]:
    """Run a program to its end: exit code, what it printed, what it complained of (a few kB)."""
    with Program(code, *arguments) as program:
        exit_code = program.wait(timeout)
        return exit_code, program.stdout.read(), program.stderr.read()


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
    server = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, stdin=subprocess.DEVNULL)
    theirs.close()

    @atexit.register
    def _stop() -> None:
        ours.close()
        server.wait()

    return ours


def _serve(requests: socket.socket) -> Any:
    """Fork programs; returns in each of them, with what it is to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers leave nothing to wait for
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 32)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            _keep(descriptors[2])
            code, arguments = pickle.loads(request)
            return code, arguments, descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(status: int) -> None:
    """Fork the program, in which this returns, and tell its exit code."""
    program = os.fork()
    if program:
        os.write(status, NUMBER.pack(program))
        os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])))
        os._exit(0)


def _take_over(code: str, arguments: Sequence[str], descriptors: Sequence[int]) -> dict[str, Any]:
    """Make this process that of the program; the namespace of its `__main__`."""
    *streams, status = descriptors[:3]
    for number, descriptor in enumerate(streams, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.close(status)
    sys.argv = ["-c", *arguments, *map(str, descriptors[3:])]
    main = sys.modules["__main__"] = ModuleType("__main__")
    return main.__dict__


if __name__ == "__main__":
    import gymnasium  # noqa: F401
    import torch

    import reap.collectors.multi
    import reap.weight_update  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()  # the ends of programs do not go through all of it
    program = _serve(socket.socket(fileno=int(sys.argv[1])))
    exec(program[0], _take_over(*program))
