"""`WorkerActor`: a worker's process, as a Ray actor.

    group of calls    thread    does
    control           one       `where`, `prepare`, `take`: returns at once, also while a command is carried out
    messages          one       `following`: waits for messages of the worker
    (the default)     one       `run`: runs the worker; its env and its policy never leave this thread

Ray runs these groups of calls in threads; the main thread of the process waits for calls.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from reap import optional
from reap.errors import add_note
from reap.workers.base import Handler
from reap.workers.handler_spec import HandlerSpec
from reap.workers.messages import Encoded
from reap.workers.processes.child import ignore
from reap.workers.progress import Control
from reap.workers.ray.channel import ActorChannel, Fetched
from reap.workers.remote.versions import own_versions
from reap.workers.serve import serve

GROUPS: Mapping[str, int] = {"control": 1, "messages": 1}
"""Concurrency groups of calls, and the number of threads of each."""

HOW_TO_BRING_CODE = (
    "Nodes of a Ray cluster import modules by name, as any other program there. What only the trainer can import is sent along "
    'with a runtime environment: remote_configs={"runtime_env": {"working_dir": "."}}, or {"runtime_env": {"pip": [...]}} for '
    "packages."
)


class Whereabouts(NamedTuple):
    """The location of an actor, and the versions that it runs with.

    Attributes:
        host: the name of the machine.
        node: the id of its Ray node.
        pid: the process id of the actor.
        versions: of packages that must be equal in both processes.
    """

    host: str
    node: str
    pid: int
    versions: Mapping[str, str]

    @classmethod
    def here(cls, node: str) -> Whereabouts:
        """The location and versions of this process."""
        return cls(socket.gethostname(), node, os.getpid(), own_versions())


class WorkerActor:
    """A worker's process, as a Ray actor.

    Args:
        hides_gpus: the worker has no GPU and must not see any.
    """

    def __init__(self, hides_gpus: bool) -> None:
        if hides_gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._channel = ActorChannel()
        self._spec = b""
        if threading.current_thread() is threading.main_thread():
            leave_on_sigterm(self._channel)

    def where(self) -> Whereabouts:
        """The location of this actor."""
        return Whereabouts.here(optional.load("ray").get_runtime_context().get_node_id())

    def prepare(self, spec: bytes) -> None:
        """Store the worker's pickled `HandlerSpec`.

        This is a separate call because Ray keeps the arguments of a call until it returns.
        """
        self._spec = spec

    def take(self, number: int, kind: int, name: str, body: Any, *buffers: Any) -> None:
        """See `ActorChannel.take`; Ray has resolved references to buffers."""
        self._channel.take(number, kind, name, Encoded(body, buffers))

    def following(self, received: int) -> Fetched:
        """See `ActorChannel.following`."""
        return self._channel.following(received)

    def run(self) -> None:
        """Run the worker."""
        code = 1
        try:
            code = serve(self._channel, self._start, lambda: None)
        finally:
            self._channel.finish(code)

    def _start(self) -> tuple[Control, Handler]:
        data, self._spec = self._spec, b""
        try:
            spec: HandlerSpec = pickle.loads(data)
            accept_memory_that_is_only_read()
            spec.context.restore()
            return self._channel.control, spec.make(self._channel.control)
        except ModuleNotFoundError as error:
            add_note(error, HOW_TO_BRING_CODE)
            raise


def leave_on_sigterm(channel: ActorChannel) -> None:
    """Make the worker leave on SIGTERM.

    A signal handler in Python runs only once the main thread is in Python, but Ray's main thread waits in C++. So a separate
    thread reads the signal from Python's wakeup descriptor.
    """
    told, into = os.pipe()
    os.set_blocking(into, False)
    signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, ignore)
    threading.Thread(target=_listen_for_sigterm, args=(told, channel), name="reap-sigterm", daemon=True).start()


def _listen_for_sigterm(told: int, channel: ActorChannel) -> None:
    while signal.SIGTERM not in os.read(told, 64):
        pass
    channel.leave()


def accept_memory_that_is_only_read() -> None:
    """Trigger, and suppress, torch's once-per-process warning about read-only memory.

    Memory in Ray's store must not be written to. It is not: weights are copied from it into the policy.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)
