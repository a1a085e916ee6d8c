"""What a worker does for a collector: commands of reinforcement learning, carried out on a rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from reap.collectors.state import as_state_dict_gave
from reap.envs.base import EnvBase
from reap.keys import Key
from reap.policy.actors.random import RandomActor
from reap.policy.base import PolicyActor, RetainedInputs
from reap.policy.contents.retained_inputs import detach_inference_tensors
from reap.recording.buffers import VERSION, Slot
from reap.recording.layout import Array
from reap.recording.trajectories import Episode
from reap.rollout.loop import Rollout
from reap.seeds import next_seed
from reap.specs.fits import Outside
from reap.workers.base import Call


@dataclass(frozen=True)
class Collect:
    """Record a rollout in a slot.

    Attributes:
        slot: the slot's number.
        random: random actions instead of the policy's.
        fresh: begin new episodes first, where any frame was recorded of the present ones.
        version: the version of the policy's weights.
        start: the first column that is recorded, where another worker recorded those before.
    """

    slot: int
    random: bool
    fresh: bool
    version: int
    start: int = 0


@dataclass(frozen=True)
class Reset:
    """Begin new episodes in these rows (None: all) with the next rollout."""

    rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Seed:
    """Seed envs and generators; the reply is the next seed."""

    seed: int
    static: bool


@dataclass(frozen=True)
class GetState:
    """Reply with what the worker needs to go on: tensors, numbers and lists."""


@dataclass(frozen=True)
class SetState:
    """Go on from a worker's state; one that does not fit is refused, and changes nothing."""

    harmless: ClassVar[bool] = True
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Done:
    """A recorded rollout.

    Attributes:
        slot: the slot.
        frames: valid frames in it.
        version: version of the policy that acted.
        episodes: episodes that ended.
        env_seconds: time in the env.
        policy_seconds: time in the policy.
        columns: columns recorded; less than the slot has if the rollout was ended early.
        objects: columns of objects, where the slot's memory is shared and cannot hold them.
        outside: numbers that lay outside of their bounds.
    """

    slot: int
    frames: int
    version: int
    episodes: list[Episode]
    env_seconds: float
    policy_seconds: float
    columns: int = 0
    objects: Mapping[Key, Array] | None = None
    outside: Sequence[Outside] = ()


Fill = Callable[[Slot, Any, int], int]
"""Records a rollout of an actor in a slot, from a column on; returns the number of valid frames."""


