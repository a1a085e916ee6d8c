"""`RemoteCarrier`: the interface between a group of workers elsewhere and the engine that reaches them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from reap.workers.base import Command
from reap.workers.carrier import Carrier, Out


class WorkerFacts(NamedTuple):
    """The location of a worker, and the amount of data received from it.

    Attributes:
        host: the name of the machine; empty if not known yet.
        node: the engine's name for it, such as a node id or a job number; empty if the host name is enough.
        bytes: number of bytes received from the worker so far.
        transfer_seconds: time spent receiving.
    """

    host: str = ""
    node: str = ""
    bytes: int = 0
    transfer_seconds: float = 0.0


class RemoteCarrier(Carrier[Out], Protocol[Out]):
    """A carrier to workers that share nothing with this process."""

    def post(self, worker: int, command: Command) -> None:
        """Send a command without a reply, in the background; callable from any thread, without waiting.

        The worker handles it before commands that are sent later. One that has not been sent yet is replaced by a newer one of
        the same type. Does nothing if the worker is gone or has not been launched.

        Raises:
            OptionError: the command cannot be sent.
        """
        ...

    def ending(self, worker: int) -> str:
        """Why a worker has ended, according to the engine or the launcher; empty if they do not say."""
        ...

    def facts(self, worker: int) -> WorkerFacts:
        """The location and counts of a worker, launched or not; counts include those of its predecessors."""
        ...
