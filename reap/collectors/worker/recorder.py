"""`RolloutRecorder`: records rollouts of one env with one policy or random actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from tensordict.nn.probabilistic import InteractionType, set_interaction_type

from reap.collectors.state import as_state_dict_gave
from reap.collectors.worker.attribute_paths import resolve
from reap.collectors.worker.commands import Collect, Done, WorkerInfo
from reap.collectors.worker.exploration import BackgroundExploration
from reap.collectors.worker.journal import Journal
from reap.collectors.worker.last_frames import mark_last
from reap.envs.base import EnvBase
from reap.errors import shown
from reap.keys import Key
from reap.policy.actors.random import RandomActor
from reap.policy.base import PolicyActor, RetainedInputs
from reap.policy.contents.retained_inputs import detach_inference_tensors
from reap.recording.buffers import STEP_COUNT, VERSION, Slot
from reap.recording.layout import Field
from reap.rollout.loop import Rollout
from reap.seeds import next_seed
from reap.weights.base import load_weights
from reap.workers.progress import LEAVE, STOP

SPECS = ("observation_spec", "action_spec", "reward_spec", "done_spec")
"""The specs that a collector exposes."""

Fill = Callable[[Slot, Any, int], int]
"""Records an actor's rollout in a slot, from a column on; returns the number of valid frames."""


