"""`RemoteGroup`: a group whose carrier reaches workers that share nothing with this process.

post(worker, command) --- carrier, in the background ---> worker     no reply; before commands that are requested later
                          (one that waits is replaced by a newer one of its type)
"""

from __future__ import annotations

from typing import Any, Protocol

from reap.workers.base import Command
from reap.workers.carrier import Carrier, Out
from reap.workers.group import Group


class RemoteCarrier(Carrier[Out], Protocol[Out]):
    """A carrier to workers that share nothing with this process."""

    def post(self, worker: int, command: Command) -> None:
        """Send a command that nobody waits for, in the background; from any thread, without waiting.

        The worker handles it before commands that are sent later. One that has not left yet is replaced by a newer one of the
        same type. Nothing happens where the worker is gone.
        """
        ...


class RemoteGroup(Group):
    """A group that can post; see `reap.workers.group.Group`."""

    carrier: RemoteCarrier[Any]

    def post(self, worker: int, command: Command) -> None:
        """Send a command without a reply; see `RemoteCarrier.post`.

        Raises:
            OptionError: it cannot be sent.
        """
        self.carrier.post(worker, command)
