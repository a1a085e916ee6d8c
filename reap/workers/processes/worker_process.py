"""One worker's process as its parent sees it, and how several of them end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from reap.workers.processes import fork_client as launch
from reap.workers.processes.channel import Message, Outgoing
from reap.workers.processes.fork_client import STATUS, Launched

ASKED = 0.2
"""At most so many seconds pass between asking the workers to leave and SIGTERM."""
DROP_TIMEOUT = 1.0
"""Seconds for a group that nobody stopped: it is collected in the middle of something else."""
ENDING = 0.1
"""Seconds that a process has to end after its channel was closed, which is the first thing that happens then."""
KILLED = 1.0
"""Seconds that killed processes have to disappear; only the kernel can keep them longer."""


class WorkerProcess:
    """A worker's process: its channel, its pidfd, its status pipe.

    Attributes:
        number: the worker's number.
        pid: process id.
        end: this end of its channel.
        status: descriptor of its status pipe; -1 once closed.
        exit_code: as multiprocessing has it; None while it runs.
        has_started: whether it has made its handler.
        commands: those whose answers have not been taken, in order.
        is_full: whether its socket took only a part of a command.
    """

    def __init__(self, number: int, launched: Launched, end: socket.socket) -> None:
        self.number = number
        self.pid = launched.pid
        self.end = end
        self.status = launched.status
        self.exit_code: int | None = None
        self.has_started = False
        self.commands: deque[Outgoing] = deque()
        self.is_full = False
        self._incoming = Message()
        self._pidfd = launched.pidfd

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; nothing happens if the process has ended."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def cut_off(self) -> None:
        """Its end of the channel is closed: kill it, unless it is ending."""
        if not self._ends_within(ENDING):
            self.kill()

    def _ends_within(self, seconds: float) -> bool:
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        return bool(ended.poll(seconds * 1000))

    @property
    def is_awaited(self) -> bool:
        """Whether an answer has yet to come."""
        return bool(self.commands) and self.commands[-1].answer is None

    def send(self) -> bool:
        """Send what the socket takes of the commands; whether all is sent.

        Raises:
            ConnectionError: the worker is gone.
        """
        return all(command.is_sent or command.send(self.end) for command in self.commands)

    def receive(self) -> Message | None:
        """A message that is whole; it is handed out again and again, until `keep` or `skip`.

        Raises:
            EOFError: the worker is gone.
        """
        message = self._incoming
        return message if message.receive(self.end) else None

    def keep(self, message: Message) -> None:
        """Make a message the answer of the first command that has none, once."""
        if not message.is_taken and all(command.answer is not message for command in self.commands):
            waiting = next(command for command in self.commands if command.answer is None)
            waiting.answer = message
            self._drop()
        self.skip()

    def skip(self) -> None:
        """Go on to the next message."""
        self._incoming = Message()

    def answer(self) -> Message | None:
        """The answer of the first command, if it has come."""
        return self.commands[0].answer if self.commands else None

    def abandon(self) -> None:
        """Nobody wants the answers of the commands that there are."""
        for command in self.commands:
            command.is_abandoned = True
        self._drop()

    def _drop(self) -> None:
        while self.commands and self.commands[0].is_abandoned and self.commands[0].answer:
            self.take()

    def take(self) -> None:
        """The user has the answer of the first command: forget both."""
        message = self.commands[0].answer
        assert message
        message.is_taken = True
        self.commands.popleft()

    def forget(self) -> None:
        """No more answers will come."""
        self.commands = deque(command for command in self.commands if command.answer)

    def read_status(self) -> None:
        """Read the exit code from a status pipe that is readable.

        Without one the server has been killed, and the kernel kills its workers.
        """
        if self.exit_code is not None:
            return
        data = os.read(self.status, STATUS.size)
        if len(data) == STATUS.size:
            self.exit_code = STATUS.unpack(data)[0]
            return
        self._ends_within(KILLED)
        self.exit_code = -signal.SIGKILL

    def hang_up(self) -> None:
        """Tell the worker that no command will come and no reply is wanted."""
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptors."""
        self.end.close()
        for descriptor in (self.status, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.status = self._pidfd = -1


def launched(number: int, control: int, start: bytes) -> WorkerProcess:
    """Launch a worker.

    Args:
        number: the worker's number.
        control: descriptor of the control block.
        start: a pickled `reap.workers.processes.start.Start`.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    # A file, not a message: the worker reads it when it can, and nobody waits for that.
    file = os.memfd_create("reap-start", os.MFD_CLOEXEC)
    try:
        rest = memoryview(start)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.lseek(file, 0, os.SEEK_SET)
        return WorkerProcess(number, launch.fork(theirs.fileno(), control, file), ours)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(file)


def kill(members: Sequence[WorkerProcess]) -> None:
    """Kill these workers and wait until they are gone; closes their descriptors."""
    try:
        for member in members:
            member.kill()
        _wait(members, time.monotonic() + KILLED)
    finally:
        for member in members:
            member.close()


def end(members: Sequence[WorkerProcess], timeout: float) -> None:
    """Ask these workers to leave, then terminate them, and kill those that are there at the deadline."""
    deadline = time.monotonic() + timeout
    try:
        for member in members:
            member.hang_up()
        _wait(members, time.monotonic() + min(ASKED, timeout / 4))
        for member in members:
            member.kill(signal.SIGTERM)
        _wait(members, deadline)
    finally:
        kill(members)


def _wait(members: Sequence[WorkerProcess], deadline: float) -> None:
    running = {member.status: member for member in members if member.status >= 0 and member.exit_code is None}
    poll = select.poll()
    for status in running:
        poll.register(status, select.POLLIN)
    while running and (left := deadline - time.monotonic()) > 0:
        for status, _ in poll.poll(left * 1000):
            running.pop(status).read_status()
            poll.unregister(status)


def drop(members: Sequence[WorkerProcess], closers: Sequence[Callable[[], None]], owner: int) -> None:
    """End the workers of a group that is not there any more, in the process that launched them; then close what it had."""
    if os.getpid() == owner:
        try:
            end(members, DROP_TIMEOUT)
        finally:
            for close in closers:
                close()
