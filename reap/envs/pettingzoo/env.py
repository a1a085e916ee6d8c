"""`PettingZooWrapper` and `PettingZooEnv`: envs of PettingZoo, several agents in each.

(group, "observation")  [n, ...]      (group, "action")  [n, ...]      (group, "mask")  [n], with use_mask
(group, "reward")       [n, 1]        (group, "done" / "terminated" / "truncated")  [n, 1]
"done" / "terminated" / "truncated"   [1], of all agents together
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from reap.envs.base import EnvBase
from reap.envs.pettingzoo.calls import Moment, calls_to, make_task
from reap.envs.pettingzoo.group import GroupRows, make_group
from reap.envs.pettingzoo.group_map import by_name, checked_map
from reap.envs.row_stepper import Rows
from reap.errors import OptionError, SpecMismatch
from reap.option_values import switch
from reap.recording.buffers import TERMINATED, TRUNCATED, Slot, Stage, after
from reap.recording.layout import Array
from reap.specs import Categorical, Composite, Unbounded, spec_from_space
from reap.specs.fits import Fit

STATE = "state"
FIRST_ROW: Rows = (0,)


class PettingZooWrapper(EnvBase):
    """An env of PettingZoo. The values of the agents of a group are stacked, and `batch[group].batch_size` is `[T, n]`.

    Where all agents act at once (`ParallelEnv`), groups are made by name unless you say otherwise: `"red_0"` and `"red_1"`
    are the group `"red"`. Where they act in turns (`AECEnv`), each is a separate group, and the mask tells whose turn it is.

    Args:
        env: a `pettingzoo.ParallelEnv` or `pettingzoo.AECEnv`.
        return_state: put the env's `state()` under `"state"`.
        group_map: names of groups, each with its agents, or a `MarlGroupMapType`.
        use_mask: put `(group, "mask")`, bool `[n]`, next to the observations: which agents act next. Necessary where agents act
            in turns, and where some leave before the episode ends, or come later: the observations and rewards of absent
            agents are zero, and their flags are set if they have left, and not if they have not come yet.
        categorical_actions: discrete actions are indices, otherwise one-hot.
        seed: the seed of the first reset.
        done_on_any: the episode ends with the first agent that ends, otherwise with the last of those that have come. The
            default is the first where all act at once, the last where they act in turns.
        device: device of the env's TensorDicts.

    Raises:
        ImportError: PettingZoo is not installed.
        OptionError: not an env, agents that cannot be stacked, an AECEnv without `use_mask=True`, a group map
            that leaves agents out.

    Example:
        >>> from pettingzoo.classic.rps.rps import parallel_env
        >>> env = PettingZooWrapper(parallel_env(), use_mask=True)
        >>> env.group_map
        {'player': ['player_0', 'player_1']}
        >>> env.rollout(3)["next", "player", "reward"].shape
        torch.Size([3, 2, 1])
    """

    def __init__(
        self,
        env: Any,
        return_state: bool = False,
        group_map: Any = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        seed: int | None = None,
        done_on_any: bool | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        if done_on_any is not None:
            switch(done_on_any, "done_on_any")
        calls = calls_to(env)
        super().__init__(device=device)
        self.use_mask, self.return_state = switch(use_mask, "use_mask"), switch(return_state, "return_state")
        self.categorical_actions = switch(categorical_actions, "categorical_actions")
        self.wrapped = env
        self._options = {
            "return_state": return_state,
            "group_map": group_map,
            "use_mask": use_mask,
            "categorical_actions": categorical_actions,
            "seed": seed,
            "done_on_any": done_on_any,
            "device": device,
        }
        self.parallel = not calls.needs_mask
        if calls.needs_mask and not use_mask:
            raise OptionError(
                f"{type(env).__name__}: its agents act in turns, so that use_mask=True is necessary: the mask tells whose turn "
                "it is; pettingzoo.utils.conversions.aec_to_parallel(env) has all agents act at once, where the env allows it"
            )
        agents = list(env.possible_agents)
        default = by_name(agents) if self.parallel else {agent: [agent] for agent in agents}
        self.group_map = checked_map(group_map, agents, default)
        self.done_on_any = self.parallel if done_on_any is None else done_on_any
        self._calls, self._seed = calls, seed
        first = calls.reset(seed)
        self._known = set(first.observations)
        self._groups = [
            make_group(name, members, env, first, has_mask=use_mask, categorical=categorical_actions)
            for name, members in self.group_map.items()
        ]
        self._set_specs()

    def _set_specs(self) -> None:
        observation, action, reward, done = Composite(), Composite(), Composite(), Composite()
        for group in self._groups:
            observation = observation.with_(group.name, group.observation_spec[group.name])
            action = action.with_(group.name, group.action_spec[group.name])
            reward = reward.with_(group.name, group.reward_spec)
            done = done.with_(group.name, group.done_spec)
        if self.return_state:
            space = getattr(self.wrapped, "state_space", None)
            example = torch.as_tensor(np.asarray(self.wrapped.state()))
            known = isinstance(space, spaces.Space)
            observation = observation.with_(
                STATE, spec_from_space(space) if known else Unbounded(example.shape, dtype=example.dtype)
            )
        flag = Categorical(2, (1,), dtype=torch.bool)
        self.observation_spec, self.action_spec, self.reward_spec = observation, action, reward
        self.done_spec = Composite({"done": flag, "terminated": flag, "truncated": flag, **dict(done.items())})

    @property
    def agents(self) -> list[str]:
        """The agents that have not ended."""
        return list(self.wrapped.agents)

    @property
    def possible_agents(self) -> list[str]:
        """All agents."""
        return list(self.wrapped.possible_agents)

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write."""
        name = type(self).__name__
        self._rows = [GroupRows(group, stage, slot, self.check, name) for group in self._groups]
        self._rows_of = {agent: rows for group, rows in zip(self._groups, self._rows, strict=True) for agent in group.agents}
        self._terminated, self._truncated = (slot.by_column(after(flag))[:, 0] for flag in (TERMINATED, TRUNCATED))
        if self.return_state:
            self._stage_state, self._slot_state = stage.arrays[(STATE,)], slot.by_column(after((STATE,)))
            self._state_fit = Fit((STATE,), self._stage_state.shape, self._stage_state.dtype)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Start a new episode."""
        seed, self._seed = self._seed, None
        moment = self._calls.reset(seed)
        self._known = set(moment.observations)
        for group in self._rows:
            group.begin(moment)
        if self.return_state:
            self._stage_state[...] = self._state_fit.take(self.wrapped.state(), "env.state")

    def step_rows(self, rows: Rows | None, t: int) -> Rows | None:
        """Step with the actions of column `t`; return the row if the episode ended."""
        try:
            moment = self._calls.step(lambda agent: self._rows_of[agent].action(agent, t))
            return self._write(moment, t)
        except SpecMismatch as error:
            raise error.at(f"column {t}") from error.__cause__

    def _write(self, moment: Moment, t: int) -> Rows | None:
        self._known.update(moment.observations)
        flags = [group.write(t, moment, self._known) for group in self._rows]
        if self.return_state:
            self._slot_state[t] = self._state_fit.take(self.wrapped.state(), "env.state")
        done, terminated, truncated = (self._of_all([group[place] for group in flags]) for place in range(3))
        if not done:
            return None
        # Some agents terminated and others truncated: their episode was cut.
        self._terminated[t], self._truncated[t] = terminated, truncated or not terminated
        return FIRST_ROW

    def _of_all(self, flags: list[Array]) -> bool:
        """Combine the flags of all groups into one."""
        decide = any if self.done_on_any else all
        return decide(bool(decide(group)) for group in flags)

    def _set_seed(self, seed: int) -> None:
        self._seed = seed

    def get_attribute(self, name: str) -> Any:
        """An attribute of PettingZoo's env, or of this one."""
        return getattr(self.wrapped, name) if hasattr(self.wrapped, name) else getattr(self, name)

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of PettingZoo's env."""
        return getattr(self.wrapped, name)(*args)

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the env; see `EnvBase.close`."""
        was_open = not self.closed
        super().close(raise_if_closed=raise_if_closed)
        if was_open:
            self.wrapped.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), (self.wrapped,), self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.wrapped}, {self.group_map})"


class PettingZooEnv(PettingZooWrapper):
    """An env of PettingZoo by the name of its task; the options are those of `PettingZooWrapper`.

    Args:
        task: `"rps_v2"`, or with its family `"classic/rps_v2"`.
        parallel: all agents act at once; a task without such a form is converted by PettingZoo's `aec_to_parallel`. Otherwise
            they act in turns.
        return_state: see `PettingZooWrapper`, as for those that follow.
        group_map: names of groups, each with its agents, or a `MarlGroupMapType`.
        use_mask: record which agents act next.
        categorical_actions: discrete actions are indices, otherwise one-hot.
        seed: the seed of the first reset.
        done_on_any: the episode ends with the first agent that ends, otherwise with the last of those that have come.
        device: device of the env's TensorDicts.
        kwargs: arguments of the task.

    Raises:
        ImportError: PettingZoo, or a package that the task needs, is not installed.
        OptionError: there is no such task; and as for `PettingZooWrapper`.

    Example:
        >>> env = PettingZooEnv("rps_v2", parallel=True, num_actions=5)
        >>> env.full_action_spec["player", "action"]
        Categorical(n=5, shape=(2,), dtype=int64)
    """

    def __init__(
        self,
        task: str,
        parallel: bool,
        return_state: bool = False,
        group_map: Any = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        seed: int | None = None,
        done_on_any: bool | None = None,
        *,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> None:
        self._recipe = (task, parallel, kwargs)
        super().__init__(
            make_task(task, parallel=parallel, keywords=kwargs),
            return_state,
            group_map,
            use_mask,
            categorical_actions,
            seed,
            done_on_any,
            device=device,
        )

    def another(self) -> EnvBase:
        """A new env of the same task and options."""
        task, parallel, kwargs = self._recipe
        return _rebuilt(type(self), (task, parallel), {**self._options, **kwargs})

    def __reduce__(self) -> tuple[Any, ...]:
        task, parallel, kwargs = self._recipe
        return _rebuilt, (type(self), (task, parallel), {**self._options, **kwargs})

    def __repr__(self) -> str:
        return f"PettingZooEnv({self._recipe[0]}, {self.group_map})"


def _rebuilt(cls: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return cls(*arguments, **options)
