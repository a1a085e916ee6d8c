"""`ActorMailbox`: weights for a Ray actor with its own policy and a method `update_policy_weights_`.

sender                                               actor
  send ---> newest parcel === a call at a time ===>    update_policy_weights_(state dict)
            (waiting ones are replaced by newer ones)
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

import torch

from reap import optional
from reap.errors import ClosedError
from reap.weights.attributes import ATTRIBUTES
from reap.weights.copied_mailbox import CopiedMailbox, Parcel
from reap.weights.engines.ray import Newest
from reap.weights.packed import PackedWeights, half_in, unpacked
from reap.weights.weight_layout import WeightLayout


class StateDicts:
    """State dicts in Ray's object store; each is put there once for all actors.

    Args:
        described: the weights.
    """

    def __init__(self, described: WeightLayout) -> None:
        self.ray: Any = optional.load("ray", "RayWeightUpdater")
        self._described = described
        self._lock = Lock()
        self._parcel: Parcel | None = None
        self._reference: Any = None

    def reference(self, parcel: Parcel) -> Any:
        """A reference to the weights of a parcel."""
        with self._lock:
            if self._parcel is None or self._parcel.block is not parcel.block or self._parcel.extra != parcel.extra:
                self._parcel, self._reference = parcel, self.ray.put(self._state(parcel))
            return self._reference

    def _state(self, parcel: Parcel) -> dict[str, Any]:
        weights: dict[str, Any] = {name: torch.empty(one.shape, dtype=one.dtype) for name, one in self._described.items()}
        half_in(self._described, parcel.block).load_into(weights)
        extras: Mapping[str, Any] = unpacked(parcel.extra) if parcel.extra else {}
        return {**weights, **{name: state for name, state in extras.items() if name != ATTRIBUTES}}


class ActorMailbox(CopiedMailbox):
    """The sender's end; see `Mailbox`.

    Args:
        actor: the handle.
        states: provides the state dicts for the actor.
        described: the weights.
    """

    def __init__(self, actor: Any, states: StateDicts, described: WeightLayout) -> None:
        super().__init__(described)
        self._actor, self._states = actor, states
        self._newest = Newest(self._call)
        self.deliver(lambda parcel: self._newest.put(0, parcel))

    def _call(self, _key: int, parcel: Parcel) -> None:
        self._states.ray.get(self._actor.update_policy_weights_.remote(self._states.reference(parcel)))

    def send(self, packed: PackedWeights, version: int) -> None:
        """Send packed weights; see `Mailbox`.

        Raises:
            ClosedError: the actor is gone, or an earlier update failed there.
        """
        if self._newest.error is not None:
            raise ClosedError(f"weights no longer arrive at {self._actor}: {self._newest.error}") from self._newest.error
        super().send(packed, version)

    def renewed(self) -> ActorMailbox:
        """This mailbox: the actor is not replaced."""
        return self

    def close(self) -> None:
        """Stop sending; see `Mailbox`."""
        super().close()
        self._newest.close()
