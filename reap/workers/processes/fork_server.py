"""The fork server: a single-threaded process with the workers' imports loaded, which ends with the user's process.

    user's process --- request socket ---> server ---fork---> worker 0 --- request socket of its own ---+
          ^                                  ^ |                                                        |
          |      pid, pidfd, status pipe     | +------fork---> worker 1 ...                             |
          +----------------------------------+                                                          |
                                             +----------------------------------------------------------+

A request consists of descriptors only (channel, control block, a memfd that says what to run, stdout, stderr); a worker's code
and data never pass through the server. A worker requests its own workers from the same server; they are killed when it ends.
A worker's status pipe delivers its exit code; a status pipe that ends without one means that the server has died, in which case
the kernel has killed the workers.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from reap.workers.processes import child
from reap.workers.processes.fork_client import ANSWER, DESCRIPTORS, REQUEST, STATUS


@dataclass(eq=False)
class _Client:
    """A process that requests workers: the user's process or a worker."""

    socket: socket.socket
    children: dict[int, _Child] = field(default_factory=dict)


@dataclass(eq=False)
class _Child:
    pid: int
    pidfd: int
    status: int
    launcher: _Client
    client: _Client


class ForkServer:
    """Forks workers on request.

    Args:
        requests: the socket of the user's process.
        user: pidfd of the user's process.
    """

    def __init__(self, requests: socket.socket, user: int) -> None:
        self._epoll = select.epoll()
        self._actions: dict[int, Callable[[], None]] = {}
        self._root = _Client(requests)
        self._watch(user, self._leave)
        self._watch_client(self._root)

    def run(self) -> NoReturn:
        """Serve until the user's process ends."""
        while True:
            for descriptor, _ in self._epoll.poll():
                action = self._actions.get(descriptor)
                if action:
                    action()

    def _watch(self, descriptor: int, action: Callable[[], None]) -> None:
        self._actions[descriptor] = action
        self._epoll.register(descriptor, select.EPOLLIN)

    def _forget(self, descriptor: int) -> None:
        if self._actions.pop(descriptor, None):
            self._epoll.unregister(descriptor)

    def _watch_client(self, client: _Client) -> None:
        client.socket.setblocking(False)
        self._watch(client.socket.fileno(), lambda: self._serve(client))

    def _serve(self, client: _Client) -> None:
        try:
            request, descriptors, *_ = socket.recv_fds(client.socket, REQUEST.size, DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            request, descriptors = b"", []
        try:
            if not request:
                self._gone(client)
            elif len(descriptors) < DESCRIPTORS:  # this process cannot open more
                self._answer(client, ANSWER.pack(REQUEST.unpack(request)[0], -errno.EMFILE), [])
            else:
                self._launch(client, REQUEST.unpack(request)[0], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _launch(self, client: _Client, number: int, descriptors: Sequence[int]) -> None:
        with contextlib.ExitStack() as stack:
            try:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.callback(theirs.close)
                failed = stack.enter_context(contextlib.ExitStack())
                failed.callback(ours.close)
                reader, writer = os.pipe()
                stack.callback(os.close, reader)
                failed.callback(os.close, writer)
                pid, pidfd = self._forked(descriptors, theirs)
            except OSError as error:
                self._answer(client, ANSWER.pack(number, -(error.errno or errno.EAGAIN)), [])
                return
            failed.pop_all()
            launched = _Child(pid, pidfd, writer, client, _Client(ours))
            client.children[pid] = launched
            self._watch(pidfd, lambda: self._ended(launched))
            self._watch_client(launched.client)
            self._answer(client, ANSWER.pack(number, pid), [pidfd, reader])

    def _forked(self, descriptors: Sequence[int], requests: socket.socket) -> tuple[int, int]:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            child.live(child.Descriptors._make([*descriptors, requests.detach()]), server)
        try:
            return pid, os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
            os.waitpid(pid, 0)
            raise

    def _answer(self, client: _Client, answer: bytes, descriptors: Sequence[int]) -> None:
        try:
            socket.send_fds(client.socket, [answer], descriptors)
        except OSError:
            self._gone(client)

    def _gone(self, client: _Client) -> None:
        """Handle the end of a request socket: the processes launched through it are no longer used."""
        if client is self._root:
            self._leave()
        self._kill(client)
        if client.socket.fileno() >= 0:
            self._forget(client.socket.fileno())
            client.socket.close()

    def _ended(self, child: _Child) -> None:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if not pid:
            return
        self._gone(child.client)
        with contextlib.suppress(OSError):  # nobody may be interested any more
            os.write(child.status, STATUS.pack(os.waitstatus_to_exitcode(status)))
        os.close(child.status)
        self._forget(child.pidfd)
        os.close(child.pidfd)
        del child.launcher.children[child.pid]

    def _kill(self, client: _Client) -> None:
        for one in client.children.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(one.pidfd, signal.SIGKILL)

    def _leave(self) -> NoReturn:
        clients = [self._root]
        for client in clients:
            self._kill(client)
            clients += [one.client for one in client.children.values()]
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        os._exit(0)


def main(requests: int, user: int, modules: Sequence[str], extra: Sequence[str] = ()) -> NoReturn:
    """Run the server.

    Args:
        requests: the descriptor of the user's request socket.
        user: the pidfd of the user's process.
        modules: modules to import first; failures are left to the workers that need the module.
        extra: names of environment variables that are set for the imports only.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, child.ignore)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the user's process may ignore it, and then the kernel keeps no exit codes
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    warnings.simplefilter("ignore")  # a worker has those of its parent
    for module in modules:
        with contextlib.suppress(BaseException):
            importlib.import_module(module)
    for name in extra:
        os.environ.pop(name, None)
    gc.collect()
    gc.freeze()  # the collector would write to every page that the children share
    child.name_process("reap-server")
    ForkServer(socket.socket(fileno=requests), user).run()
