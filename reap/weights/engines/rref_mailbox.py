"""`RRefMailbox`: weights for a module or a collector in another process, reached by an `RRef` of torch.distributed.rpc.

sender                                            the reference's owner
  send ---> newest parcel === load(rref, ...) ===>  module: copied in place; collector: update_policy_weights_
              (one call at a time: waiting ones are replaced by newer ones)
"""

from __future__ import annotations

import pickle
import threading
from typing import Any, Self

import numpy as np
import torch
from torch.distributed import rpc

from reap.errors import ClosedError
from reap.policy.contents.held import held_by
from reap.weights.attributes import ATTRIBUTES
from reap.weights.copied_mailbox import CopiedMailbox, Parcel
from reap.weights.packed import PackedWeights, PackingMailbox, half_in, unpacked
from reap.weights.weight_layout import WeightLayout, describe, load_extra_states
from reap.workers.messages import Encoded
from reap.workers.rpc.tensors import Tensors, unwrapped, wrapped

FOREVER = 0.0
"""The timeout of a call, which may wait for a collector's rollout."""


class RRefMailbox(PackingMailbox):
    """The sender's end; see `Mailbox`.

    Args:
        rref: the reference.

    Attributes:
        described: the layout of the referenced object's weights.
    """

    def __init__(self, rref: Any) -> None:
        self._rref = rref
        self.described: WeightLayout = rpc.rpc_sync(rref.owner(), described_there, args=(rref,), timeout=FOREVER)
        self._newest = CopiedMailbox.for_weights(self.described)
        self._newest.deliver(self._put)
        self._lock = threading.RLock()
        self._waiting: Tensors = ()
        self._is_calling = self._is_closed = False
        self._error: RuntimeError | None = None

    @property
    def version(self) -> int:
        """The last version sent; 0 if there is none."""
        return self._newest.version

    def descriptors(self) -> list[int]:
        """Empty: no descriptors are needed."""
        return []

    def send(self, packed: PackedWeights, version: int) -> None:
        """Send packed weights; see `Mailbox`.

        Raises:
            ClosedError: the module's process is gone, or an earlier update failed there.
        """
        if self._error is not None:
            raise ClosedError(f"weights no longer arrive at {self._rref.owner_name()!r}: {self._error}") from self._error
        self._newest.send(packed, version)

    def _put(self, parcel: Parcel) -> None:
        with self._lock:
            self._waiting = wrapped(Encoded(pickle.dumps((parcel.version, parcel.extra)), [parcel.block.data]))
            self._call()

    def _call(self) -> None:
        with self._lock:
            if self._is_calling or not self._waiting or self._is_closed:
                return
            parts, self._waiting, self._is_calling = self._waiting, (), True
            called = rpc.rpc_async(self._rref.owner(), load_there, args=(self._rref, *parts), timeout=FOREVER)
        called.add_done_callback(self._called)

    def _called(self, called: Any) -> None:
        try:
            called.wait()
        except RuntimeError as error:
            self._error = error
            return
        with self._lock:
            self._is_calling = False
            self._call()

    def read_into(self, policy: Any, since: int) -> int:
        """Do nothing: this is the sender's end."""
        return since

    def renewed(self) -> Self:
        """This mailbox: the object of a reference is not replaced."""
        return self

    def close(self) -> None:
        """Stop sending; see `Mailbox`."""
        self._is_closed, self._waiting = True, ()


# What is called where the module is


def described_there(rref: Any) -> WeightLayout:
    """Describe the weights of the object of a reference; called in its process."""
    target = rref.local_value()
    return describe(held_by(target.policy if hasattr(target, "update_policy_weights_") else target))


def load_there(rref: Any, *parts: torch.Tensor) -> None:
    """Copy weights into the object of a reference; called in its process."""
    target = rref.local_value()
    described = described_there(rref)
    body, [block] = unwrapped(parts)
    _, extra = pickle.loads(body)
    half = half_in(described, np.asarray(block))
    extras = unpacked(extra) if extra else {}
    if hasattr(target, "update_policy_weights_"):
        weights: dict[str, Any] = {name: torch.empty(one.shape, dtype=one.dtype) for name, one in described.items()}
        half.load_into(weights)
        target.update_policy_weights_({**weights, **{name: state for name, state in extras.items() if name != ATTRIBUTES}})
    else:
        half.load_into(held_by(target))
        load_extra_states(held_by(target), extras)
