"""`WeightUpdaterBase`: gets weights, may change them, and sends them to each worker.

push_weights(given)
    _get_server_weights()          if no weights were given
    for each worker
        _maybe_map_weights(...)    change the weights
        _sync_weights_with_worker  send them
    post hooks
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import ReferenceType, ref

from tensordict import TensorDictBase

from reap.errors import OptionError
from reap.policy.contents.held import Held, held_by
from reap.system.interrupts import deferring_interrupts
from reap.weights.attributes import ATTRIBUTES, Changes
from reap.weights.weight_layout import copy_weights, describe, extra_states, load_extra_states, weights_by_name

Weights = Any
Worker = Any


class WeightUpdaterBase(ABC):
    """Sends weights to the workers of a collector; a subclass defines where they come from and how they are sent.

    A subclass need not call `super().__init__()`.
    """

    _collector: ReferenceType[Any] | None = None
    _hooks: tuple[Callable[[], Any], ...] = ()

    @classmethod
    def from_policy(cls, policy: Any) -> WeightUpdaterBase | None:  # noqa: ARG003  for subclasses
        """Make an updater that sends this policy's weights; None if the class cannot be made from a policy alone."""
        return None

    @property
    def collector(self) -> Any:
        """The collector whose workers are updated; None before `register_collector` or after its end."""
        return None if self._collector is None else self._collector()

    @property
    def collectors(self) -> list[Any]:
        """The collector in a list; an empty list where there is none."""
        collector = self.collector
        return [] if collector is None else [collector]

    def increment_version(self) -> None:
        """Increment the version of the collector's policy."""
        for collector in self.collectors:
            collector.increment_version()

    def register_collector(self, collector: Any) -> None:
        """Set the collector whose workers are updated."""
        self._collector = ref(collector)

    def init(self, *args: Any, **kwargs: Any) -> None:  # noqa: B027  for subclasses
        """Receive the arguments of `collector.init_updater`; does nothing unless a subclass overrides it."""

    @property
    def has_hooks(self) -> bool:
        """Whether any post hook is registered."""
        return bool(self._hooks)

    def register_post_hook(self, hook: Callable[[], Any]) -> None:
        """Call `hook()` after each push."""
        self._hooks = (*self._hooks, hook)

    @property
    def post_hooks(self) -> list[Callable[[], Any]]:
        """What is called after each push, in this order."""
        return list(self._hooks)

    def _get_server_weights(self) -> Weights:
        """The weights to send when none are given; by default there are none."""
        return None

    @abstractmethod
    def _sync_weights_with_worker(self, *, worker_id: Worker, server_weights: Weights) -> None:
        """Send weights to one worker."""

    def _maybe_map_weights(self, server_weights: Weights) -> Weights:
        """Change weights before they are sent; by default, leave them unchanged."""
        return server_weights

    def _prepare(self, weights: Weights, workers: Sequence[Worker]) -> Weights:
        """The weights for each of these workers; called once per push, before anything is sent."""
        return weights

    def _hand_over(self, weights: Weights, workers: Sequence[Worker]) -> None:
        for worker in workers:
            self._sync_weights_with_worker(worker_id=worker, server_weights=weights)

    def all_worker_ids(self) -> Sequence[Worker] | None:
        """The workers that are updated by default; None where there is one without an id."""
        return [0]

    def _skip_update(self, worker_id: Worker) -> bool:
        """Whether a worker is left out of a push; by default, none is."""
        return False

    def push_weights(
        self, policy_or_weights: Callable[..., Any] | TensorDictBase | Mapping[str, Any] | None = None, worker_ids: Any = None
    ) -> None:
        """Send weights.

        Args:
            policy_or_weights: a module or a policy, a TensorDict or a state dict; None uses `_get_server_weights`.
            worker_ids: a worker or a list of them; all if None.

        Raises:
            OptionError: a worker that does not exist.
        """
        weights = self._get_server_weights() if policy_or_weights is None else policy_or_weights
        known = self.all_worker_ids()
        named = chosen_workers(worker_ids, [None] if known is None else known)
        chosen = [worker for worker in named if not self._skip_update(worker)]
        mapped = self._prepare(self._maybe_map_weights(weights), chosen)
        self._hand_over(mapped, chosen)
        for hook in self._hooks:
            hook()

    def __call__(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """The same as `push_weights`."""
        self.push_weights(policy_or_weights, worker_ids)


def breaking_off(updater: WeightUpdaterBase | None) -> AbstractContextManager[None]:
    """Defer Ctrl-C during an update if the update only copies weights, so that it cannot be cut off halfway.

    User-defined updaters and hooks may wait for anything, so they can be interrupted.
    """
    is_ours = updater is None or (type(updater).__module__.startswith("reap.") and not updater.has_hooks)
    return deferring_interrupts() if is_ours else nullcontext()


def chosen_workers(worker_ids: Any, known: Sequence[Worker]) -> Sequence[Worker]:
    """The selected workers: one or a list; all if None.

    Raises:
        OptionError: a worker that does not exist.
    """
    chosen = known if worker_ids is None else listed(worker_ids)
    unknown = [worker for worker in chosen if isinstance(worker, bool) or worker not in known]
    if unknown:
        raise OptionError(f"worker_ids: expected some of {list(known)}, got {unknown}")
    return chosen


def listed(worker_ids: Any) -> Sequence[Worker]:
    """One worker, or several, as a sequence."""
    return worker_ids if isinstance(worker_ids, list | tuple | range) else [worker_ids]


class VanillaWeightUpdater(WeightUpdaterBase):
    """Copies weights into a policy in this process.

    Args:
        policy: the policy that acts: a module, or another holder of weights.
        source: where weights come from when none are given; None if the policy is the source itself.
        weight_getter: returns the weights when none are given, in place of `source`.
        policy_weights: what is updated in place, in place of `policy`: a TensorDict of parameters or a dict of tensors.

    Attributes:
        changes: changes of plain attributes, which are sent with the weights.

    Raises:
        OptionError: both `policy` and `policy_weights`, or both `source` and `weight_getter`.

    Example:
        >>> from torch import nn
        >>> policy, trained = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> VanillaWeightUpdater(policy, trained).push_weights()
        >>> bool((policy.weight == trained.weight).all())
        True
    """

    def __init__(
        self,
        policy: Any = None,
        source: Any = None,
        *,
        weight_getter: Callable[[], Weights] | None = None,
        policy_weights: TensorDictBase | Mapping[str, Any] | None = None,
    ) -> None:
        _refuse_both(policy=policy, policy_weights=policy_weights)
        _refuse_both(source=source, weight_getter=weight_getter)
        self._held = held_by(policy)
        self._target: Any = self._held if policy_weights is None else policy_weights
        self._source = None if source is None else held_by(source)
        self._get = weight_getter
        self.changes = Changes(self._held if self._source is None else self._source)

    @classmethod
    def from_policy(cls, policy: Any) -> VanillaWeightUpdater:
        """Make an updater for this policy."""
        return cls(policy)

    def _get_server_weights(self) -> Weights:
        if self._get is not None:
            return self._get()
        return None if self._source is None else self._source.policy

    def _sync_weights_with_worker(self, *, worker_id: Worker = None, server_weights: Weights) -> None:
        if server_weights is None or server_weights is self._held.policy:
            return
        given = as_held(server_weights, self._held)
        load_weights(self._target, given)
        load_extra_states(self._held, {ATTRIBUTES: self.changes.found(given if isinstance(given, Held) else None)})


def _refuse_both(**given: Any) -> None:
    if all(value is not None for value in given.values()):
        raise OptionError(f"VanillaWeightUpdater: expected one of {' and '.join(given)}, got both")


def as_held(weights: Any, held: Held) -> Any:
    """The weights of a policy that was passed as weights for a policy of the same form; other weights unchanged."""
    # A policy may be a dict of a class that can be called.
    if isinstance(weights, Held | TensorDictBase) or (isinstance(weights, Mapping) and not callable(weights)):
        return weights
    return held.of(weights) or weights


def load_weights(policy: Any, weights: Any) -> None:
    """Copy weights, including extra state (`get_extra_state`), into a policy in place.

    Args:
        policy: the receiving policy, as `held_by` returns it, or a module, a TensorDict or a dict of tensors.
        weights: of a policy or module of the same structure, a TensorDict of parameters (nested by module) or a state dict.

    Raises:
        OptionError: anything else was given.
        SpecMismatch: names or shapes differ; nothing is changed then.
    """
    given, own = describe(policy).select(weights), weights_by_name(policy)
    copy_weights([own[name] for name in given], given.values())
    load_extra_states(policy, extra_states(weights))


def check_weights(policy: Any, weights: Any) -> None:
    """Raise OptionError or SpecMismatch if `load_weights` would."""
    describe(policy).select(weights)
