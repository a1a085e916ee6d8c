"""`WeightSyncScheme`: sends weights from one process to the policies of others, over any mailbox.

    sender                                         receiver, a copy of the scheme in another process
    init_on_sender(model=policy, num_workers=2)
    Process(target=work, args=(scheme, 1)).start() ----> init_on_receiver(model=own, worker_idx=1)
    connect()  ----------- the first weights ----------> connect()
    send()     ----------- newer weights --------------> receive()
    shutdown()                                           shutdown()

`send` never waits for a receiver, and `receive` takes the latest weights. A scheme passed to a `multiprocessing` child
includes its descriptors, whatever the start method. Any other launcher pickles the scheme, sends
`descriptors(worker_idx)` by its own means, and calls `attach` with them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar

import torch
from tensordict import TensorDict

from reap.errors import CallOrderError, ClosedError, OptionError
from reap.keys import nested
from reap.policy.contents.held import held_by
from reap.tensordicts import make_tensordict
from reap.weights.base import VanillaWeightUpdater, WeightUpdaterBase
from reap.weights.mailbox_protocol import MailboxKind
from reap.weights.receivers.descriptors import ReceiverDescriptors, distributed, duplicated, send_with_multiprocessing
from reap.weights.receivers.wakeup import Wakeup, wait_for
from reap.weights.remote import MultiProcessedWeightUpdater
from reap.weights.weight_layout import WeightLayout, describe, weights_by_name

STRATEGIES = ("tensordict", "state_dict")

OF_THIS_PROCESS = frozenset(
    (
        "model",
        "_target",
        "_role",
        "_process",
        "_updater",
        "_wakeups",
        "_first",
        "_descriptors",
        "_wakeup",
        "_box",
        "_version",
    )
)
"""Attributes of a scheme that are left out when it is pickled."""


class Role(Enum):
    """The role of a scheme in this process, and its state."""

    NEW = "a scheme that is not initialised"
    SENDER = "a sender before connect()"
    CONNECTED_SENDER = "a connected sender"
    RECEIVER = "a receiver before connect()"
    CONNECTED_RECEIVER = "a connected receiver"
    CLOSED = "a scheme that is shut down"


class WeightSyncScheme:
    """Sends weights from one process to others; a subclass chooses the kind of mailbox.

    Args:
        strategy: "tensordict" or "state_dict": the form that torchrl sends. Buffers and extra states are sent with both.
        sync: accepted for compatibility with torchrl; `send` never waits for receivers, which get the weights at `receive`.

    Attributes:
        mailbox: the kind of mailbox: a class with the methods of `Mailbox` and `MailboxKind`.
        sends: whether anything is sent at all.
        strategy: as given.
        model_id: the name of the model.
        model: the sender's source of weights, or the receiver's policy.
        worker_idx: the receiver's number.
    """

    mailbox: ClassVar[MailboxKind]
    sends: ClassVar[bool] = True

    def __init__(self, strategy: str = "tensordict", sync: bool = True) -> None:
        if strategy not in STRATEGIES:
            raise OptionError(f"strategy: expected one of {list(STRATEGIES)}, got {strategy!r}")
        self.strategy, self.sync = strategy, sync
        self.model_id = "policy"
        self.model: Any = None
        self._target: Any = None
        self.worker_idx: int | None = None
        self._role = Role.NEW
        self._described: dict[int, WeightLayout] = {}
        self._process = os.getpid()
        # of a sender
        self._updater: Any = None
        self._wakeups: dict[int, Wakeup] = {}
        self._first: Mapping[int, Any] = {}
        # of a receiver: what it was handed; then its own wakeup and mailbox
        self._descriptors = ReceiverDescriptors({})
        self._wakeup = -1
        self._box: Any = None
        self._version = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        send_with_multiprocessing(cls)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        WeightSyncScheme.__init__(self)
        self.__dict__.update(state)

    def _require(self, call: str, *roles: Role) -> None:
        if self._role is Role.CLOSED:
            raise ClosedError(f"{type(self).__name__}.{call}: this scheme is shut down")
        if self._role not in roles:
            expected = " or ".join(role.value for role in roles)
            raise CallOrderError(f"{type(self).__name__}.{call}: expected {expected}, found {self._role.value}")

    @property
    def initialized_on_sender(self) -> bool:
        """Whether this is the sender."""
        return self._role in (Role.SENDER, Role.CONNECTED_SENDER)

    @property
    def initialized_on_receiver(self) -> bool:
        """Whether this is a receiver."""
        return self._role in (Role.RECEIVER, Role.CONNECTED_RECEIVER)

    @property
    def synchronized_on_receiver(self) -> bool:
        """Whether this is a receiver that has the first weights."""
        return self._role is Role.CONNECTED_RECEIVER

    # ------------------------------------------------------------------ the sender

    def init_on_sender(
        self,
        *,
        model_id: str = "policy",
        context: Any = None,
        model: Any = None,
        weights: Any = None,
        num_workers: int | None = None,
        devices: Sequence[Any] | None = None,
        params_map: Mapping[int, Any] | None = None,
    ) -> None:
        """Make this end the sender. It also makes everything that receivers need, so start them afterwards.

        Args:
            model_id: a name for the model.
            context: an object with `policy` and `num_workers`, which are the defaults of `model` and `num_workers`.
            model: the policy whose weights are sent; it is only read.
            weights: the first weights to send, instead of a model: a TensorDict or a state dict.
            num_workers: number of receivers; 1 by default.
            devices: one for each receiver, instead of `num_workers`. Weights travel through host memory, and each receiver
                copies them to its policy's device.
            params_map: weights by receiver, if their shapes differ.

        Raises:
            CallOrderError: it is already initialised.
            OptionError: there are no weights, or their shapes are not known yet.
        """
        self._require("init_on_sender", Role.NEW)
        source = model if model is not None else weights if weights is not None else getattr(context, "policy", None)
        if source is None and params_map is None:
            raise OptionError("init_on_sender: expected a model, weights, a params_map or a context with a policy")
        count = num_workers or len(devices or ()) or getattr(context, "num_workers", None) or 1
        sources: Mapping[int, Any] = dict.fromkeys(range(count), source) if params_map is None else params_map
        self._described = {worker: describe(held_by(one) if callable(one) else one) for worker, one in sources.items()}
        boxes = self._open()
        self._first = params_map or {}
        self.model_id, self.model, self._role = model_id, source, Role.SENDER
        self._updater = self.updater(source, boxes)

    def _open(self) -> Mapping[int, Any]:
        """Make everything that receivers need: a mailbox for each."""
        self._wakeups = {worker: Wakeup() for worker in self._described}
        return {worker: self.mailbox.for_weights(described) for worker, described in self._described.items()}

    def updater_here(self, policy: Any, source: Any) -> WeightUpdaterBase:
        """The updater for a policy in this process, to which weights are copied.

        Args:
            policy: the policy that acts.
            source: where weights come from when none are given; None if the policy is the source itself.
        """
        return VanillaWeightUpdater(policy, source)

    def updater(self, policy: Any, mailboxes: Mapping[int, Any]) -> Any:
        """The updater that sends a policy's weights to mailboxes of this kind: the `weight_updater` of a collector.

        Args:
            policy: where weights come from when none are given.
            mailboxes: by worker; `updater.mailboxes` can be changed later.
        """
        return MultiProcessedWeightUpdater(policy, mailboxes)

    def send(self, weights: Any = None, worker_ids: int | Sequence[int] | None = None) -> None:
        """Send weights, without waiting.

        Args:
            weights: a module, a TensorDict or a state dict; those of the model given to `init_on_sender` if None.
            worker_ids: a receiver or a list of them; all if None.

        Raises:
            CallOrderError: this is not a connected sender.
            OptionError: an unknown receiver, or no weights.
            SpecMismatch: names or shapes differ from the layout; nothing is sent then.
        """
        self._require("send", Role.CONNECTED_SENDER)
        self._push(weights, worker_ids)

    def send_async(self, weights: Any = None, worker_ids: int | Sequence[int] | None = None) -> None:
        """The same as `send`."""
        self.send(weights, worker_ids)

    def _push(self, weights: Any, worker_ids: Any) -> None:
        self._updater.push_weights(weights, worker_ids)
        for worker in self._wakeups if worker_ids is None else worker_ids if isinstance(worker_ids, Sequence) else [worker_ids]:
            self._wakeups[worker].ring()

    def descriptors(self, worker_idx: int | None = None) -> list[int]:
        """The descriptors that a receiver needs, for a launcher that sends descriptors itself; all receivers' if None.

        Raises:
            CallOrderError: this is not a sender.
        """
        self._require("descriptors", Role.SENDER, Role.CONNECTED_SENDER)
        chosen = self._wakeups if worker_idx is None else [worker_idx]
        return [fd for worker in chosen for fd in (self._wakeups[worker].out, *self._updater.mailboxes[worker].descriptors())]

    def descriptors_by_worker(self) -> dict[int, list[int]]:
        """The descriptors by receiver; empty for a scheme that is not a sender."""
        return {worker: self.descriptors(worker) for worker in self._wakeups} if self.initialized_on_sender else {}

    # ------------------------------------------------------------------ the receiver

    def attach(self, fds: Sequence[int], worker_idx: int | None = None) -> None:
        """Accept the descriptors from the sender's `descriptors(worker_idx)`, as numbered in this process."""
        self._require("attach", Role.NEW)
        self._descriptors = distributed(fds, list(self._described) if worker_idx is None else [worker_idx])
        self.worker_idx = worker_idx

    def init_on_receiver(
        self,
        *,
        model_id: str = "policy",
        context: Any = None,
        model: Any = None,
        worker_idx: int | None = None,
    ) -> None:
        """Make this end a receiver.

        Args:
            model_id: the name of the model.
            context: an object with a `policy`, which is used if no model is given.
            model: the policy, or a TensorDict or dict of its weights, which is written in place.
            worker_idx: the number of this receiver; can be given to `connect` instead.

        Raises:
            CallOrderError: this is the sender, or it is already initialised.
            OptionError: there is no model.
        """
        if self._process != os.getpid() and self.initialized_on_sender:
            self._become_a_copy()
        self._require("init_on_receiver", Role.NEW)
        target = model if model is not None else getattr(context, "policy", None)
        if target is None:
            raise OptionError("init_on_receiver: expected a model, or a context with a policy")
        self.model_id, self.model, self._role = model_id, target, Role.RECEIVER
        self._target = held_by(target) if callable(target) else target
        self.worker_idx = self.worker_idx if worker_idx is None else worker_idx

    def _become_a_copy(self) -> None:
        """Turn a forked child's copy of the sender into what unpickling would have made."""
        descriptors = duplicated(self.descriptors_by_worker())
        self.__setstate__(self.__getstate__())
        self._descriptors = descriptors

    def receive(self, timeout: float | None = None) -> TensorDict | None:
        """Copy the latest weights into the model, if there are newer ones.

        Args:
            timeout: seconds to wait for newer ones; None does not wait.

        Returns:
            The model's weights, nested by module and sharing its memory; None if there was nothing newer.

        Raises:
            CallOrderError: this is not a connected receiver.
            ClosedError: there is nothing newer, and the sender has shut down or is gone.
        """
        self._require("receive", Role.CONNECTED_RECEIVER)
        if not self._take_latest() and not self._wait(timeout or 0.0):
            return None
        weights = weights_by_name(self._target)
        return make_tensordict(nested({tuple(name.split(".")): one.detach() for name, one in weights.items()}), torch.Size())

    def _wait(self, timeout: float | None) -> bool:
        """Wait for newer weights and take them; False after the timeout."""
        return wait_for(self._wakeup, self._take_latest, timeout)

    def _take_latest(self) -> bool:
        before, self._version = self._version, self._box.read_into(self._target, self._version)
        return self._version != before

    # ------------------------------------------------------------------ both

    def connect(self, *, worker_idx: int | None = None, weights: Any = None) -> None:
        """Send the first weights (sender), or wait for them (receiver).

        Args:
            worker_idx: on a receiver: its number, unless given to `init_on_receiver`.
            weights: on the sender: the first weights; by default those given to `init_on_sender`.

        Raises:
            CallOrderError: it is not initialised, or is already connected.
            ClosedError: on a receiver: the sender shut down or died before it sent anything.
            SpecMismatch: on a receiver: the model's names or shapes differ from those of the weights sent.
        """
        self._require("connect", Role.SENDER, Role.RECEIVER)
        if self._role is Role.SENDER:
            self._connect_sender(weights)
        else:
            self._connect_receiver(worker_idx)

    def _connect_sender(self, weights: Any) -> None:
        if weights is not None or not self._first:
            self._push(weights, None)
        else:
            for worker, own in self._first.items():
                self._push(own, worker)
        self._first, self._role = {}, Role.CONNECTED_SENDER

    def _connect_receiver(self, worker_idx: int | None) -> None:
        chosen = self.worker_idx if worker_idx is None else worker_idx
        if chosen is None and len(self._descriptors) == 1:
            chosen = next(iter(self._descriptors))
        if not self._descriptors:
            raise CallOrderError(
                f"{type(self).__name__}.connect: there is no way to the sender: call init_on_sender there before the scheme is "
                "handed over, as an argument of a multiprocessing.Process or with attach(descriptors)"
            )
        if chosen is None or chosen not in self._descriptors:
            raise OptionError(f"worker_idx: expected one of {list(self._descriptors)}, got {chosen}")
        self._take_first(chosen)

    def _attach(self, worker: int) -> Any:
        """The receiver's end of its mailbox."""
        self._wakeup, fds = self._descriptors.take(worker)
        return self.mailbox.attach(self._described[worker], *fds)

    def _take_first(self, worker: int) -> None:
        """Wait for the first weights."""
        described = self._described[worker]
        expected = {name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in described.items()}
        describe(self._target).select(expected)
        self._box, self.worker_idx = self._attach(worker), worker
        if not self._take_latest():
            self._wait(None)
        self._role = Role.CONNECTED_RECEIVER

    def shutdown(self) -> None:
        """Release this end's resources; a receiver whose sender has shut down gets an error at its next `receive`."""
        self._role = Role.CLOSED
        for box in (self._box, *(self._updater.mailboxes.values() if self._updater else ())):
            if box is not None:
                box.close()
        for bell in self._wakeups.values():
            bell.close()
        self._descriptors.close()
        self._wakeups, self._box, self._updater, self.model, self._target = {}, None, None, None, None
