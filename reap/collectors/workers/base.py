"""`Workers`: the interface between a collector and the workers that record its rollouts, in this process or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from tensordict import TensorDictBase

from reap.collectors.stats import Place
from reap.collectors.worker.commands import Collect, Done, WorkerInfo
from reap.errors import WorkerError
from reap.keys import Key
from reap.policy.contents.held import Held
from reap.recording.layout import Array
from reap.weights.base import WeightUpdaterBase
from reap.weights.pending import PendingWeightUpdater
from reap.workers.base import WorkerGroup


class WorkerSlots(Protocol):
    """Memory in which one or more workers record."""

    def take(self) -> int:
        """The number of a free slot."""
        ...

    def give_back(self, slot: int) -> None:
        """Return a slot that was taken but will not be delivered."""
        ...

    def rows_of(self, worker: int, slot: int) -> dict[Key, Array]:
        """A worker's own rows of a slot, `[rows, T, *value]` for each key."""
        ...

    def deliver(self, slot: int) -> TensorDictBase:
        """The batch that was recorded in a slot."""
        ...


class Workers(Protocol):
    """The workers that record a collector's rollouts.

    Attributes:
        group: carries commands to them.
        infos: the description of each worker.
        policy: the policy that was given or that acts in this process.
        held: the policy's weights, in this process.
        env: the env, if it is in this process.
        next_leaf: the next worker's number in trajectory ids; no number is used twice.
    """

    @property
    def group(self) -> WorkerGroup: ...  # noqa: D102

    @property
    def infos(self) -> Sequence[WorkerInfo]: ...  # noqa: D102

    @property
    def policy(self) -> Any: ...  # noqa: D102

    @property
    def held(self) -> Held: ...  # noqa: D102

    @property
    def env(self) -> Any: ...  # noqa: D102

    @property
    def next_leaf(self) -> int: ...  # noqa: D102

    def slots_of(self, worker: int) -> WorkerSlots:
        """The slots in which a worker records."""
        ...

    def starts(self) -> list[int]:
        """The first row of each worker, counted across all workers."""
        ...

    def has_weights(self, worker: int) -> bool:
        """Whether weights are sent to this worker, so that its policy can lag behind the collector's."""
        ...

    def make_updater(self, given: Any = None) -> WeightUpdaterBase | None:
        """Make the object that sends weights to the workers; None without weights.

        Args:
            given: an updater, or a constructor of one, which replaces the one from the options.
        """
        ...

    def take_env(self, given: Any) -> None:
        """Record from another env of the same layout; the next rollout starts new episodes.

        Raises:
            OptionError: the envs are not in this process.
            SpecMismatch: an env of another layout.
        """
        ...

    def prepare_background(self, updater: WeightUpdaterBase | None) -> PendingWeightUpdater | None:
        """Prepare to record in a thread; return the updater that sends weights there, which replaces this one."""
        ...

    @property
    def place_of(self) -> Callable[[int], Place] | None:
        """The location of each worker that is not on this machine."""
        ...

    @property
    def joining(self) -> Collection[int]:
        """Workers that were launched but have not joined: they get no commands, and their replies go to `join`."""
        ...

    def join(self, worker: int, reply: Any) -> Done | None:
        """Handle a reply of a joining worker; once it has joined, return the rollout that failed workers completed before."""
        ...

    def complete(self, worker: int, done: Done) -> Done | None:
        """Complete a reply with columns that a failed worker left in the same rollout; None if a successor records the rest."""
        ...

    def recover(self, failure: WorkerError, command: Collect | None) -> Done | None:
        """Restart a failed worker, or raise its failure.

        Args:
            failure: the failure.
            command: the rollout that it interrupted, if any.

        Returns:
            The rollout, if the worker had completed it.
        """
        ...

    def recover_all(self) -> None:
        """Restart all workers that are down between two rollouts, or raise their failures."""
        ...

    def seed(self, seed: int, static: bool) -> int:
        """Seed the workers, one after the other; return the seed that follows in the chain."""
        ...

    def check_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Check states and refuse those that do not fit."""
        ...

    def set_states(self, states: Sequence[Mapping[str, Any]], restarts: int, next_leaf: int | None) -> None:
        """Resume from these states, each with its own weights.

        Args:
            states: one for each worker.
            restarts: number of earlier restarts.
            next_leaf: the next worker's number in trajectory ids; None if the state lacks it.
        """
        ...

    def values(self, replies: list[Any]) -> Any:
        """The workers' answers to a call: one value, or a list with one for each worker."""
        ...

    def close(self, timeout: float | None, close_env: bool) -> None:
        """End the workers and release their resources; a second call does nothing."""
        ...

    def withdraw(self) -> None:
        """Release everything made so far, because the collector could not be built."""
        ...

    def patience(self, timeout: float | None) -> float | None:
        """Seconds to wait for a rollout in progress in the background; None waits until it ends."""
        ...

    def kill(self) -> bool:
        """End the workers at once if that ends a rollout in progress; return whether it does."""
        ...

    def text(self) -> str:
        """The workers' part of the collector's `repr`."""
        ...
