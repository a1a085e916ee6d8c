"""`RemoteWeightSyncScheme`: weights for processes that share nothing with the sender's, perhaps on another machine.

A receiver needs only the scheme itself, which can be pickled once it is initialised, and sent by any means.

    sender: mailbox --- newest parcel ---> Sending ==== engine ====> Following ---> mailbox: receive
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from threading import Condition
from typing import Any, ClassVar

from reap.errors import CallOrderError, ClosedError, OptionError
from reap.weights.copied_mailbox import CopiedMailbox, Parcel
from reap.weights.engines.base import Following, Sending, Way
from reap.weights.messages import MessageMailbox
from reap.weights.scheme import Role, WeightSyncScheme

OF_THIS_PROCESS = frozenset(("_sending", "_following", "_changed", "_is_cut_off"))
"""Attributes that are left out when a scheme is pickled, in addition to those of `WeightSyncScheme`."""


class RemoteWeightSyncScheme(WeightSyncScheme):
    """A scheme over an engine, which a subclass chooses. In a collector, weights travel like its commands; see `mailbox`.

    Args:
        strategy: "tensordict" or "state_dict"; see `WeightSyncScheme`.
        sync: see `WeightSyncScheme`.

    Attributes:
        mailbox: used by collectors whose workers are processes on this machine.
    """

    mailbox: ClassVar[Any] = MessageMailbox

    def __init__(self, strategy: str = "tensordict", sync: bool = True) -> None:
        super().__init__(strategy, sync)
        self._ways: Mapping[int, Way] = {}
        self._sending: Sending | None = None
        self._following: Following | None = None
        self._changed = Condition()
        self._is_cut_off = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        RemoteWeightSyncScheme.__init__(self)
        self.__dict__.update(state)

    def _open_engine(self) -> Sending:
        """The sender's end of the engine, for the receivers in `self._described`."""
        raise NotImplementedError

    # The sender

    @property
    def mailboxes(self) -> Mapping[int, Any]:
        """The sender's ends, by receiver."""
        self._require("mailboxes", Role.SENDER, Role.CONNECTED_SENDER)
        return self._updater.mailboxes

    def _open(self) -> Mapping[int, Any]:
        self._sending = sending = self._open_engine()
        self._ways = sending.ways
        boxes = {worker: CopiedMailbox.for_weights(described) for worker, described in self._described.items()}
        for worker, box in boxes.items():
            box.deliver(partial(sending.put, worker))
        return boxes

    def _push(self, weights: Any, worker_ids: Any) -> None:
        self._updater.push_weights(weights, worker_ids)

    def descriptors(self, worker_idx: int | None = None) -> list[int]:
        """Empty: the scheme is pickled, and needs no descriptors."""
        self._require("descriptors", Role.SENDER, Role.CONNECTED_SENDER)
        return []

    def descriptors_by_worker(self) -> dict[int, list[int]]:
        """Do nothing: no descriptors are needed."""
        return {}

    # The receiver

    def _become_a_copy(self) -> None:
        raise OptionError(
            f"{type(self).__name__}: an engine does not work in a fork of the process that started it; start the receiver with "
            'multiprocessing.get_context("spawn") or "forkserver", or as a program of its own'
        )

    def _connect_receiver(self, worker_idx: int | None) -> None:
        chosen = self.worker_idx if worker_idx is None else worker_idx
        if not self._ways:
            raise CallOrderError(
                f"{type(self).__name__}.connect: there is no way to the sender: call init_on_sender there before the scheme is "
                "pickled for this process"
            )
        if chosen is None and len(self._ways) == 1:
            chosen = next(iter(self._ways))
        if chosen is None or chosen not in self._ways:
            raise OptionError(f"worker_idx: expected one of {list(self._ways)}, got {chosen}")
        self._take_first(chosen)

    def _attach(self, worker: int) -> CopiedMailbox:
        box = CopiedMailbox.attach(self._described[worker])
        self._following = self._ways[worker].follow(partial(self._take, box), self._cut_off)
        return box

    def _take(self, box: CopiedMailbox, parcel: Parcel) -> None:
        with self._changed:
            box.put(parcel)
            self._changed.notify_all()

    def _cut_off(self) -> None:
        with self._changed:
            self._is_cut_off = True
            self._changed.notify_all()

    def _wait(self, timeout: float | None) -> bool:
        is_newer = False

        def is_over() -> bool:
            nonlocal is_newer
            is_newer = is_newer or self._take_latest()
            return is_newer or self._is_cut_off

        with self._changed:
            self._changed.wait_for(is_over, timeout)
        if self._is_cut_off and not is_newer:
            raise ClosedError("the sender of these weights has shut down, or is gone")
        return is_newer

    def shutdown(self) -> None:
        """Release this end's resources; a receiver whose sender has shut down gets an error at its next `receive`."""
        super().shutdown()
        for end in (self._sending, self._following):
            if end is not None:
                end.close()
        self._sending = self._following = None