class RolloutRecorder:
    """A rollout and its actors; see `Recorder`.

    Args:
        rollout: the env's rollout.
        fields: one frame's value under each key of a slot.
        columns: number of time steps in a slot.
        random: the actor for random actions.
        exploration: how probabilistic policies choose.
        actor_kind: a word for how the policy is called.
        fill: records a rollout of the policy in a slot; the rollout's own `fill` if None.
        remembers: the policy has a recurrent state: all envs start new episodes after random actions.
        journal: notes what `record_episodes` needs; None without it.

    Attributes:
        rollout: as given.
        remembers: as given.
        is_in_thread: rollouts leave torch's generator alone, because all threads of the process share it. See `move_to_thread`.
        marks_last: the last frame of each row is marked truncated.
        close_env: `close` closes the env.
    """

    def __init__(
        self,
        rollout: Rollout,
        fields: Mapping[Key, Field],
        columns: int,
        *,
        random: RandomActor,
        exploration: InteractionType | None,
        actor_kind: str,
        fill: Fill | None = None,
        remembers: bool = False,
        journal: Journal | None = None,
    ) -> None:
        self.rollout = rollout
        self.remembers = remembers
        self.is_in_thread = self.marks_last = False
        self.close_env = True
        self._fields, self._columns = fields, columns
        self._random, self._actor_kind, self._chosen = random, actor_kind, exploration
        self._exploration: AbstractContextManager[Any] = set_interaction_type(exploration)
        self._background: BackgroundExploration | None = None
        self._fill_by_policy: Fill = rollout.fill if fill is None else fill
        self._journal = journal
        self._actor: PolicyActor | None = None
        self._kept: RetainedInputs | None = None
        self._policy: Any = None
        self._grad_mode: type[AbstractContextManager[Any]] = torch.inference_mode
        self._random_state: torch.Tensor | None = None
        self._following_seed: int | None = None
        self._static_seed = False
        self._was_random = False
        self._walked = False

    def act_with(self, actor: PolicyActor | None, kept: RetainedInputs | None, policy: Callable[..., Any]) -> None:
        """Act with a policy.

        Args:
            actor: calls it; None if all actions are random.
            kept: tells whether the policy keeps its inputs; None if it gets copies anyway.
            policy: the policy itself.
        """
        self._actor, self._kept, self._policy = actor, kept, policy
        if actor is not None and actor.enables_grad:
            self._grad_mode = torch.no_grad

    def move_to_thread(self) -> None:
        """Prepare for rollouts in a thread, next to others in this process."""
        self.is_in_thread = True
        if self._background is None:
            self._exploration = self._background = BackgroundExploration(self._chosen)

    @property
    def env(self) -> EnvBase:
        """The env."""
        return self.rollout.env

    def describe(self) -> WorkerInfo:
        """The description of env and policy; see `Recorder`."""
        env = self.env
        return WorkerInfo(
            self._fields,
            tuple(env.batch_size),
            self._columns,
            {name: getattr(env, name) for name in SPECS},
            shown(env),
            self._actor_kind,
            counts_steps=STEP_COUNT in self._fields and STEP_COUNT not in env.fields_of_stage(),
            resets_itself=env.resets_itself,
            remembers=self.remembers,
        )

    def collect(self, command: Collect, slot: Slot, version: int) -> Done:
        """Record a rollout; see `Recorder`."""
        rollout = self.rollout
        random = command.random or self._actor is None
        if self._was_random and not random and self.remembers:
            rollout.restart()
        self._was_random = command.random
        if command.fresh:
            rollout.restart(rollout.tracker.begun)
        env_seconds, policy_seconds = rollout.env_seconds, rollout.policy_seconds
        if VERSION in slot.fields:
            slot.by_row(VERSION)[...] = version
        if self._journal is not None:
            self._journal.begin(rollout)
        callers_state = self._begin_random_state()
        try:
            with self._grad_mode(), self._exploration:
                if random:
                    frames = rollout.fill(slot, self._random, command.start)
                else:
                    frames = self._fill_by_policy(slot, self._actor, command.start)
        finally:
            self._end_random_state(callers_state)
        if not random:
            self._look_after_policy()
        episodes = rollout.tracker.take_finished()
        notes = None if self._journal is None else self._journal.close(rollout, slot, episodes)
        if self.marks_last:
            mark_last(slot)
        return Done(
            command.slot,
            frames,
            version,
            episodes,
            rollout.env_seconds - env_seconds,
            rollout.policy_seconds - policy_seconds,
            rollout.columns_done,
            rollout.outside,
            bool(rollout.control[STOP] & LEAVE) and rollout.columns_done < slot.columns,
            notes=notes,
        )

    def _begin_random_state(self) -> torch.Tensor | None:
        """Give torch's generator this recorder's own state, if there is one; return the caller's state."""
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

    def weights_changed(self, version: int) -> None:
        """Nothing to do: the policy that acts is the one whose weights changed."""

    def reset(self, rows: Sequence[int] | None) -> None:
        """Start new episodes with the next rollout; see `Recorder`."""
        self.rollout.restart(rows)

    def seed(self, seed: int, static: bool) -> int:
        """Seed env and generators; see `Recorder`."""
        following = self.env.set_seed(seed, static)
        # What a resume seeds with, where envs have no state: never a seed that was given before.
        self._following_seed = next_seed(seed) if static else following
        self._static_seed = static
        self._random_state = torch.Generator().manual_seed(seed).get_state()
        self._random.generator.manual_seed(next_seed(seed))
        self.rollout.restart()
        return following

    def state(self) -> dict[str, Any]:
        """Everything needed to resume, without weights; see `Recorder`."""
        return {
            "leaf": self.rollout.tracker.leaf,
            "rollout": self.rollout.state(),
            "random_state": None if self._random_state is None else self._random_state.clone(),
            "warm_up_state": self._random.generator.get_state(),
            "was_random": self._was_random,
            "following_seed": self._following_seed,
            "static_seed": self._static_seed,
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise SpecMismatch for a state that cannot be loaded; see `Recorder`."""
        with as_state_dict_gave():
            self.rollout.check_state(state["rollout"])
            for name in ("random_state", "warm_up_state"):
                if state[name] is not None:
                    torch.Generator().set_state(state[name])
            kinds = [type(state[name]) for name in ("was_random", "static_seed")] + [type(state.get("leaf", 0))]
            if kinds != [bool, bool, int] or type(state["following_seed"]) not in {int, type(None)}:
                raise TypeError(f"{kinds}, {type(state['following_seed'])}")

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; see `Recorder`."""
        tracker = self.rollout.tracker
        self.rollout.restore(state["rollout"])
        if self._journal is not None:
            self._journal.start_again()
        tracker.leaf = state.get("leaf", tracker.leaf)
        self._random_state = state["random_state"]
        self._random.generator.set_state(state["warm_up_state"])
        self._was_random = state["was_random"]
        seed = self._following_seed = state["following_seed"]
        self._static_seed = state["static_seed"]
        if state["rollout"]["env"] is None and seed is not None:
            # New episodes begin, and not those that the seed gave before.
            following = self.env.set_seed(seed, self._static_seed)
            self._following_seed = next_seed(seed) if self._static_seed else following

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Call the env or the policy; see `Recorder`."""
        return getattr(self, name)(*arguments)

    def env_attribute(self, name: str) -> Any:
        """An attribute of the env."""
        return self.env.own_attribute(name)

    def load_model(self, path: str, weights: Mapping[str, Any]) -> None:
        """Copy weights into a model of the env or the policy.

        Args:
            path: its path of attributes from a collector, such as `env.transform[0].module`.
            weights: by name.
        """
        load_weights(resolve(self, path, self._attribute), weights)

    def _attribute(self, of: Any, name: str) -> Any:
        if of is self:
            return self._policy if name == "policy" else self.env if name == "env" else getattr(self, name)
        return self.env.get_attribute(name) if of is self.env else getattr(of, name)

    def call_env(self, name: str, *args: Any) -> Any:
        """Call a method of the env and return its result."""
        return self.env.call(name, *args)

    def policy_attribute(self, name: str) -> Any:
        """An attribute of the policy."""
        return getattr(self._policy, name)

    def close(self) -> None:
        """Close the env, unless it must stay open."""
        if self._background is not None:
            self._background.end()
        if self.close_env:
            self.env.close()
