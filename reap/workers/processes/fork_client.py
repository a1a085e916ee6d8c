"""`ForkClient`: a process's connection to the server that forks workers, which is started when first needed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from reap.system.native import at_fork

MODULES = ("torch", "numpy", "gymnasium", "reap.collectors.worker.worker")
"""Modules that the server imports by default."""

REQUEST = struct.Struct("<I")
ANSWER = struct.Struct("<Ii")
"""The number of the request, and the pid or, if the fork failed, a negative errno."""
STATUS = struct.Struct("<i")
"""An exit code, as in multiprocessing."""
DESCRIPTORS = 5

# OpenBLAS starts its threads while it is imported, and a process with threads must not fork.
_NEEDED = {"OPENBLAS_NUM_THREADS": "1"}
_USEFUL = {
    # Asking the CUDA driver whether there is a device would make it unusable in forks.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Huge pages: half the time for a fork, and for the end of what it made, where the modules take 200 MB.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_PATIENCE = 1.0


@dataclass(frozen=True)
class Launched:
    """A worker's process.

    Args:
        pid: its process id, for display only.
        pidfd: its pidfd, for signals.
        status: a pipe that delivers its exit code.
    """

    pid: int
    pidfd: int
    status: int


class ForkClient:
    """This process's connection to its fork server.

    Args:
        requests: the socket for launch requests.
        process: the server, if this process started it; a worker uses the server that forked it.
    """

    def __init__(self, requests: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
        self._requests = requests
        self._process = process
        self._lock = threading.Lock()
        self._number = 0
        self._has_answered = threading.Event()
        self._end = weakref.finalize(self, _end, requests, process, self._has_answered, os.getpid())

    @property
    def pid(self) -> int | None:
        """The server's process id, if this process started it."""
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        """Whether the server still runs; assumed if this process did not start it."""
        return self._process is None or self._process.poll() is None

    def await_end(self) -> None:
        """Wait for the end of a server whose connection is dead.

        Raises:
            OSError: another process started it, so it cannot be restarted from here.
        """
        if self._process is None:
            raise OSError(errno.EPIPE, "the process that forks workers is gone")
        self._end()

    def launch(self, channel: int, control: int, life: int) -> Launched:
        """Fork a worker.

        Args:
            channel: the descriptor of the worker's end of its channel.
            control: the descriptor of the control block.
            life: the descriptor of a file that says what the worker runs (`reap.workers.processes.life`).

        Raises:
            OSError: it cannot be forked, or the server is gone.
        """
        outputs = [_output(1), _output(2)]
        try:
            with self._lock:
                self._number = (self._number + 1) % (1 << 32)
                request = REQUEST.pack(self._number)
                socket.send_fds(self._requests, [request], [channel, control, life, *outputs])
                return self._answer(self._number)
        finally:
            for descriptor in outputs:
                os.close(descriptor)

    def _answer(self, number: int) -> Launched:
        while True:
            answer, descriptors, *_ = socket.recv_fds(self._requests, ANSWER.size, 2)
            if len(answer) < ANSWER.size:
                raise OSError(errno.EPIPE, "the process that forks workers is gone")
            self._has_answered.set()
            answered, pid = ANSWER.unpack(answer)
            if answered == number and pid < 0:
                raise OSError(-pid, f"a worker cannot be forked: {os.strerror(-pid)}")
            if answered == number and len(descriptors) == 2:
                return Launched(pid, *descriptors)
            for descriptor in descriptors[:1]:  # of a request that Ctrl-C interrupted
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            for descriptor in descriptors:
                os.close(descriptor)
            if answered == number:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def close(self) -> None:
        """End the server and all of its workers."""
        self._end()

    def abandon(self) -> None:
        """Drop the connection, which belongs to the parent of this fork."""
        self._end.detach()
        self._requests.close()
        if self._process:
            self._process.returncode = 0  # else it warns of a running child when it is collected


class _Door:
    """The server of this process, if there is one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.server: ForkClient | None = None


_door = _Door()


def server(modules: Sequence[str] = MODULES) -> ForkClient:
    """The server of this process, started if need be; does not wait until it is ready.

    Args:
        modules: what a new server imports.
    """
    with _door.lock:
        if _door.server is None or not _door.server.is_alive:
            _door.server = _started(modules)
        return _door.server


def warm_up(modules: Sequence[str] = MODULES) -> None:
    """Start the server if there is none, so that it imports modules while this process does."""
    server(modules)


def fork(channel: int, control: int, life: int) -> Launched:
    """Fork a worker from this process's server, or from a new one if that has died; see `ForkClient.launch`."""
    current = server()
    try:
        return current.launch(channel, control, life)
    except ConnectionError:
        current.await_end()
        return server().launch(channel, control, life)


def inherit(requests: int) -> None:
    """Use the server from which this process was forked."""
    _door.server = ForkClient(socket.socket(fileno=requests), None)


def _started(modules: Sequence[str]) -> ForkClient:
    if not hasattr(os, "pidfd_open"):
        raise OSError(f"worker processes need Linux, this is {sys.platform}; collect in this process instead")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    user = os.pidfd_open(os.getpid())
    environ = {**_USEFUL, **os.environ, **_NEEDED}
    code = (
        f"import sys; sys.path[:] = {[entry for entry in sys.path if type(entry) is str]!r}; "
        f"from reap.workers.processes.fork_server import main; "
        f"main({theirs.fileno()}, {user}, {tuple(modules)!r}, {tuple(set(environ) - set(os.environ))!r})"
    )
    # It must not be interrupted before it can say that it does not mind.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            [sys.executable, *_interpreter_flags(), "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), user),
            env=environ,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        os.close(user)
    return ForkClient(ours, process)


def _interpreter_flags() -> list[str]:
    flags = sys.flags
    letters = {
        "d": flags.debug,
        "O": flags.optimize,
        "B": flags.dont_write_bytecode,
        "s": flags.no_user_site and not flags.isolated,
        "S": flags.no_site,
        "E": flags.ignore_environment and not flags.isolated,
        "I": flags.isolated,
        "b": flags.bytes_warning,
    }
    words = [f"-{letter * int(count)}" for letter, count in letters.items() if count]
    words += [f"-W{option}" for option in sys.warnoptions]
    extra = getattr(sys, "_xoptions", {}).items()
    return [*words, *(f"-X{key}" if value is True else f"-X{key}={value}" for key, value in extra)]


def _output(descriptor: int) -> int:
    try:
        return os.dup(descriptor)
    except OSError:  # this process has closed its own
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _end(requests: socket.socket, process: subprocess.Popen[bytes] | None, answered: threading.Event, owner: int) -> None:
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        requests.shutdown(socket.SHUT_RDWR)
    requests.close()
    if process is None:
        return
    try:
        if not answered.is_set():  # it may be in the middle of its imports, and has no workers yet
            process.kill()
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _after_fork() -> None:
    old = _door.server
    _door.lock = threading.Lock()
    _door.server = None
    if old:
        old.abandon()


at_fork(after_in_child=_after_fork)
