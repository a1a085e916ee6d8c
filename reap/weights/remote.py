"""`MultiProcessedWeightUpdater`: sends weights to policies of workers, through a mailbox each.

the caller's policy --(on the CPU, checked, packed: once)--> mailbox of worker 0, 1, ... --(at its next rollout)--> its policy
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from signal import SIGINT, raise_signal
from typing import Any

from torch import nn

from reap.errors import OptionError
from reap.policy.contents.held import Held, held_by
from reap.system.interrupts import deferring_interrupts
from reap.weights.attributes import ATTRIBUTES, Changes
from reap.weights.base import WeightUpdaterBase, as_held, load_weights
from reap.weights.mailbox_protocol import Mailbox
from reap.weights.packed import PackedWeights
from reap.weights.weight_layout import WeightLayout, describe, extra_states, weights_by_name


class MultiProcessedWeightUpdater(WeightUpdaterBase):
    """Sends weights to the mailboxes of workers; writes to none of them if the weights do not fit one.

    The policy is only read: it is not moved, shared or wrapped. A push writes the version that the collector has after it;
    without a collector, pushes are counted from 1.

    Args:
        policy: where weights come from when none are given.
        mailboxes: by worker; a plain dict that the collector fills, and changes when a worker is replaced.
        get_server_weights: called for the weights instead of `policy`.
        policy_weights: modules or TensorDicts in this process by worker, which are written in place.

    Example:
        >>> from reap.weights.mailbox import WeightMailbox
        >>> policy = nn.Linear(2, 1)
        >>> updater = MultiProcessedWeightUpdater(policy, {0: WeightMailbox.for_weights(describe(policy))})
        >>> updater.push_weights()
        >>> updater.mailboxes[0].version
        1
    """

    def __init__(
        self,
        policy: Any = None,
        mailboxes: Mapping[int, Mailbox] | None = None,
        *,
        get_server_weights: Callable[[], Any] | None = None,
        policy_weights: Mapping[Any, Any] | None = None,
    ) -> None:
        self.mailboxes: dict[Any, Any] = dict(mailboxes or {})
        self._policy = policy
        self._held = held_by(policy) if callable(policy) else None
        self._changes = Changes(self._held)
        self._get = get_server_weights
        self._targets = {worker: _target(given) for worker, given in (policy_weights or {}).items()}
        self._version = 0
        self._packed: list[tuple[WeightLayout, Any, PackedWeights]] = []

    @classmethod
    def from_policy(cls, policy: Any) -> MultiProcessedWeightUpdater:
        """Make an updater that sends this policy's weights; mailboxes are added later."""
        return cls(policy)

    def serve(self, policy: Any, mailboxes: Mapping[int, Mailbox], known: Mapping[str, Any] | None = None) -> None:
        """Fill in missing arguments from a collector.

        Args:
            policy: its policy; None if the workers made their own.
            mailboxes: its workers' mailboxes.
            known: plain attributes that are equal in all policies that the workers made.
        """
        for worker, mailbox in mailboxes.items():
            self.mailboxes.setdefault(worker, mailbox)
        if self._policy is None:
            self._held = held_by(policy) if policy is not None else None
            self._changes = Changes(self._held, known)
            self._policy = policy if self._get is None else None

    def all_worker_ids(self) -> Sequence[Any]:
        """The workers that have a mailbox or an entry in `policy_weights`."""
        return list(dict.fromkeys((*self.mailboxes, *self._targets)))

    def _get_server_weights(self) -> Any:
        weights = self._policy if self._get is None else self._get()
        if weights is None:
            raise OptionError(
                "weights: expected a module, a TensorDict or a state dict, got None: each worker builds its own policy, so "
                "there is none here to send; use update_policy_weights_(your_policy)"
            )
        return weights

    def _prepare(self, weights: Any, workers: Sequence[Any]) -> dict[str, Any]:
        given = self._as_held(weights)
        # Once for all workers: weights on a GPU come down once.
        prepared = {name: value.detach().cpu() for name, value in weights_by_name(given).items()} | extra_states(given)
        layouts = [self.mailboxes[worker].described for worker in workers if worker in self.mailboxes]
        targets = [describe(self._targets[worker]) for worker in workers if worker in self._targets]
        for layout in distinct([*layouts, *targets]):
            layout.select(prepared)
        prepared[ATTRIBUTES] = self._changes.found(given if isinstance(given, Held) else None)
        self._version = self._version + 1 if self.collector is None else self.collector.policy_version + 1
        self._packed.clear()
        return prepared

    def _as_held(self, weights: Any) -> Any:
        if self._held is not None:
            return as_held(weights, self._held)
        return held_by(weights) if callable(weights) else weights

    def _hand_over(self, weights: Any, workers: Sequence[Any]) -> None:
        with deferring_interrupts():
            for worker in workers:
                self._hand_over_to(worker, weights)
        self._packed.clear()

    def _packed_for(self, layout: WeightLayout, weights: Any) -> PackedWeights:
        """The weights packed for mailboxes of a layout, once per push."""
        for known, given, packed in self._packed:
            if given is weights and known == layout:
                return packed
        self._packed.append((layout, weights, PackedWeights(layout, weights)))
        return self._packed[-1][-1]

    def _hand_over_to(self, worker: Any, weights: Any) -> None:
        try:
            self._sync_weights_with_worker(worker_id=worker, server_weights=weights)
        except KeyboardInterrupt:
            # It came while the worker was copying what it had before. All workers get these, and it is raised afterwards.
            self._sync_weights_with_worker(worker_id=worker, server_weights=weights)
            raise_signal(SIGINT)

    def _sync_weights_with_worker(self, *, worker_id: Any, server_weights: Any) -> None:
        if worker_id in self.mailboxes:
            box = self.mailboxes[worker_id]
            box.send(self._packed_for(box.described, server_weights), self._version)
        if worker_id in self._targets:
            load_weights(self._targets[worker_id], server_weights)


def distinct(layouts: Iterable[WeightLayout]) -> list[WeightLayout]:
    """Each of these layouts once."""
    found: list[WeightLayout] = []
    for layout in layouts:
        if layout not in found:
            found.append(layout)
    return found


def _target(given: Any) -> Any:
    return held_by(given) if isinstance(given, nn.Module) else given
