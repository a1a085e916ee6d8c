"""`RpcCarrier`: workers that call this process by torch.distributed.rpc.

launch ---> Launcher ---> process ---> agent.join, enter
send, post ---> Line <--- fetch
receive    <--- Line <--- deliver
wait       <--- epoll: a bell that lines ring, and the pidfds of processes on this machine
                thread "watch": jobs elsewhere, who is late, who is lost
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
from reap.workers.remote.lines import LineCarrier, refuse_descriptors
from reap.workers.rpc import agent
from reap.workers.rpc.line import Line, Waiting
from reap.workers.rpc.member import ENTRY, Membership
from reap.workers.rpc.remote_worker import RemoteWorker
from reap.workers.rpc.tensors import wrapped
from reap.workers.rpc.watch import Watch

PATIENCE = 5.0
"""Seconds that a scheduler has to end a job; a worker that is not wanted any more ends by itself."""


@dataclass(frozen=True)
class RpcOptions:
    """How workers are reached.

    Attributes:
        address: of the interface that is listened on; see `SharedAgent.take`.
        timeout: seconds until a worker must have called.
        lost_after: seconds of silence after which another machine is lost.
        agent: options of the agents that are started, as `TensorPipeRpcBackendOptions` has them.
        each: further ones of each worker's agent; none for those that are not in it.
    """

    address: str | None = None
    timeout: float = 60.0
    lost_after: float = 20.0
    agent: Mapping[str, Any] = field(default_factory=dict[str, Any])
    each: Sequence[Mapping[str, Any]] = ()


class RpcCarrier(LineCarrier[RemoteWorker]):
    """See `reap.workers.remote.carrier.RemoteCarrier`.

    Args:
        launcher: starts the workers' processes.
        options: how they are reached.
        name: of the processes.
    """

    def __init__(self, launcher: Launcher, options: RpcOptions, name: str) -> None:
        super().__init__()
        self._launcher, self._options, self._name = launcher, options, name or "reap"
        self._own = agent.shared.take(options.agent, is_local=launcher.is_local, address=options.address)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._watch = None if launcher.is_local else Watch(self._lines, options.lost_after, self._bell.ring)

    # Messages

    def launch(self, worker: int, spec: bytes) -> None:
        """Start a worker's process; see `Carrier`."""
        key, number = secrets.token_hex(16), next(agent.numbers)
        options = {**self._options.agent, **(self._options.each[worker] if worker < len(self._options.each) else {})}
        line = Line(key, self._bell.ring)
        membership = Membership(
            self._own,
            f"{self._own.name}-{number}",
            number,
            key,
            options,
            self._launcher.is_local,
            self._options.timeout,
            self._options.lost_after,
            spec,
        )
        job = self._launcher.launch(Task(ENTRY, pickle.dumps(membership), f"{self._name}-{worker}"))
        before = self._lines.get(worker)
        self._lines[worker] = RemoteWorker(
            job, line, self._own, self._options.timeout, before.facts if before else WorkerFacts()
        )
        if job.fileno() >= 0:
            self._epoll.register(job.fileno(), select.EPOLLIN)

    def outgoing(self, command: Any, fds: Sequence[int]) -> Waiting:
        """A command; see `Carrier`."""
        refuse_descriptors(fds, " by RPC")
        return Waiting(wrapped(encode_apart(command, "the command")))

    def send(self, worker: int, outgoing: Waiting) -> bool:
        """Leave a command for a worker to fetch; see `Carrier`."""
        if not self._lines[worker].is_released:
            self._lines[worker].line.put(outgoing)
        return outgoing.is_sent

    def post(self, worker: int, command: Any) -> None:
        """Leave a command without a reply for a worker to fetch; see `RemoteCarrier`."""
        if (found := self._lines.get(worker)) and not found.is_released:
            found.line.post(Waiting(wrapped(encode_apart(command, "the command")), type(command)))

    def fileno(self) -> int:
        """A descriptor that is readable when something has happened."""
        return self._epoll.fileno()

    # What is known of a worker

    def exit_code(self, worker: int) -> int | None:
        """As multiprocessing has it."""
        return self._lines[worker].job.exit_code

    def ending(self, worker: int) -> str:
        """Torch's words, where it cannot be reached, or the launcher's, where they say more than the exit code."""
        found = self._lines[worker]
        return found.ending or words_of(found.job)

    def place(self, worker: int) -> str:
        """Its process, and its machine if that is another one."""
        return self._lines[worker].place

    def facts(self, worker: int) -> WorkerFacts:
        """Its machine, and what has come from it."""
        found = self._lines.get(worker)
        return WorkerFacts() if found is None else found.facts

    def progress(self, worker: int) -> Progress | None:
        """How far a worker on this machine has come; None of others."""
        return self._lines[worker].progress

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end the command under way with the column that it is at."""
        found = self._lines[worker]
        if found.job.control is None:
            found.line.stop_early()
        else:
            found.job.control[STOP] = STOP_EARLY

    def clear(self, worker: int) -> None:
        """Forget the column that a worker is at, and what `stop_early` asked for."""
        found = self._lines[worker]
        if found.job.control is None:
            found.line.clear()
        else:
            progress.clear(found.job.control)

    def clear_published(self, worker: int) -> None:
        """Count what a worker publishes from zero, where that is seen."""
        if (control := self._lines[worker].job.control) is not None:
            control[PUBLISHED] = 0

    # Ends

    def release(self, worker: int) -> None:
        """Report nothing more of a worker."""
        found = self._lines[worker]
        if not found.is_released and found.job.fileno() >= 0:
            self._epoll.unregister(found.job.fileno())
        super().release(worker)

    def kill(self, workers: Iterable[int]) -> None:
        """End these workers at once, and wait until they are gone."""
        found = [self._lines[worker] for worker in workers if worker in self._lines]
        for one in found:
            if one.job.fileno() < 0:
                one.line.hang_up()  # its scheduler may take a while
            one.job.kill()
        await_ends([one.job for one in found], PATIENCE)
        self._close(found)

    def end_all(self, timeout: float) -> None:
        """Tell all workers that nothing comes any more, and kill those that are there after `timeout` seconds."""
        for one in self._lines.values():
            one.line.hang_up()
        await_ends([one.job for one in self._lines.values()], timeout)
        self.kill(self._lines)

    def _close(self, workers: Iterable[RemoteWorker]) -> None:
        for one in workers:
            one.line.cut()
            if one.job.fileno() >= 0 and not one.is_released:
                self._epoll.unregister(one.job.fileno())
            one.is_released = True
            one.job.close()

    def close(self) -> None:
        """Free what the carrier itself uses; its workers have ended."""
        if self._watch is not None:
            self._watch.close()
        self._launcher.close()
        if self._bell.fileno() >= 0:
            self._bell.close()
            self._epoll.close()
            agent.shared.give_back()
