"""Workers in child processes of this machine.

                       ProcessGroup                                       child (reap.workers.processes.child)
    request ---------> Outgoing ============ channel ===================> handler.handle(command)
    ready <-- arrived <-- Inbox <=========== channel ==================== started, replies, exceptions
          <-- failure <-------- status pipe (reap.workers.processes.fork_server) <------ exit code
    control(worker) <======================= shared int32 ==============> control

One epoll waits for all channels and status pipes, so that a death is noticed whatever is being waited for.
"""

from __future__ import annotations

import enum
import itertools
import os
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from reap.errors import ClosedError, OptionError, WorkerDied, WorkerError
from reap.system.interrupts import interrupts_allowed
from reap.workers import reports
from reap.workers.base import Command, Reply
from reap.workers.pickling import encode
from reap.workers.processes import worker_process as member
from reap.workers.processes.channel import MessageKind, Outgoing
from reap.workers.processes.control import ControlBlock
from reap.workers.processes.poller import Poller
from reap.workers.processes.start import MakeHandler, Starter
from reap.workers.processes.worker_process import WorkerProcess
from reap.workers.stall import StallWatch

STOP_TIMEOUT = 5.0


class GroupState(enum.Enum):
    """What a group is up to."""

    RUNNING = enum.auto()
    FAILED = enum.auto()
    STOPPED = enum.auto()


