"""`Workers`: all that a collector knows of those who record its rollouts, in this process or elsewhere."""

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
    """Memory that some workers record in."""

    def take(self) -> int:
        """The number of a free slot."""
        ...

    def give_back(self, slot: int) -> None:
        """Return a slot that was taken and is not delivered."""
        ...

    def rows_of(self, worker: int, slot: int) -> dict[Key, Array]:
        """A worker's own rows of a slot, `[rows, T, *value]` under each key."""
        ...

    def deliver(self, slot: int) -> TensorDictBase:
        """The batch that was recorded in a slot."""
        ...


class Workers(Protocol):
    """Those who record a collector's rollouts.

    Attributes:
        group: carries commands to them.
        infos: what each of them tells of itself.
        policy: the policy that was given, or that acts in this process.
        held: its weights, in this process.
        env: the env, if it is in this process.
        next_leaf: the number, for the ids, of the next worker: no two that ever recorded have the same.
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
        """The slots that a worker records in."""
        ...

    def starts(self) -> list[int]:
        """The first row of each worker, where the rows of all are counted."""
        ...

    def has_weights(self, worker: int) -> bool:
        """Whether weights are sent to this worker, so that its policy can be older than the collector's."""
        ...

    def make_updater(self, given: Any = None) -> WeightUpdaterBase | None:
        """Make the object that sends weights to them; None if there are none.

        Args:
            given: an updater, or a constructor of one, in place of that of the options.
        """
        ...

    def take_env(self, given: Any) -> None:
        """Record from another env of the same layout; the next rollout begins new episodes.

        Raises:
            OptionError: the envs are not in this process.
            SpecMismatch: an env of another layout.
        """
        ...

    def prepare_background(self, updater: WeightUpdaterBase | None) -> PendingWeightUpdater | None:
        """Make ready to record in a thread; the updater that sends weights there, in place of this one."""
        ...

    @property
    def place_of(self) -> Callable[[int], Place] | None:
        """Where each of them is, if that is not this machine."""
        ...

    @property
    def joining(self) -> Collection[int]:
        """Workers that were launched and have not joined yet: nothing is asked of them, and their replies go to `join`."""
        ...

    def join(self, worker: int, reply: Any) -> Done | None:
        """Take a reply of a worker that is joining; its rollout, if it has joined, and those before it had completed one."""
        ...

    def complete(self, worker: int, done: Done) -> Done | None:
        """A reply, with the columns that a failed worker left in the same rollout; None if its successor records the rest."""
        ...

    def recover(self, failure: WorkerError, command: Collect | None) -> Done | None:
        """Restart a failed worker, or raise its failure.

        Args:
            failure: the failure.
            command: the rollout that it interrupted, if any.

        Returns:
            The rollout, where the worker had completed it.
        """
        ...

    def recover_all(self) -> None:
        """Restart all workers that are down between two rollouts, or raise their failures."""
        ...

    def seed(self, seed: int, static: bool) -> int:
        """Seed them, one after the other; the seed that follows in the chain."""
        ...

    def check_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Refuse states that do not fit."""
        ...

    def set_states(self, states: Sequence[Mapping[str, Any]], restarts: int, next_leaf: int | None) -> None:
        """Continue from these states; the weights of each are its own.

        Args:
            states: one for each worker.
            restarts: workers that were restarted before.
            next_leaf: the number, for the ids, of the next worker; None if the state does not tell.
        """
        ...

    def values(self, replies: list[Any]) -> Any:
        """What a question to each of them is answered with: one value, or a list of them."""
        ...

    def close(self, timeout: float | None, close_env: bool) -> None:
        """End them and release what belongs to them; a second call does nothing."""
        ...

    def withdraw(self) -> None:
        """Release what was made: the collector cannot be built."""
        ...

    def patience(self, timeout: float | None) -> float | None:
        """Seconds to wait for a rollout that is under way in the background; None waits for its end."""
        ...

    def kill(self) -> bool:
        """End them at once, if that ends a rollout that is under way; whether it does."""
        ...

    def text(self) -> str:
        """How they are shown in the collector's `repr`."""
        ...
