"""`Group`: workers that a carrier has started somewhere, as their collector sees them.

    request ---> Conversation ===== carrier ====> worker (reap.workers.serve)
    ready <---- Conversation <===== carrier ===== started, replies, exceptions
          <---- failure <---------- carrier <---- the end of a worker

One wait covers all messages and all ends, so a death is noticed during any wait.
"""

from __future__ import annotations

import enum
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from reap.errors import ClosedError, OptionError, WorkerDied, WorkerError
from reap.system.interrupts import interrupts_allowed
from reap.workers import reports
from reap.workers.base import Command, MakeHandler, Reply
from reap.workers.carrier import Carrier, drop, end, launch
from reap.workers.conversation import Conversation, Request
from reap.workers.failures import Failures
from reap.workers.handler_spec import HandlerSpecs
from reap.workers.messages import MessageKind
from reap.workers.progress import Progress
from reap.workers.stall import StallWatch

STOP_TIMEOUT = 5.0


class GroupState(enum.Enum):
    """The states of a group."""

    RUNNING = enum.auto()
    FAILED = enum.auto()
    STOPPED = enum.auto()


class Group:
    """Handlers, one per worker, in the place to which a carrier has brought them.

    All methods but `stop` are called by one thread at a time. A group is stopped when it is dropped.

    Args:
        make_handlers: one per worker, called in the worker with its number and its control ints (`reap.workers.progress`).
            Pickled by cloudpickle: lambdas and functions of `__main__` are fine.
        make_carrier: makes the carrier for a number of workers.
        specs: writes the specs from which workers make their handlers.
        phases: names of phases, for error messages; the handler writes an index of them to `control[PHASE]`.
        stall_after: seconds after which a warning names workers that have made no progress; None never warns.
        on_failure: whether an exception or death of a worker ends all workers (`"terminate"`) or only itself (`"report"`).

    Attributes:
        size: number of workers.
        carrier: what carries messages to the workers.
    """

    def __init__(
        self,
        make_handlers: Sequence[MakeHandler],
        make_carrier: Callable[[int], Carrier[Any]],
        specs: HandlerSpecs,
        *,
        phases: Sequence[str] = ("working",),
        stall_after: float | None = 60.0,
        on_failure: Literal["terminate", "report"] = "terminate",
    ) -> None:
        if on_failure not in {"terminate", "report"}:
            raise OptionError(f"on_failure: expected 'terminate' or 'report', got {on_failure!r}")
        self.size = len(make_handlers)
        self._phases = tuple(phases)
        self._specs = specs
        self._ends_all = on_failure == "terminate"
        self._state = GroupState.RUNNING
        self._is_stopping = False
        self._failure: WorkerError | None = None
        self._failures = Failures()
        self._order = itertools.count()
        self._lock = threading.RLock()  # held while waiting; reentrant, for a signal's handler may stop the group
        self._owner = os.getpid()
        self._conversations = [Conversation() for _ in make_handlers]
        self._receiving_from: int | None = None
        written = specs.written(make_handlers)
        self.carrier = make_carrier(self.size)
        self._stall = StallWatch(stall_after, self.carrier.progress)
        self._dropped = weakref.finalize(self, drop, self.carrier, self._owner)
        try:
            for worker, spec in enumerate(written):
                launch(self.carrier, worker, spec)
        except BaseException:
            self._kill_all()
            raise

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to process, for callers that also wait for other events."""
        self._check_open()
        return self.carrier.fileno()

    def progress(self, worker: int) -> Progress | None:
        """A worker's progress, also after `stop`; None if unknown here."""
        return self._conversations[worker].reached or self.carrier.progress(worker)

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end its current command with the current column."""
        self.carrier.stop_early(worker)

    def clear(self, worker: int) -> None:
        """Called before a command that records columns: reset the column, and cancel a pending `stop_early`."""
        self.carrier.clear(worker)

    def clear_published(self, worker: int) -> None:
        """Called before a command that publishes: reset the count of published items."""
        self.carrier.clear_published(worker)

    def request(self, worker: int, command: Command, fds: Sequence[int] = ()) -> None:
        """Send a command to a worker; `ready` returns its reply.

        Args:
            worker: the worker's number.
            command: anything that can be pickled.
            fds: descriptors to send along, if the carrier supports them, for a handler with `handle_with`
                (`reap.workers.serve.TakesDescriptors`).

        Raises:
            WorkerRaised: a worker raised an exception in an earlier command.
            WorkerDied: a worker ended; for this worker, the error is raised again until it is replaced.
            ClosedError: the group was stopped, or has failed before, or belongs to another process.
        """
        request = Request(self.carrier.outgoing(command, fds))
        with self._lock:
            self._turn(0)
            self._failures.check(worker)
            conversation = self._conversations[worker]
            conversation.requests.append(request)
            try:
                while not self._send(worker):
                    self._turn(-1)
                    self._failures.check(worker)
            except BaseException:
                conversation.take_back(request)
                raise

    def enqueue(self, worker: int, command: Command) -> None:
        """Like `request`, but without waiting: anything that cannot be sent now is sent by `ready` or `poll`."""
        request = Request(self.carrier.outgoing(command, ()))
        with self._lock:
            self._failures.check(worker)
            self._conversations[worker].requests.append(request)

    def ready(self, among: Collection[int]) -> tuple[int, Reply]:
        """Wait, open to Ctrl-C, until one of these workers has replied; the earliest reply comes first.

        Raises:
            WorkerRaised: any worker raised an exception.
            WorkerDied: any worker ended.
            ClosedError: the group was stopped, perhaps during the wait, or has failed before.
            RuntimeError: none of these workers has a pending request.
        """
        with self._lock:
            self._turn(0, among)
            while (worker := self._earliest(among)) is None:
                awaited = [worker for worker in among if self._conversations[worker].is_awaited]
                if not awaited:
                    for worker in among:
                        self._failures.check(worker)
                    raise RuntimeError(f"no request is under way to workers {sorted(among)}")
                self._send_rests()
                with interrupts_allowed():
                    self._wait(self._stall.timeout)
                self._turn(0, among)
                self._stall.check(awaited, self.describe)
            return self._taken(worker)

    def poll(self, among: Collection[int]) -> tuple[int, Reply] | None:
        """Like `ready`, but without waiting: None if none of these workers has replied."""
        with self._lock:
            self._turn(0, among)
            self._send_rests()
            worker = self._earliest(among)
            return None if worker is None else self._taken(worker)

    def failures(self) -> list[WorkerError]:
        """The failure of each worker that is down and waits to be replaced, whether raised already or not."""
        with self._lock:
            self._take_in(0)
            return self._failures.take_all()

    def failures_only_of(self, worker: int) -> AbstractContextManager[None]:
        """Hold back failures of other workers inside the `with` block; they are raised later."""
        return self._failures.only_of(worker)

    def abandon(self, workers: Collection[int]) -> None:
        """Drop the replies to all requests made to these workers so far, including replies still to come."""
        with self._lock:
            for worker in workers:
                self._conversations[worker].abandon()

    def expect_end(self, worker: int) -> None:
        """Note that a worker has announced its end: `ready` waits for that, and it is raised as a failure."""
        self._conversations[worker].is_leaving = worker not in self._failures.down

    def replace(self, worker: int, make_handler: MakeHandler) -> None:
        """Launch another worker in a worker's place; the old one is killed if it still runs, and its replies are dropped.

        Raises:
            ClosedError: the group was stopped, or has failed.
        """
        [spec] = self._specs.written([make_handler], worker)
        with self._lock:
            self._vacate(worker)
            launch(self.carrier, worker, spec)
            self._failures.replaced(worker)

    def _vacate(self, worker: int) -> None:
        self._check_open()
        self._retire(worker)
        self._failures.drop(worker)
        self._conversations[worker] = Conversation()

    def withdraw(self, failure: WorkerError) -> None:
        """End the replacement of a failed worker; the original failure is raised again."""
        with self._lock:
            self._retire(failure.worker, failure)

    def stop(self, timeout: float | None = None) -> None:
        """Close all handlers and end the workers; a second call does nothing.

        Args:
            timeout: seconds after which workers that have not ended are killed; None for 5.
        """
        if os.getpid() != self._owner:
            return
        self._is_stopping = True
        self.carrier.wake()  # whoever waits lets go
        with self._lock:
            if self._state is GroupState.RUNNING:
                self._state = GroupState.STOPPED
                self._dropped.detach()
                end(self.carrier, STOP_TIMEOUT if timeout is None else timeout)

    def describe(self, worker: int) -> tuple[str, str]:
        """What a worker is doing (empty if unknown), and its location."""
        place = self.carrier.place(worker)
        if not self._conversations[worker].has_started:
            return reports.phase_name(self._phases, reports.START), place
        progress = self.carrier.progress(worker)
        return "" if progress is None else reports.phase_name(self._phases, progress.phase), place

    def ensure_own(self) -> None:
        """Raise ClosedError in a fork of the process that launched the workers."""
        if os.getpid() != self._owner:
            raise ClosedError(f"these workers belong to process {self._owner}: make a collector, or an env, in its fork")

    # Waiting

    def _turn(self, timeout: float, among: Collection[int] = ()) -> None:
        """Wait for an event, process it, and raise the first failure.

        The reply of a worker of `among` that failed after replying is returned before its failure is raised.
        """
        self._take_in(timeout)
        down = self._failures.down
        if not down or any(worker in down and self._conversations[worker].answer() for worker in among):
            return
        if failure := self._failures.due():
            self._fail(failure)

    def _take_in(self, timeout: float) -> None:
        if self._receiving_from is not None:
            self._check_open()
            self._receive(self._receiving_from)
        arrived, ended = self._wait(timeout)
        for worker in arrived:
            self._receive(worker)
        for worker in ended:
            while self._receive(worker):
                pass
            self._ended(worker)

    def _wait(self, timeout: float) -> tuple[Sequence[int], Sequence[int]]:
        """Wait for events; the next wait reports them again until they are processed."""
        self._check_open()
        try:
            events = self.carrier.wait(timeout)
        except (OSError, ValueError):
            self._check_open()  # a signal's handler has stopped the group
            raise
        if self._is_stopping:
            self._check_open()
        return events

    def _receive(self, worker: int) -> bool:
        """Process one message of a worker; return whether there was one."""
        # Ctrl-C may come when a message is read and not kept: nothing in the carrier would end a wait for it.
        self._receiving_from = worker
        has_message = self._take_in_message(worker)
        self._receiving_from = None
        return has_message

    def _take_in_message(self, worker: int) -> bool:
        message = self.carrier.receive(worker)
        if message is None:
            return False
        kind = message.kind
        if kind is MessageKind.RAISED and not (report := reports.read(message.encoded.body)).is_harmless:
            self._conversations[worker].reached = report.progress
            self._retire(worker, reports.raised(worker, self._phases, report))
            return False
        if kind is MessageKind.STARTED:
            self._conversations[worker].has_started = True
        else:
            message.order = next(self._order)
            self._stall.moved(worker)
            self._conversations[worker].keep(message)
        self.carrier.accept(worker)
        return True

    def _ended(self, worker: int) -> None:
        if worker not in self._failures.down:
            self._retire(worker, WorkerDied(worker, self.carrier.exit_code(worker), self.describe(worker)[0]))

    def _send(self, worker: int) -> bool:
        """Send as much of a worker's commands as possible; return whether all is sent."""
        requests, send = self._conversations[worker].requests, self.carrier.send
        return all(request.outgoing.is_sent or send(worker, request.outgoing) for request in requests)

    def _send_rests(self) -> None:
        """Continue to send commands that Ctrl-C interrupted."""
        for worker in range(self.size):
            self._send(worker)

    def _earliest(self, among: Collection[int]) -> int | None:
        """The worker whose answer arrived first."""
        answers = [(answer.order, worker) for worker in among if (answer := self._conversations[worker].answer())]
        return min(answers)[1] if answers else None

    def _taken(self, worker: int) -> tuple[int, Reply]:
        conversation = self._conversations[worker]
        message = conversation.answer()
        assert message
        try:
            if message.kind is MessageKind.RAISED:
                raise reports.raised(worker, self._phases, reports.read(message.encoded.body))
            reply = message.encoded.load()
        except Exception:
            conversation.take()
            raise
        conversation.take()  # only now, so that Ctrl-C while it is loaded leaves it for later
        return worker, reply

    # Failing and ending

    def _retire(self, worker: int, failure: WorkerError | None = None) -> None:
        """Take a worker out of the group."""
        if failure:
            self._failures.add(failure)
        self.carrier.release(worker)
        self._conversations[worker].end()
        if not self._ends_all or not failure:
            self.carrier.kill([worker])

    def _fail(self, failure: WorkerError) -> None:
        if self._ends_all:
            self._state = GroupState.FAILED
            self._failure = failure
            self._kill_all()
        raise failure

    def _kill_all(self) -> None:
        self._dropped.detach()
        try:
            self.carrier.kill(range(self.size))
        finally:
            self.carrier.close()

    def _check_open(self) -> None:
        self.ensure_own()
        if self._failure:
            raise ClosedError(f"these workers were ended when one failed: {reports.brief(self._failure)}") from self._failure
        if self._is_stopping or self._state is not GroupState.RUNNING:
            raise ClosedError("these workers are stopped")