class ProcessGroup:
    """Handlers in child processes, one each.

    Everything but `stop` is called by one thread at a time. A group that is dropped is stopped.

    Args:
        make_handlers: one per worker, called in the child with the worker's number and its control ints. Pickled by
            cloudpickle: lambdas and what `__main__` defines are fine.
        phases: what a worker may be doing, for error messages: `control[0]`, written by the handler, is an index.
        name: of the workers' processes, in ps and top.
        setup: called in each child before its handler is made.
        control_ints: int32 per worker that both sides see.
        stall_after: seconds after which a warning says who has not moved while somebody waited; None for never.
        on_failure: what an exception or death of a worker ends: all workers (`"terminate"`), or itself (`"report"`).

    Attributes:
        size: number of workers.

    Example:
        >>> class Doubler:
        ...     def handle(self, command):
        ...         return 2 * command
        ...
        ...     def close(self): ...
        >>> workers = ProcessGroup([lambda worker, control: Doubler()] * 2)
        >>> workers.request(1, 21)
        >>> workers.ready({0, 1})
        (1, 42)
        >>> workers.stop()
    """

    def __init__(
        self,
        make_handlers: Sequence[MakeHandler],
        *,
        phases: Sequence[str] = ("working",),
        name: str = "",
        setup: Sequence[Callable[[], Any]] = (),
        control_ints: int = 4,
        stall_after: float | None = 60.0,
        on_failure: Literal["terminate", "report"] = "terminate",
    ) -> None:
        if on_failure not in {"terminate", "report"}:
            raise OptionError(f"on_failure: expected 'terminate' or 'report', got {on_failure!r}")
        self.size = len(make_handlers)
        self._phases = tuple(phases)
        self._starter = Starter(self.size, control_ints, name, setup)
        self._ends_all = on_failure == "terminate"
        self._state = GroupState.RUNNING
        self._is_stopping = False
        self._failure: WorkerError | None = None
        self._failures: deque[WorkerError] = deque()
        self._down: dict[int, WorkerError] = {}
        self._only_of: int | None = None
        self._orders = itertools.count()
        self._lock = threading.RLock()  # held while waiting; reentrant, for a signal's handler may stop the group
        self._owner = os.getpid()
        starts = self._starter.starts(make_handlers)
        self._block = ControlBlock(self.size, control_ints)
        self._control = [self._block.of(worker) for worker in range(self.size)]
        self._watch = Poller()
        self._taking_in: WorkerProcess | None = None
        self._members: list[WorkerProcess] = []
        self._stall = StallWatch(stall_after, self._control)
        self._own = self._block.close, self._watch.close
        self._dropped = weakref.finalize(self, member.drop, self._members, self._own, self._owner)
        try:
            for worker, start in enumerate(starts):
                self._members.append(member.launched(worker, self._block.descriptor, start))
                self._watch.add(self._members[-1])
        except BaseException:
            self._close(member.kill)
            raise

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [one.pid for one in self._members]

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to take in: for who waits for other things too."""
        self._check_open()
        return self._watch.fileno()

    def stop_early(self, worker):
        self._control[worker][2] = 1

    def clear(self, worker):
        self._control[worker][1], self._control[worker][2] = -1, 0

    def clear_published(self, worker):
        self._control[worker][3] = 0

    def progress(self, worker):
        from collections import namedtuple

        return namedtuple("P", "phase column published")(
            self._control[worker][0], self._control[worker][1], self._control[worker][3]
        )

    def control(self, worker: int) -> memoryview:
        """A worker's control ints, int32; they stay readable after `stop`."""
        return self._control[worker]

    def request(self, worker: int, command: Command, fds: Sequence[int] = ()) -> None:
        """Send a command to a worker; its reply comes out of `ready`.

        Args:
            worker: its number.
            command: anything that can be pickled.
            fds: descriptors that go with it, for a handler with `handle_with` (`TakesDescriptors`).

        Raises:
            WorkerRaised: an exception in a worker, of an earlier command.
            WorkerDied: a worker ended; of this one that is said until it is replaced.
            ClosedError: the group was stopped, or has failed before, or belongs to another process.
        """
        body = encode(command, "the command")
        with self._lock:
            self._turn(0)
            self._check_up(worker)
            one, outgoing = self._members[worker], Outgoing(body, fds)
            one.commands.append(outgoing)
            try:
                while not self._watch.send(one):
                    self._turn(-1)
            except BaseException:
                if not outgoing.has_begun and outgoing in one.commands:
                    one.commands.remove(outgoing)
                raise

    def ready(self, among: Collection[int]) -> tuple[int, Reply]:
        """Wait, also for Ctrl-C, until one of these workers has replied; the earliest reply comes first.

        Raises:
            WorkerRaised: an exception in any worker.
            WorkerDied: any worker ended.
            ClosedError: the group was stopped, perhaps while this waited, or has failed before.
            RuntimeError: no request is under way to any of these workers.
        """
        with self._lock:
            self._turn(0)
            while (one := self._earliest(among)) is None:
                awaited = [worker for worker in among if self._members[worker].is_awaited]
                if not awaited:
                    for worker in among:
                        self._check_up(worker)
                    raise RuntimeError(f"no request is under way to workers {sorted(among)}")
                self._send_rests()
                with interrupts_allowed():
                    self._await_news(self._stall.timeout)
                self._turn(0)
                self._stall.check(awaited, self._describe)
            return self._taken(one)

    def poll(self, among: Collection[int]) -> tuple[int, Reply] | None:
        """As `ready`, but without waiting: None if none of these workers has replied."""
        with self._lock:
            self._turn(0)
            self._send_rests()
            one = self._earliest(among)
            return None if one is None else self._taken(one)

    def failures(self) -> list[WorkerError]:
        """What ended the workers that are down, also those whose failure nobody was told of yet; they wait to be replaced."""
        with self._lock:
            self._take_in_news(0)
            self._failures.clear()
            return list(self._down.values())

    @contextmanager
    def failures_only_of(self, worker: int) -> Generator[None]:
        """In the body failures of other workers are not raised; they are raised later."""
        self._only_of = worker
        try:
            yield
        finally:
            self._only_of = None

    def abandon(self, workers: Collection[int]) -> None:
        """Drop the replies to what these workers were asked so far, those too that have not come yet."""
        with self._lock:
            for worker in workers:
                self._members[worker].abandon()

    def replace(self, worker: int, make_handler: MakeHandler) -> None:
        """Launch a new process in a worker's place; one that still runs is killed, and its replies are forgotten.

        Raises:
            ClosedError: the group was stopped, or has failed.
        """
        [start] = self._starter.starts([make_handler], worker)
        with self._lock:
            self._check_open()
            self._retire(self._members[worker])
            self._failures = deque(failure for failure in self._failures if failure.worker != worker)
            control = self._control[worker]
            control[:] = memoryview(bytes(4 * len(control))).cast("i")
            self._members[worker] = member.launched(worker, self._block.descriptor, start)
            self._watch.add(self._members[worker])
            self._down.pop(worker, None)

    def withdraw(self, failure: WorkerError) -> None:
        """End the process that was launched in a failed worker's place; the failure is raised again."""
        with self._lock:
            self._retire(self._members[failure.worker], failure)

    def stop(self, timeout: float | None = None) -> None:
        """Close all handlers and end the workers; a second call does nothing.

        Args:
            timeout: seconds that all of them have together before they are killed; None for 5.
        """
        if os.getpid() != self._owner:
            return
        self._is_stopping = True
        self._watch.ring()  # whoever waits lets go
        with self._lock:
            if self._state is GroupState.RUNNING:
                self._state = GroupState.STOPPED
                self._close(lambda members: member.end(members, STOP_TIMEOUT if timeout is None else timeout))

    # Waiting

    def _turn(self, timeout: float) -> None:
        """Wait for something to happen, take it in, and raise the first failure."""
        self._take_in_news(timeout)
        for failure in self._failures:
            if self._only_of in (None, failure.worker):
                self._failures.remove(failure)
                self._fail(failure)

    def _take_in_news(self, timeout: float) -> None:
        if self._taking_in is not None:
            self._check_open()
            self._receive(self._taking_in)
        events = self._await_news(timeout)
        ended: list[WorkerProcess] = []
        for descriptor in events:
            one = self._watch.places.get(descriptor)
            if one is None:
                self._check_open()
            elif descriptor == one.status:
                ended.append(one)
            else:
                self._receive(one)
        for one in ended:
            self._died(one)

    def _await_news(self, timeout: float) -> list[int]:
        """Wait for something to happen; it is there again in the next wait, until it is taken in."""
        self._check_open()
        try:
            return self._watch.wait(timeout)
        except (OSError, ValueError):
            self._check_open()  # a signal's handler has stopped the group
            raise

    def _receive(self, one: WorkerProcess) -> bool:
        """Take in one message of a worker; whether there was one."""
        # Ctrl-C may come when a message is read and not kept: nothing in the socket would wake a wait for it.
        self._taking_in = one
        has_message = self._take_in(one)
        self._taking_in = None
        return has_message

    def _take_in(self, one: WorkerProcess) -> bool:
        try:
            message = one.receive()
        except EOFError:
            self._watch.remove(one.end.fileno())
            one.cut_off()  # it is ending, or has lost the channel for good
            return False
        if message is None:
            return False
        kind = message.kind
        if kind is MessageKind.RAISED and not (report := reports.read(message.body)).is_harmless:
            self._retire(one, reports.raised(one.number, self._phases, report))
            return False
        if kind is MessageKind.STARTED:
            one.has_started = True
            one.skip()
        else:
            message.order = next(self._orders)
            self._stall.moved(one.number)
            one.keep(message)
        return True

    def _died(self, one: WorkerProcess) -> None:
        while one.end.fileno() in self._watch.places and self._receive(one):
            pass
        if one.number in self._down:
            return
        one.read_status()
        self._retire(one, WorkerDied(one.number, one.exit_code, self._describe(one.number)[0]))

    def _send_rests(self) -> None:
        """Go on with commands that Ctrl-C interrupted."""
        for one in self._members:
            self._watch.send(one)

    def _earliest(self, among: Collection[int]) -> WorkerProcess | None:
        """The worker whose answer came first."""
        answers = [(answer.order, worker) for worker in among if (answer := self._members[worker].answer())]
        return self._members[min(answers)[1]] if answers else None

    def _taken(self, one: WorkerProcess) -> tuple[int, Reply]:
        message = one.answer()
        assert message
        try:
            if message.kind is MessageKind.RAISED:
                raise reports.raised(one.number, self._phases, reports.read(message.body))
            reply = pickle.loads(message.body)
        except Exception:
            one.take()
            raise
        one.take()  # only now, so that Ctrl-C while it is loaded leaves it for later
        return one.number, reply

    # Failing and ending

    def _describe(self, worker: int) -> tuple[str, int]:
        one = self._members[worker]
        index = self._control[worker][0] if one.has_started else reports.START
        return reports.phase_name(self._phases, index), one.pid

    def _retire(self, one: WorkerProcess, failure: WorkerError | None = None) -> None:
        """Take a worker out of the group."""
        if failure:
            self._down[one.number] = failure
            self._failures.append(failure)
        if one.status >= 0:
            self._watch.remove(one.end.fileno())
            self._watch.remove(one.status)
            one.forget()
            if not self._ends_all or not failure:
                member.kill([one])

    def _fail(self, failure: WorkerError) -> None:
        if self._ends_all:
            self._state = GroupState.FAILED
            self._failure = failure
            self._close(member.kill)
        raise failure

    def _close(self, end: Callable[[list[WorkerProcess]], None]) -> None:
        self._dropped.detach()
        try:
            end(self._members)
        finally:
            for close in self._own:
                close()

    def ensure_own(self) -> None:
        """Raise ClosedError in a fork of the process that launched the workers."""
        if os.getpid() != self._owner:
            raise ClosedError(f"these workers belong to process {self._owner}: make a collector, or an env, in its fork")

    def _check_open(self) -> None:
        self.ensure_own()
        if self._failure:
            raise ClosedError(f"these workers were ended when one failed: {reports.brief(self._failure)}") from self._failure
        if self._is_stopping or self._state is not GroupState.RUNNING:
            raise ClosedError("these workers are stopped")

    def _check_up(self, worker: int) -> None:
        if failure := self._down.get(worker):
            raise failure
