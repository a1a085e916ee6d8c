"""The seam between a weight sync scheme and the engine that carries its weights.

sender                                                receiver
  sending = engine.open(layouts)
  sending.ways ------- pickled with the scheme ------>  following = way.follow(take, when_cut_off)
  sending.put(worker, parcel) ====== the engine =====>  take(parcel)
  sending.close()                                       following.close()
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from reap.weights.copied_mailbox import Parcel


class Following(Protocol):
    """A receiver's end."""

    def close(self) -> None:
        """Receive nothing more; a second call does nothing."""
        ...


class Way(Protocol):
    """How one receiver gets to the sender; it can be pickled."""

    def follow(self, take: Callable[[Parcel], Any], when_cut_off: Callable[[], Any]) -> Following:
        """Have weights delivered that the sender has, and all that it sends later; those that wait are replaced by newer ones.

        Args:
            take: given each, in a thread of its own; returns at once.
            when_cut_off: called when nothing comes any more.

        Raises:
            ClosedError: the sender cannot be reached.
        """
        ...


class Sending(Protocol):
    """The sender's end, for all receivers."""

    @property
    def ways(self) -> Mapping[int, Way]:
        """How each receiver gets here."""
        ...

    def put(self, worker: int, parcel: Parcel) -> None:
        """Send weights in place of those that wait; returns at once."""
        ...

    def close(self) -> None:
        """Send nothing more; a second call does nothing."""
        ...


Open = Callable[[Collection[int]], Sending]
"""Makes the sender's end for these receivers."""
