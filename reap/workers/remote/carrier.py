"""The seam between a group of workers elsewhere and the engine that reaches them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from reap.workers.base import Command
from reap.workers.carrier import Carrier, Out


class WorkerFacts(NamedTuple):
    """What a carrier knows of a worker.

    Attributes:
        host: the name of the machine; empty if that is not known yet.
        node: how the engine calls it: a node's id, a job's number; empty where the host says it all.
        bytes: received from the worker so far.
        transfer_seconds: time that receiving took.
    """

    host: str = ""
    node: str = ""
    bytes: int = 0
    transfer_seconds: float = 0.0


class RemoteCarrier(Carrier[Out], Protocol[Out]):
    """A carrier to workers that share nothing with this process."""

    def post(self, worker: int, command: Command) -> None:
        """Send a command that nobody waits for, in the background; from any thread, without waiting.

        The worker handles it before commands that are sent later. One that has not left yet is replaced by a newer one of the
        same type. Nothing happens where the worker is gone, or has not been launched.

        Raises:
            OptionError: it cannot be sent.
        """
        ...

    def ending(self, worker: int) -> str:
        """Why a worker has ended, in the words of the engine or the launcher; empty if they say nothing."""
        ...

    def facts(self, worker: int) -> WorkerFacts:
        """What is known of a worker, launched or not; counts include those of the workers before it in its place."""
        ...
