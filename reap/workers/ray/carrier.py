"""`RayCarrier`: carries messages to workers in Ray actors, which Ray places on its nodes.

    send, stop_early, clear, post ---> the sender, a thread ======= calls ======> actor (reap.workers.ray.actor)
    wait, receive <---- bell <---- listeners, a thread for each line <=== results ===
    drained nodes <--------------- the watch, a thread

Large parts of messages go through Ray's object store: they are copied in once and mapped on the other side. Only threads wait
for Ray, so Ctrl-C and messages end any wait of the trainer.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from reap.errors import OptionError
from reap.system.interrupts import deferring_interrupts
from reap.workers.messages import MessageKind
from reap.workers.pickling import encode_apart
from reap.workers.ray.channel import Wish
from reap.workers.ray.cluster import Cluster, actor_options, resources_of, shown_resources
from reap.workers.ray.line import Item, Line, words_of
from reap.workers.ray.store import Post, SharedObjects
from reap.workers.remote.carrier import WorkerFacts
from reap.workers.remote.lines import LineCarrier, WholeCommand, refuse_descriptors

LOOK_EVERY = 1.0
"""Seconds between two checks for drained nodes."""

KILL_TIMEOUT = 2.0
"""Seconds for Ray to report the end of a killed actor."""


class RayCarrier(LineCarrier[Line]):
    """Reaches workers by Ray; see `reap.workers.remote.carrier.RemoteCarrier`.

    Args:
        cluster: where the workers run.
        options: options of Ray's actors, one dict for each worker; workers added later use the last one.
        needed: number of workers that must run before any command is sent; others may have to wait for nodes.
        workers: number of workers.

    Raises:
        OptionError: options that cannot work, or that no node can satisfy.
    """

    def __init__(self, cluster: Cluster, options: Sequence[Mapping[str, Any]], needed: int, workers: int) -> None:
        super().__init__()
        self._cluster = cluster
        self._options = [actor_options(one) for one in options]
        self._actor_class = cluster.actor_class()
        self._check(self._options)
        cluster.refuse_impossible([self._options_of(worker) for worker in range(min(needed, workers))])
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=deliver_all, args=(self._queue,), name="reap-ray-sender", daemon=True),
            threading.Thread(target=self._watch, name="reap-ray-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        # Before Ray's own, which is registered when it is imported: a group that nobody stopped.
        self._at_exit = partial(_end_at_exit, weakref.ref(self), os.getpid())
        atexit.register(self._at_exit)

    def _options_of(self, worker: int) -> dict[str, Any]:
        return self._options[min(worker, len(self._options) - 1)]

    def _check(self, options: Iterable[Mapping[str, Any]]) -> None:
        for one in options:
            with in_words_of_options():
                self._actor_class.options(**one)

    def expect_more(self, options: Mapping[str, Any] | None) -> None:
        """Called before workers are added.

        Args:
            options: options of their actors; those of the last worker if None.

        Raises:
            OptionError: options that cannot work, or that no node can satisfy.
        """
        own = self._options[-1] if options is None else actor_options(options)
        self._check([own])
        self._cluster.refuse_impossible([own])
        self._options = [*(self._options_of(worker) for worker in range(len(self.lines))), own]

    @property
    def actors(self) -> list[Any]:
        """The handles of the workers' actors."""
        return [self.lines[worker].actor for worker in sorted(self.lines)]

    # ------------------------------------------------------------------ messages

    def launch(self, worker: int, spec: bytes) -> None:
        """Make Ray start an actor; the successor of an ended one goes to another node if there is room."""
        options, before = self._options_of(worker), self.lines.get(worker)
        if before is not None and before.whereabouts is not None:
            options = {**options, **self._cluster.place_other_than(before.whereabouts.node, options)}
        hides_gpus = not options.get("num_gpus")
        with in_words_of_options():
            actor = self._actor_class.options(**options).remote(hides_gpus)
        line = Line(actor, spec, self._queue.put, self._bell.ring)
        if before is not None:
            line.bytes, line.seconds_before = before.bytes, before.seconds_before + before.seconds
        self.lines[worker] = line
        line.thread.start()

    def outgoing(self, command: Any, fds: Sequence[int]) -> WholeCommand:
        """Prepare a command; its arrays are sent next to it."""
        refuse_descriptors(fds, " to a Ray actor")
        return WholeCommand(encode_apart(command, "the command"))

    def send(self, worker: int, outgoing: WholeCommand) -> bool:
        """Pass a command to the sender thread."""
        line = self.lines[worker]
        if not line.is_released:
            with deferring_interrupts():
                self._queue.put(Item(line, MessageKind.COMMAND, outgoing.encoded))
                outgoing.is_sent = True
        return outgoing.is_sent

    def post(self, worker: int, command: Any) -> None:
        """Send a command in the background; see `RemoteCarrier.post`."""
        line = self.lines.get(worker)
        if line is not None and not line.is_released:
            kind = type(command)
            line.post(Post(f"{kind.__module__}.{kind.__qualname__}", encode_apart(command, "the command")))

    # ------------------------------------------------------------------ what is known of a worker

    def exit_code(self, worker: int) -> int | None:
        """The exit code of a worker that ended by itself; Ray reports no others."""
        return self.lines[worker].exit_code

    def ending(self, worker: int) -> str:
        """Why a worker has ended, in Ray's words."""
        return self.lines[worker].ending or ""

    def place(self, worker: int) -> str:
        """The actor's process, machine and node, or what it is waiting for."""
        found = self.lines[worker].whereabouts
        if found is None:
            return f"Ray has no place for it yet, or is starting it: {shown_resources(resources_of(self._options_of(worker)))}"
        return f"pid {found.pid} on {found.host}, Ray node {found.node[:12]}"

    def facts(self, worker: int) -> WorkerFacts:
        """Machine, node, and the data received from there."""
        line = self.lines[worker]
        host, node = ("", "") if line.whereabouts is None else line.whereabouts[:2]
        return WorkerFacts(host, node, line.bytes, line.seconds_before + line.seconds)

    def progress(self, worker: int) -> None:
        """None: progress is not visible from here."""

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end its current command with the current column."""
        self._wish(worker, Wish.STOP_EARLY)

    def clear(self, worker: int) -> None:
        """Reset a worker's column, and cancel a pending `stop_early`."""
        self._wish(worker, Wish.CLEAR)

    def clear_published(self, worker: int) -> None:
        """Do nothing: the count cannot be read from here."""

    def _wish(self, worker: int, wish: Wish) -> None:
        self._queue.put(Item(self.lines[worker], wish))

    def _watch(self) -> None:
        """Make workers on drained nodes leave."""
        told: set[str] = set()
        with contextlib.suppress(Exception):  # Ray was shut down, or does not tell
            while not self._closing.wait(LOOK_EVERY):
                new = self._cluster.draining() - told
                for line in list(self.lines.values()):
                    if line.whereabouts is not None and line.whereabouts.node in new:
                        self._queue.put(Item(line, Wish.LEAVE))
                told |= new

    # ------------------------------------------------------------------ ends

    def kill(self, workers: Iterable[int]) -> None:
        """Make Ray end these actors, and wait until it reports their ends."""
        lines = [line for worker in workers if (line := self.lines.get(worker)) is not None]
        for line in lines:
            line.is_released = True
            self._cluster.kill(line.actor)
        join_all([line.thread for line in lines], KILL_TIMEOUT)
        for line in lines:
            line.arrived.clear()

    def end_all(self, timeout: float) -> None:
        """Ask all workers to close their handlers, then end the actors."""
        for worker, line in self.lines.items():
            if not line.is_released:
                self._wish(worker, Wish.HANG_UP)
        join_all([line.thread for line in self.lines.values() if not line.is_released], timeout)
        self.kill(list(self.lines))

    def close(self) -> None:
        """End the threads."""
        atexit.unregister(self._at_exit)
        self._closing.set()
        self._queue.put(None)
        join_all(self._threads, KILL_TIMEOUT)
        self._bell.close()


@contextlib.contextmanager
def in_words_of_options() -> Generator[None]:
    """Convert Ray's errors about actor options to OptionError."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise OptionError(f"remote_configs: {error}") from error


def deliver_all(queue: SimpleQueue[Item | None]) -> None:
    """The sender thread: makes all calls to Ray, and copies into its store, one after the other."""
    objects = SharedObjects()
    while (item := queue.get()) is not None:
        try:
            item.line.deliver(item, objects)
        except BaseException as error:  # noqa: BLE001  Ray was shut down: the worker is out of reach
            item.line.ending = item.line.ending or words_of(error)
            item.line.ring()


def join_all(threads: Iterable[threading.Thread], timeout: float) -> None:
    """Wait for threads to end."""
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _end_at_exit(reference: weakref.ref[RayCarrier], owner: int) -> None:
    carrier = reference()
    if carrier is not None and os.getpid() == owner:
        carrier.end_all(KILL_TIMEOUT)
        carrier.close()
