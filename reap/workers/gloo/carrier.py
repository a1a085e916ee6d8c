"""`GlooCarrier`: workers in processes that a launcher starts, reached by torch.distributed's gloo.

    launch --> Launcher --> a process: reap.workers.gloo.member
    send, post, stop_early, clear --> Outbox ==== Pair ====> GlooChannel
    receive <----------------- arrived <======== Pair ===== started, replies, exceptions
    wait <-- bell <-- thread of each line

Each pair is a separate process group, so workers come, go and fail independently of each other.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Sequence
from typing import Any

from reap.workers import progress
from reap.workers.gloo.kinds import COMMAND, POST, Wish
from reap.workers.gloo.line import Line, kill_all
from reap.workers.gloo.member import ENTRY, Membership
from reap.workers.gloo.memory import Memory
from reap.workers.gloo.rendezvous import Meeting
from reap.workers.launchers.base import Launcher, Task, await_ends, described, words_of
from reap.workers.messages import Encoded
from reap.workers.pickling import encode_apart
from reap.workers.progress import PUBLISHED, STOP, STOP_EARLY, Progress, progress_of
from reap.workers.remote.carrier import WorkerFacts
from reap.workers.remote.lines import LineCarrier, WholeCommand, refuse_descriptors, told_to_leave

KILLED = 2.0
"""Seconds to wait for killed processes to disappear; a scheduler may take longer, but its jobs end by themselves."""

ASKED = 0.2
"""Maximum number of seconds between hanging up and asking processes to end."""

NOTHING = Encoded(b"")


class GlooCarrier(LineCarrier[Line]):
    """Reaches workers by gloo; see `reap.workers.remote.carrier.RemoteCarrier`.

    Args:
        launcher: starts the processes.
        meeting: the place at which workers connect.
        name: the name of the workers' processes.
        timeout: seconds within which a worker must connect.
        lost_after: seconds of silence after which a worker's machine counts as lost; None if it is this machine.
    """

    def __init__(self, launcher: Launcher, meeting: Meeting, name: str, timeout: float, lost_after: float | None) -> None:
        super().__init__()
        self._launcher, self._meeting, self._name = launcher, meeting, name
        self._timeout, self._lost_after = timeout, lost_after
        self._launched = 0
        self._memory = Memory()
        self._traffic: dict[int, tuple[int, float]] = {}

    # Messages

    def launch(self, worker: int, spec: bytes) -> None:
        """Start a worker's process; its spec is the first message that it receives."""
        facts = self.facts(worker)
        self._traffic[worker] = facts.bytes, facts.transfer_seconds
        self._launched += 1
        name = f"{self._name}-{worker}-{self._launched}"
        membership = Membership(self._meeting.invitation(name), self._timeout, self._lost_after)
        job = self._launcher.launch(Task(ENTRY, pickle.dumps(membership), f"{self._name}-{worker}"))
        line = Line(job, self._meeting, name, self._timeout, self._lost_after, self._memory, self._bell.ring, self._why_late)
        line.outbox.put(COMMAND, Encoded(spec))
        self.lines[worker] = line

    def _why_late(self) -> str:
        missing = [(worker, line) for worker, line in list(self.lines.items()) if not (line.is_connected or line.has_ended)]
        states = "; ".join(f"worker {worker} ({described(line.job)})" for worker, line in missing)
        return (
            f"these workers did not connect to {self._meeting.place} within {self._timeout:g} s: {states}. If their processes "
            "run, that place cannot be reached from where they are; if they wait to be started, give a longer timeout"
        )

    def outgoing(self, command: Any, fds: Sequence[int]) -> WholeCommand:
        """Prepare a command, whose arrays are sent without a copy."""
        refuse_descriptors(fds)
        return WholeCommand(encode_apart(command, "the command"))

    def send(self, worker: int, outgoing: WholeCommand) -> bool:
        """Send a command in the background."""
        if not self.lines[worker].is_released:
            self.lines[worker].outbox.put(COMMAND, outgoing.encoded)
            outgoing.is_sent = True
        return outgoing.is_sent

    def post(self, worker: int, command: Any) -> None:
        """Send a command in the background; it replaces a waiting one of the same type."""
        self.lines[worker].outbox.put(POST, encode_apart(command, "the command"), type(command).__qualname__.encode())

    # What is known of a worker

    def exit_code(self, worker: int) -> int | None:
        """The launcher's exit code, or -n if signal n told it to leave; None for a job that is not known to have ended."""
        return self.lines[worker].exit_code()

    def ending(self, worker: int) -> str:
        """The signal that told it to leave, and the launcher's description if it says more than the exit code."""
        line = self.lines[worker]
        return "; ".join(filter(None, (told_to_leave(line.left_by), words_of(line.job))))

    def place(self, worker: int) -> str:
        """Process, job and machine, as far as known."""
        return self.lines[worker].place

    def progress(self, worker: int) -> Progress | None:
        """The worker's progress, if its ints are visible from here."""
        control = self.lines[worker].job.control
        return None if control is None else progress_of(control)

    def facts(self, worker: int) -> WorkerFacts:
        """Machine, job, and the data received from this worker and its predecessors."""
        line, before = self.lines.get(worker), self._traffic.get(worker, (0, 0.0))
        if line is None:
            return WorkerFacts()
        (received, seconds), is_elsewhere = line.traffic, self._lost_after is not None
        return WorkerFacts(line.host, line.job.place if is_elsewhere else "", before[0] + received, before[1] + seconds)

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end its current command with the current column."""
        line = self.lines[worker]
        if line.job.control is None:
            line.outbox.put(Wish.STOP_EARLY, NOTHING)
        else:
            line.job.control[STOP] |= STOP_EARLY

    def clear(self, worker: int) -> None:
        """Reset a worker's column, and cancel a pending `stop_early`."""
        line = self.lines[worker]
        if line.job.control is None:
            line.outbox.put(Wish.CLEAR, NOTHING)
        else:
            progress.clear(line.job.control)

    def clear_published(self, worker: int) -> None:
        """Reset the count of items that a worker has published."""
        control = self.lines[worker].job.control
        if control is not None:
            control[PUBLISHED] = 0

    # Ends

    def kill(self, workers: Iterable[int]) -> None:
        """Kill these processes, and wait until they are gone if the launcher supports that."""
        lines = [self.lines[worker] for worker in workers if worker in self.lines]
        kill_all(lines)
        for line in lines:
            line.cut()
        deadline = time.monotonic() + KILLED
        await_ends([line.job for line in lines], KILLED)
        for line in lines:
            line.join(max(0.0, deadline - time.monotonic()))

    def end_all(self, timeout: float) -> None:
        """Hang up, ask remaining processes to end, and kill those still running at the deadline."""
        deadline = time.monotonic() + timeout
        lines = list(self.lines.values())
        try:
            # They have made nothing that would have to be closed, and cannot be told.
            kill_all([line for line in lines if not line.is_connected])
            for line in lines:
                line.cut()
            left = await_ends([line.job for line in lines], min(ASKED, timeout / 4))
            for job in left:
                job.terminate()
            await_ends(left, max(0.0, deadline - time.monotonic()))
        finally:
            self.kill(self.lines)

    def close(self) -> None:
        """Stop listening."""
        self._meeting.close()
        self._launcher.close()
        self._bell.close()
