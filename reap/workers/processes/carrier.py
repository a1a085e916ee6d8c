"""`ProcessCarrier`: carries messages to workers in child processes on this machine.

    send ------------> SocketCommand ============ socket ===========> child (reap.workers.processes.child)
    receive <--------- Incoming <=========== socket ============ started, replies, exceptions
    exit_code <------- status pipe (reap.workers.processes.fork_server) <------ end
    progress, stop_early, clear <=== shared int32 =============> control

One epoll waits for all sockets and status pipes.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Sequence
from typing import Any

from reap.system.bell import Bell
from reap.workers import progress
from reap.workers.carrier import Events
from reap.workers.pickling import encode
from reap.workers.processes import worker_process
from reap.workers.processes.channel import Incoming, SocketCommand
from reap.workers.processes.control import ControlBlock
from reap.workers.processes.worker_process import WorkerProcess
from reap.workers.progress import PUBLISHED, STOP, STOP_EARLY, Control, Progress, progress_of

NOTHING = Events((), ())


class ProcessCarrier:
    """Launches processes and talks to them; see `reap.workers.carrier.Carrier`.

    Args:
        workers: number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._processes: dict[int, WorkerProcess] = {}
        self._block = ControlBlock(workers)
        self._controls = [self._block.of(worker) for worker in range(workers)]
        # Whose each descriptor is; those that are not here are not waited for any more.
        self._channels: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._epoll = select.epoll()
        self._bell = Bell()
        self._epoll.register(self._bell, select.EPOLLIN)

    @property
    def pids(self) -> list[int]:
        """The process ids, including those of ended processes."""
        return [process.pid for process in self._processes.values()]

    def control(self, worker: int) -> Control:
        """A worker's control ints; they stay readable after `close`."""
        return self._controls[worker]

    # Messages

    def launch(self, worker: int, spec: bytes) -> None:
        """Launch a worker's process, with all control ints zero."""
        control = self._controls[worker]
        control[:] = progress.new_control()
        self._processes[worker] = process = worker_process.launched(self._block.descriptor, spec)
        for places, descriptor in ((self._channels, process.end.fileno()), (self._statuses, process.status)):
            places[descriptor] = worker
            self._epoll.register(descriptor, select.EPOLLIN)

    def outgoing(self, command: Any, fds: Sequence[int]) -> SocketCommand:
        """Prepare a command, and descriptors of which the child gets copies."""
        return SocketCommand(encode(command, "the command").body, fds)

    def send(self, worker: int, outgoing: SocketCommand) -> bool:
        """Send as much of a command as the socket accepts."""
        process = self._processes[worker]
        if process.end.fileno() not in self._channels:
            return False
        try:
            is_sent = outgoing.send(process.end)
        except ConnectionError:  # the worker is gone: its end says why
            return False
        if not is_sent or process.is_full:
            process.is_full = True
            self._epoll.modify(process.end.fileno(), select.EPOLLIN | (0 if is_sent else select.EPOLLOUT))
            process.is_full = not is_sent
        return is_sent

    def receive(self, worker: int) -> Incoming | None:
        """The next message, if complete."""
        process = self._processes[worker]
        if process.end.fileno() not in self._channels:
            return None
        message = process.incoming
        try:
            return message if message.receive(process.end) else None
        except EOFError:
            self._forget(self._channels, process.end.fileno())
            process.cut_off()  # it is ending, or has lost the channel for good
            return None

    def accept(self, worker: int) -> None:
        """Move on to the next message."""
        self._processes[worker].incoming = Incoming()

    def wait(self, timeout: float) -> Events:
        """Wait for events: workers that have sent something, and workers that have ended."""
        found = self._epoll.poll(timeout)
        if not found:
            return NOTHING
        channels, statuses = self._channels, self._statuses
        return Events(
            [channels[descriptor] for descriptor, _ in found if descriptor in channels],
            [statuses[descriptor] for descriptor, _ in found if descriptor in statuses],
        )

    def wake(self) -> None:
        """Make every wait return immediately."""
        self._bell.ring()

    def fileno(self) -> int:
        """A descriptor that is readable when there is an event."""
        return self._epoll.fileno()

    # What is known of a worker

    def exit_code(self, worker: int) -> int | None:
        """A worker's exit code, as in multiprocessing."""
        return self._processes[worker].read_status()

    def place(self, worker: int) -> str:
        """The process id."""
        return f"pid {self._processes[worker].pid}"

    def progress(self, worker: int) -> Progress:
        """The progress that the worker has written to its control ints."""
        return progress_of(self._controls[worker])

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end its current command with the current column."""
        self._controls[worker][STOP] = STOP_EARLY

    def clear(self, worker: int) -> None:
        """Reset a worker's column, and cancel a pending `stop_early`."""
        progress.clear(self._controls[worker])

    def clear_published(self, worker: int) -> None:
        """Reset the count of items that a worker has published."""
        self._controls[worker][PUBLISHED] = 0

    # Ends

    def release(self, worker: int) -> None:
        """Stop watching a process."""
        process = self._processes[worker]
        self._forget(self._channels, process.end.fileno())
        self._forget(self._statuses, process.status)

    def _forget(self, places: dict[int, int], descriptor: int) -> None:
        if places.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def kill(self, workers: Iterable[int]) -> None:
        """Kill these processes and wait until they are gone."""
        worker_process.kill([self._processes[worker] for worker in workers if worker in self._processes])

    def end_all(self, timeout: float) -> None:
        """Ask all processes to leave, then terminate them, and kill those still running at the deadline."""
        worker_process.end(list(self._processes.values()), timeout)

    def close(self) -> None:
        """Close the epoll and the descriptor of the control ints."""
        self._block.close()
        self._epoll.close()
        self._bell.close()