class CollectHandler:
    """Runs rollouts of one env with one policy, or with random actions.

    Args:
        rollout: the env's rollout.
        slots: where rollouts are recorded, by number.
        actor: the policy; None if all actions are random.
        random: random actions.
        policy: the policy itself.
        kept: tells whether the policy keeps its inputs; None if it gets copies already.
        exploration: makes the context in which the policy acts.
        fill: records a rollout of the policy in a slot; the rollout's own `fill` if None.
        remembers: the policy has a recurrent state: all envs begin anew after random actions.
    """

    def __init__(
        self,
        rollout: Rollout,
        slots: Sequence[Slot],
        actor: PolicyActor | None,
        random: RandomActor,
        policy: Callable[..., Any],
        kept: RetainedInputs | None,
        exploration: Callable[[], AbstractContextManager[Any]],
        fill: Fill | None = None,
        remembers: bool = False,
    ) -> None:
        self.rollout = rollout
        self._fill_by_policy: Fill = rollout.fill if fill is None else fill
        self.close_env = True
        self.remembers = remembers
        self._slots = slots
        self._actor, self._random = actor, random
        self._policy, self._kept, self._exploration = policy, kept, exploration
        self._grad_mode: type[AbstractContextManager[Any]] = torch.inference_mode
        if actor is not None and actor.enables_grad:
            self._grad_mode = torch.no_grad
        self._random_state: torch.Tensor | None = None
        self._following_seed: int | None = None
        self._static_seed = False
        self.is_in_thread = False
        """Rollouts leave torch's generator alone: it is one for all threads of the process."""
        self._was_random = False
        self._walked = False
        self._handlers: dict[type, Callable[[Any], Any]] = {
            Collect: self._collect,
            Reset: self._reset,
            Seed: self._seed,
            GetState: self._get_state,
            SetState: self._set_state,
            Call: self._call,
        }

    @property
    def env(self) -> EnvBase:
        """The env."""
        return self.rollout.env

    def handle(self, command: Any) -> Any:
        """Carry out a command."""
        return self._handlers[type(command)](command)

    def close(self) -> None:
        """Close the env, unless it is to stay open."""
        if self.close_env:
            self.env.close()

    def _collect(self, command: Collect) -> Done:
        rollout, slot = self.rollout, self._slots[command.slot]
        random = command.random or self._actor is None
        if self._was_random and not random and self.remembers:
            rollout.restart()
        self._was_random = command.random
        if command.fresh:
            rollout.restart(rollout.tracker.begun)
        before = rollout.env_seconds, rollout.policy_seconds
        if VERSION in slot.fields:
            slot.by_row(VERSION)[...] = command.version
        frames = self._fill(slot, random, command.start)
        episodes = rollout.tracker.take_finished()
        return Done(
            command.slot,
            frames,
            command.version,
            episodes,
            rollout.env_seconds - before[0],
            rollout.policy_seconds - before[1],
            rollout.columns_done,
            outside=rollout.outside,
        )

    def _fill(self, slot: Slot, random: bool, start: int) -> int:
        callers_state = self._begin_random_state()
        try:
            with self._grad_mode(), self._exploration():
                if random:
                    frames = self.rollout.fill(slot, self._random, start)
                else:
                    frames = self._fill_by_policy(slot, self._actor, start)
        finally:
            self._end_random_state(callers_state)
        if not random:
            self._look_after_policy()
        return frames

    def _begin_random_state(self) -> torch.Tensor | None:
        """Have torch's generator in this handler's own state, if it has one; the caller's."""
        if self._random_state is None or self.is_in_thread:
            return None
        callers_state = torch.get_rng_state()
        torch.set_rng_state(self._random_state)
        return callers_state

    def _end_random_state(self, callers_state: torch.Tensor | None) -> None:
        if callers_state is not None:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(callers_state)

    def _look_after_policy(self) -> None:
        if self._actor is not None and self._kept is not None and self._kept.found():
            self._actor.read_copies()
            self._kept = None
        if not self._walked:
            self._walked = True
            if detach_inference_tensors(self._policy):
                self._grad_mode = torch.no_grad

    def act_with(self, actor: PolicyActor | None, kept: RetainedInputs | None, policy: Callable[..., Any]) -> None:
        """Act with another policy: a private copy."""
        self._actor, self._kept, self._policy = actor, kept, policy

    def _reset(self, command: Reset) -> None:
        self.rollout.restart(command.rows)

    def _seed(self, command: Seed) -> int:
        following = self.env.set_seed(command.seed, command.static)
        # What a resume seeds with, where envs have no state: never a seed that was given before.
        self._following_seed = next_seed(command.seed) if command.static else following
        self._static_seed = command.static
        self._random_state = torch.Generator().manual_seed(command.seed).get_state()
        self._random.generator.manual_seed(next_seed(command.seed))
        self.rollout.restart()
        return following

    def _get_state(self, command: GetState) -> dict[str, Any]:
        return {
            "rollout": self.rollout.state(),
            "random_state": None if self._random_state is None else self._random_state.clone(),
            "warm_up_state": self._random.generator.get_state(),
            "was_random": self._was_random,
            "following_seed": self._following_seed,
            "static_seed": self._static_seed,
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise SpecMismatch for a state that cannot be taken, before any of it is."""
        with as_state_dict_gave():
            self.rollout.check_state(state["rollout"])
            for name in ("random_state", "warm_up_state"):
                if state[name] is not None:
                    torch.Generator().set_state(state[name])
            kinds = {name: type(state[name]) for name in ("was_random", "static_seed", "following_seed")}
            if (kinds["was_random"], kinds["static_seed"]) != (bool, bool) or kinds["following_seed"] not in {int, type(None)}:
                raise TypeError(f"{kinds}")

    def _set_state(self, command: SetState) -> None:
        state = command.state
        self.check_state(state)
        self.rollout.restore(state["rollout"])
        self._random_state = state["random_state"]
        self._random.generator.set_state(state["warm_up_state"])
        self._was_random = state["was_random"]
        seed = self._following_seed = state["following_seed"]
        self._static_seed = state["static_seed"]
        if state["rollout"]["env"] is None and seed is not None:
            # Episodes begin anew, and not with those that the seed gave before.
            following = self.env.set_seed(seed, self._static_seed)
            self._following_seed = next_seed(seed) if self._static_seed else following

    def _call(self, command: Call) -> Any:
        return getattr(self, command.name)(*command.arguments)

    def env_attribute(self, name: str) -> Any:
        """The value of an attribute of the env."""
        return self.env.get_attribute(name)

    def call_env(self, name: str, *args: Any) -> Any:
        """What a method of the env returns."""
        return self.env.call(name, *args)

    def policy_attribute(self, name: str) -> Any:
        """The value of an attribute of the policy."""
        return getattr(self._policy, name)
