"""The interface between a weight sync scheme and the engine that carries its weights.

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
    """The receiver's end."""

    def close(self) -> None:
        """Stop receiving; a second call does nothing."""
        ...


class Way(Protocol):
    """Leads one receiver to the sender; can be pickled."""

    def follow(self, take: Callable[[Parcel], Any], when_cut_off: Callable[[], Any]) -> Following:
        """Start to receive the sender's current weights and all later ones; waiting weights are replaced by newer ones.

        Args:
            take: called with each update, in a separate thread; must return without waiting.
            when_cut_off: called when no more weights will come.

        Raises:
            ClosedError: the sender cannot be reached.
        """
        ...


class Sending(Protocol):
    """The sender's end, for all receivers."""

    @property
    def ways(self) -> Mapping[int, Way]:
        """The way of each receiver to this sender."""
        ...

    def put(self, worker: int, parcel: Parcel) -> None:
        """Send weights, which replace waiting ones; returns without waiting."""
        ...

    def close(self) -> None:
        """Stop sending; a second call does nothing."""
        ...


Open = Callable[[Collection[int]], Sending]
"""Make the sender's end for these receivers."""
