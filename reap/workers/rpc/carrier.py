"""`RpcCarrier`: carries messages to workers that call this process by torch.distributed.rpc.

launch ---> Launcher ---> process ---> agent.join, enter
send, post ---> Line <--- fetch
receive    <--- Line <--- deliver
wait       <--- epoll: a bell that lines ring, and the pidfds of processes on this machine
                thread "watch": jobs elsewhere, and workers that are late or lost
"""

from __future__ import annotations

import pickle
import secrets
import select
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reap.workers import progress
from reap.workers.launchers.base import Launcher, Task, await_ends, words_of
from reap.workers.pickling import encode_apart
from reap.workers.progress import PUBLISHED, STOP, STOP_EARLY, Progress
from reap.workers.remote.carrier import WorkerFacts
from reap.workers.remote.lines import LineCarrier, refuse_descriptors, told_to_leave
from reap.workers.rpc import agent
from reap.workers.rpc.line import Line, Waiting
from reap.workers.rpc.member import ENTRY, Membership
from reap.workers.rpc.remote_worker import RemoteWorker
from reap.workers.rpc.tensors import wrapped
from reap.workers.rpc.watch import Watch

PATIENCE = 5.0
"""Seconds for a scheduler to end a job; a worker that is no longer wanted ends by itself."""


@dataclass(frozen=True)
class RpcOptions:
    """How workers are reached.

    Attributes:
        address: of the interface to listen on; see `SharedAgent.take`.
        timeout: seconds within which a worker must call.
        lost_after: seconds of silence after which another machine counts as lost.
        agent: options of `TensorPipeRpcBackendOptions` for the agents that are started.
        each: additional options of workers' agents, by worker.
    """

    address: str | None = None
    timeout: float = 60.0
    lost_after: float = 20.0
    agent: Mapping[str, Any] = field(default_factory=dict[str, Any])
    each: Sequence[Mapping[str, Any]] = ()


class RpcCarrier(LineCarrier[RemoteWorker]):
    """Reaches workers by RPC; see `reap.workers.remote.carrier.RemoteCarrier`.

    Args:
        launcher: starts the workers' processes.
        options: how they are reached.
        name: the name of the processes.

    Attributes:
        own: the address of the agent of this process.
    """

    def __init__(self, launcher: Launcher, options: RpcOptions, name: str) -> None:
        super().__init__()
        self._launcher, self._options, self._name = launcher, options, name or "reap"
        self.own = agent.shared.take(options.agent, is_local=launcher.is_local, address=options.address)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._watch = None if launcher.is_local else Watch(self.lines, options.lost_after, self._bell.ring)

    # Messages

    def launch(self, worker: int, spec: bytes) -> None:
        """Start a worker's process; see `Carrier`."""
        key, number = secrets.token_hex(16), next(agent.numbers)
        options = {**self._options.agent, **(self._options.each[worker] if worker < len(self._options.each) else {})}
        line = Line(key, self._bell.ring)
        membership = Membership(
            self.own,
            f"{self.own.name}-{number}",
            number,
            key,
            options,
            self._launcher.is_local,
            self._options.timeout,
            self._options.lost_after,
            spec,
        )
        job = self._launcher.launch(Task(ENTRY, pickle.dumps(membership), f"{self._name}-{worker}"))
        before = self.lines.get(worker)
        self.lines[worker] = RemoteWorker(job, line, self.own, self._options.timeout, before.facts if before else WorkerFacts())
        if job.fileno() >= 0:
            self._epoll.register(job.fileno(), select.EPOLLIN)

    def outgoing(self, command: Any, fds: Sequence[int]) -> Waiting:
        """Prepare a command; see `Carrier`."""
        refuse_descriptors(fds, " by RPC")
        return Waiting(wrapped(encode_apart(command, "the command")))

    def send(self, worker: int, outgoing: Waiting) -> bool:
        """Leave a command for a worker to fetch; see `Carrier`."""
        if not self.lines[worker].is_released:
            self.lines[worker].line.put(outgoing)
        return outgoing.is_sent

    def post(self, worker: int, command: Any) -> None:
        """Leave a command without a reply for a worker to fetch; see `RemoteCarrier`."""
        if (found := self.lines.get(worker)) and not found.is_released:
            found.line.post(Waiting(wrapped(encode_apart(command, "the command")), type(command)))

    def fileno(self) -> int:
        """A descriptor that is readable when there is an event."""
        return self._epoll.fileno()

    # What is known of a worker

    def exit_code(self, worker: int) -> int | None:
        """A worker's exit code, as in multiprocessing, or -n if signal n told it to leave."""
        found = self.lines[worker]
        return -found.line.left_by if found.line.left_by else found.job.exit_code

    def ending(self, worker: int) -> str:
        """Torch's message if it cannot be reached; else the signal that told it to leave, and the launcher's message."""
        found = self.lines[worker]
        return found.ending or "; ".join(filter(None, (told_to_leave(found.line.left_by), words_of(found.job))))

    def place(self, worker: int) -> str:
        """Its process, and its machine if different."""
        return self.lines[worker].place

    def facts(self, worker: int) -> WorkerFacts:
        """Its machine, and the data received from it."""
        found = self.lines.get(worker)
        return WorkerFacts() if found is None else found.facts

    def progress(self, worker: int) -> Progress | None:
        """The progress of a worker on this machine; None for others."""
        return self.lines[worker].progress

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end its current command with the current column."""
        found = self.lines[worker]
        if found.job.control is None:
            found.line.stop_early()
        else:
            found.job.control[STOP] = STOP_EARLY

    def clear(self, worker: int) -> None:
        """Reset a worker's column, and cancel a pending `stop_early`."""
        found = self.lines[worker]
        if found.job.control is None:
            found.line.clear()
        else:
            progress.clear(found.job.control)

    def clear_published(self, worker: int) -> None:
        """Reset the count of items that a worker has published, if visible."""
        if (control := self.lines[worker].job.control) is not None:
            control[PUBLISHED] = 0

    # Ends

    def release(self, worker: int) -> None:
        """Stop reporting events of a worker."""
        found = self.lines[worker]
        if not found.is_released and found.job.fileno() >= 0:
            self._epoll.unregister(found.job.fileno())
        super().release(worker)

    def kill(self, workers: Iterable[int]) -> None:
        """End these workers at once, and wait until they are gone."""
        found = [self.lines[worker] for worker in workers if worker in self.lines]
        for one in found:
            if one.job.fileno() < 0:
                one.line.hang_up()  # its scheduler may take a while
            one.job.kill()
        await_ends([one.job for one in found], PATIENCE)
        self._close(found)

    def end_all(self, timeout: float) -> None:
        """Tell all workers that no more commands will come, and kill those still running after `timeout` seconds."""
        for one in self.lines.values():
            one.line.hang_up()
        await_ends([one.job for one in self.lines.values()], timeout)
        self.kill(self.lines)

    def _close(self, workers: Iterable[RemoteWorker]) -> None:
        for one in workers:
            one.line.cut()
            if one.job.fileno() >= 0 and not one.is_released:
                self._epoll.unregister(one.job.fileno())
            one.is_released = True
            one.job.close()

    def close(self) -> None:
        """Free the carrier's own resources; its workers have ended."""
        if self._watch is not None:
            self._watch.close()
        self._launcher.close()
        if self._bell.fileno() >= 0:
            self._bell.close()
            self._epoll.close()
            agent.shared.give_back()
