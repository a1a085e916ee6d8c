"""A carrier for tests: handlers in threads of this process, with which nothing is shared but two queues of bytes.

    send, stop_early, clear ---> posted ---> postman ---> commands ---> serve      (a thread each for postman and serve)
    receive <------------------------------- arrived <------------------- serve

It shows what a group needs of a carrier: no process, no fork, no socket, no shared memory. Progress cannot be seen, a wish to
stop early travels as a message, and a worker dies when its thread ends without a reply.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Literal

from tensordict.nn.probabilistic import interaction_type, set_interaction_type

from reap.workers import progress
from reap.workers.base import Handler, MakeHandler
from reap.workers.handler_spec import HandlerSpec, HandlerSpecs
from reap.workers.messages import Encoded, MessageKind, Received
from reap.workers.pickling import encode_apart
from reap.workers.process_context import RemoteContext
from reap.workers.progress import LEAVE, STOP, STOP_EARLY, Control, Progress, new_control, progress_of
from reap.workers.remote.carrier import WorkerFacts
from reap.workers.remote.group import RemoteGroup
from reap.workers.remote.lines import ArrivedMessage, LineCarrier, WholeCommand, refuse_descriptors
from reap.workers.serve import Terminated, serve

STOP_WISH, CLEAR, LEAVE_WISH = b"stop early", b"clear", b"leave"


def copied(encoded: Encoded) -> Encoded:
    """What arrives: memory of its own, as from anywhere else."""
    return Encoded(encoded.body, [bytearray(buffer) for buffer in encoded.buffers])


@dataclass(eq=False)
class Line:
    """The two queues of one worker, and its threads.

    Attributes:
        posted: commands, and wishes as bytes; None hangs up.
        arrived: messages that were not accepted yet.
        ring: called when something has arrived, or the worker has ended.
        control: the worker's ints, which only a `WatchedThreadCarrier` looks at.
    """

    ring: Callable[[], None]
    posted: SimpleQueue[Any] = field(default_factory=SimpleQueue[Any])
    arrived: deque[ArrivedMessage] = field(default_factory=deque[ArrivedMessage])
    is_cut: bool = False
    is_released: bool = False
    has_ended: bool = False
    left: threading.Event = field(default_factory=threading.Event)
    threads: Sequence[threading.Thread] = ()
    control: Control = field(default_factory=new_control)

    def hang_up(self) -> None:
        self.is_cut = True
        self.posted.put(None)


class ThreadChannel:
    """A worker's end of a line, with ints of its own."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._commands: SimpleQueue[Received | None] = SimpleQueue()
        self.control = line.control

    def deliver(self) -> None:
        """Be the postman: carry out wishes at once, queue commands."""
        while (item := self._line.posted.get()) is not None:
            if item == STOP_WISH:
                self.control[STOP] |= STOP_EARLY
            elif item == LEAVE_WISH:  # where processes are, SIGTERM
                self.control[STOP] = LEAVE
                self._line.left.set()
                self._commands.put(None)
            elif item == CLEAR:
                progress.clear(self.control)
            else:
                self._commands.put(item)
        self._commands.put(None)

    def receive(self) -> Received | None:
        return self._commands.get()

    def encode(self, reply: Any) -> Encoded:
        return encode_apart(reply, "the reply")

    def send(self, kind: MessageKind, encoded: Encoded) -> None:
        if self._line.is_cut:
            raise BrokenPipeError
        self._line.arrived.append(ArrivedMessage(kind, copied(encoded)))
        self._line.ring()


def work(line: Line, channel: ThreadChannel, data: bytes) -> None:
    """Be a worker."""

    def start() -> tuple[Control, Handler]:
        spec: HandlerSpec = pickle.loads(data)
        return channel.control, spec.make(channel.control)

    try:
        with contextlib.suppress(Terminated):
            serve(channel, start, lambda: None)
    finally:
        line.has_ended = True
        line.ring()


class ThreadCarrier(LineCarrier[Line]):
    """See `reap.workers.carrier.Carrier`."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers = workers
        # tensordict has one for all threads: of two rollouts at once, the one that ends last puts back that of the other.
        self._interaction = interaction_type()

    def launch(self, worker: int, spec: bytes) -> None:
        self.lines[worker] = line = Line(self._bell.ring)
        channel = ThreadChannel(line)
        name = f"worker-{worker}"
        line.threads = (
            threading.Thread(target=work, args=(line, channel, spec), name=name, daemon=True),
            threading.Thread(target=channel.deliver, name=f"{name}-postman", daemon=True),
        )
        for thread in line.threads:
            thread.start()

    def outgoing(self, command: Any, fds: Sequence[int]) -> WholeCommand:
        refuse_descriptors(fds)
        return WholeCommand(encode_apart(command, "the command"))

    def send(self, worker: int, outgoing: WholeCommand) -> bool:
        if not self.lines[worker].is_released:
            self.lines[worker].posted.put(Received(copied(outgoing.encoded)))
            outgoing.is_sent = True
        return outgoing.is_sent

    def post(self, worker: int, command: Any) -> None:
        if not self.lines[worker].is_released:
            self.lines[worker].posted.put(Received(copied(encode_apart(command, "the command")), wants_reply=False))

    def ending(self, worker: int) -> str:
        """A thread says nothing."""
        return ""

    def facts(self, worker: int) -> WorkerFacts:
        return WorkerFacts("here", f"thread {worker}")

    def exit_code(self, worker: int) -> None:
        """A thread has none."""

    def place(self, worker: int) -> str:
        return f"thread worker-{worker}"

    def progress(self, worker: int) -> Progress | None:
        """It cannot be seen from here."""

    def stop_early(self, worker: int) -> None:
        self.lines[worker].posted.put(STOP_WISH)

    def leave(self, worker: int) -> None:
        """Have a worker leave, as SIGTERM does with processes; returns once it knows."""
        self.lines[worker].posted.put(LEAVE_WISH)
        assert self.lines[worker].left.wait(100)

    def clear(self, worker: int) -> None:
        self.lines[worker].posted.put(CLEAR)

    def clear_published(self, worker: int) -> None:
        """Nobody could read it."""

    def kill(self, workers: Iterable[int]) -> None:
        """A thread cannot be killed: its line is cut, and it ends with its command."""
        for worker in workers:
            if worker in self.lines:
                self.lines[worker].hang_up()

    def end_all(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self.kill(self.lines)
        for line in self.lines.values():
            for thread in line.threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        self._bell.close()
        set_interaction_type(self._interaction).__enter__()


class WatchedThreadCarrier(ThreadCarrier):
    """Threads whose ints are seen, as those of processes on the trainer's machine are."""

    def progress(self, worker: int) -> Progress:
        return progress_of(self.lines[worker].control)


def thread_group(
    make_handlers: Sequence[MakeHandler],
    *,
    phases: Sequence[str] = ("working",),
    name: str = "",
    setup: Sequence[Callable[[], Any]] = (),
    stall_after: float | None = 60.0,
    on_failure: Literal["terminate", "report"] = "terminate",
    make_carrier: Callable[[int], ThreadCarrier] = ThreadCarrier,
) -> RemoteGroup:
    """Handlers in threads of this process, one each."""
    specs = HandlerSpecs(name, setup, RemoteContext.capture())
    return RemoteGroup(make_handlers, make_carrier, specs, phases=phases, stall_after=stall_after, on_failure=on_failure)
