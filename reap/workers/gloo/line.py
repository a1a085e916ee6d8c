"""`Line`: the carrier's end of the connection to one worker: its job, its pair, and two threads.

    thread "receive"    meets the worker, then: pair.receive ---> arrived, and rings
    thread "send"       outbox ---> pair.send

Gloo waits in C++, where Ctrl-C is not seen. So these waits run in threads, and users of the line never wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from typing import Any

from reap.errors import OptionError
from reap.workers import reports
from reap.workers.gloo.kinds import LEFT
from reap.workers.gloo.memory import Memory
from reap.workers.gloo.outbox import Outbox
from reap.workers.gloo.pair import Pair
from reap.workers.gloo.rendezvous import Meeting, meet
from reap.workers.launchers.base import Job, await_ends, described, tail
from reap.workers.messages import Encoded, MessageKind
from reap.workers.remote.lines import ArrivedMessage

NOT_WANTED = "it is no longer wanted"

SETTLING = 1.0
"""Seconds to let a connection in progress finish before its worker is killed; on an idle machine it takes milliseconds."""

ENDING = 0.1
"""Seconds for a process to end after its connection has ended, which a normal exit does first."""


class Line:
    """The connection to one worker.

    Args:
        job: the worker's process.
        meeting: the place at which the worker will connect.
        name: the name of the pair.
        timeout: seconds within which it must connect.
        lost_after: seconds of silence after which its machine counts as lost; None if it is this machine.
        memory: for what arrives.
        ring: called when something has arrived, or the line has ended.
        why_late: returns the error message if the worker does not connect in time.

    Attributes:
        job: as given.
        outbox: commands to be sent.
        arrived: messages that have not been accepted yet.
        is_released: whether the carrier has released the worker.
        has_ended: whether no more messages will arrive.
        host: the worker's machine; empty until it has connected.
        left_by: the signal that told the worker to leave; 0 if none is known.
        threads: those that serve the line.
    """

    def __init__(
        self,
        job: Job,
        meeting: Meeting,
        name: str,
        timeout: float,
        lost_after: float | None,
        memory: Memory,
        ring: Callable[[], Any],
        why_late: Callable[[], str],
    ) -> None:
        self.job = job
        self.outbox = Outbox()
        self.arrived: deque[ArrivedMessage] = deque()
        self.is_released = self.has_ended = False
        self.host, self._pid = "", 0
        self.left_by = 0
        self._meeting, self._name, self._timeout, self._lost_after = meeting, name, timeout, lost_after
        self._memory, self._ring, self._why_late = memory, ring, why_late
        self._pair: Pair | None = None
        self._is_cut, self._is_settled = threading.Event(), threading.Event()
        self._is_settled.set()
        self.threads = [threading.Thread(target=self._live, name=f"reap-{name}", daemon=True)]
        self.threads[0].start()

    @property
    def is_connected(self) -> bool:
        """Whether the worker has connected."""
        return self._pair is not None

    @property
    def place(self) -> str:
        """The location of the worker, for messages to people."""
        if not self.host or self._lost_after is None:
            return self.job.place
        return f"{self.job.place}, pid {self._pid} on {self.host}"

    def cut(self) -> None:
        """End the connection; the worker notices, and the threads end."""
        self._is_cut.set()
        self.outbox.close()
        if (pair := self._pair) is not None:
            pair.hang_up()

    def refuse(self) -> None:
        """Refuse to connect to the worker from now on, unless a connection is already being made."""
        self._is_cut.set()

    def kill(self, deadline: float) -> None:
        """End the process, after `refuse`.

        Args:
            deadline: until then a connection in progress may finish: gloo would wait `CONNECTING` seconds for a process that
                is gone.
        """
        if not self.job.has_ended:
            self._is_settled.wait(max(0.0, deadline - time.monotonic()))
        self.job.kill()

    def join(self, timeout: float) -> bool:
        """Wait for the threads to end after `cut`, and release their resources; return whether they have ended.

        The process is released even if they have not, because nobody waits again; they do not look at it after `cut`.
        """
        deadline = time.monotonic() + timeout
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.job.close()
        is_over = not any(thread.is_alive() for thread in self.threads)
        if is_over and self._pair is not None:
            self._pair.close()
        return is_over

    @property
    def traffic(self) -> tuple[int, float]:
        """The number of bytes received, and the seconds spent receiving them, without waits for messages to start."""
        pair = self._pair
        return (0, 0.0) if pair is None else (pair.received_bytes, pair.received_seconds)

    def exit_code(self) -> int | None:
        """The worker's exit code, or -n if signal n told it to leave.

        A worker that has lost its connection for good, and is not ending, is killed first.
        """
        if await_ends([self.job], ENDING):
            self.job.kill()
            await_ends([self.job], ENDING)
        return -self.left_by if self.left_by else self.job.exit_code

    # In threads

    def _live(self) -> None:
        try:
            self._connect()
            self._receive_all()
        except ConnectionError as error:
            if self._pair is None and not self._is_cut.is_set():
                self._explain(error)
        except (TimeoutError, OptionError) as error:
            self._tell(error)
        finally:
            self.outbox.close()
            if self._pair is not None:
                self._pair.hang_up()
            self.has_ended = True
            self._ring()

    def _explain(self, error: ConnectionError) -> None:
        """Tell the group why a worker does not connect, unless the end of its process explains it."""
        if self.job.log is not None or not self.job.has_ended:
            log = tail(self.job.log)
            self._tell(RuntimeError(f"{error} ({described(self.job)})" + (f"\nThe end of its log:\n{log}" if log else "")))

    def _tell(self, error: Exception) -> None:
        try:
            raise error
        except Exception as raised:  # noqa: BLE001  the group raises it
            report = reports.write(raised, reports.AT_START, is_harmless=False)
        self.arrived.append(ArrivedMessage(MessageKind.RAISED, Encoded(report)))

    def _connect(self) -> None:
        try:
            pair, hello = meet(self._meeting, self._name, self._timeout, self._why_nobody_comes, self._settling())
        except TimeoutError:
            raise TimeoutError(self._why_late()) from None
        if self._lost_after is not None:
            pair.watch(self._lost_after)
        self.host, self._pid = hello["host"], hello["pid"]
        self._pair = pair
        if self._is_cut.is_set():
            pair.hang_up()
        self.threads.append(threading.Thread(target=self.outbox.run, args=(pair,), name=f"reap-{self._name}-send", daemon=True))
        self.threads[1].start()

    @contextmanager
    def _settling(self) -> Generator[None]:
        """The `with` block in which the connection to the worker is made."""
        self._is_settled.clear()
        try:
            if self._is_cut.is_set():
                raise ConnectionError(NOT_WANTED)
            yield
        finally:
            self._is_settled.set()

    def _why_nobody_comes(self) -> str | None:
        if self._is_cut.is_set():
            return NOT_WANTED
        return "its process has ended" if self.job.has_ended else None

    def _receive_all(self) -> None:
        assert self._pair is not None
        while True:
            message = self._pair.receive(self._memory)
            if message.kind == LEFT:
                self.left_by = int(bytes(message.encoded.body))
                continue
            self.arrived.append(ArrivedMessage(MessageKind(message.kind), message.encoded))
            del message
            self._ring()


def kill_all(lines: Collection[Line]) -> None:
    """End the processes of workers."""
    for line in lines:
        line.refuse()
    deadline = time.monotonic() + SETTLING
    for line in lines:
        line.kill(deadline)
