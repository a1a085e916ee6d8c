"""`Group`: agents whose values are stacked under one key, and the arrays of their rows.

    agents  left, right      values of one agent  ->  row i of (group, "observation") [n, ...], (group, "reward") [n, 1], ...

Rows of absent agents hold zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from reap.envs.gymnasium.values import ActionLeaf, ObservationLeaf, action_leaves, assemble, space_leaves
from reap.envs.pettingzoo.calls import Moment
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.recording.buffers import FLAGS, Slot, Stage, after
from reap.recording.layout import Array
from reap.specs import Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Spec, Unbounded, spec_from_space
from reap.specs.fits import Check, Fit, LooseFit, as_array, one_flag, one_number

MASK, ACTION_MASK = "mask", "action_mask"


@dataclass(frozen=True)
class Group:
    """The format in which the agents of one group are written into rows.

    Attributes:
        name: its key.
        agents: its agents, one for each row.
        observations: leaves of an agent's observation.
        infos: names of an agent's infos, with their shapes.
        actions: leaves of an agent's action.
        action_space: the space of an agent's action.
        observation_spec: the spec of all its agents' observations.
        action_spec: the spec of all its agents' actions.
        has_action_mask: the env provides masks of allowed actions.
        has_mask: the group records which agents act next.
    """

    name: str
    agents: tuple[str, ...]
    observations: tuple[ObservationLeaf, ...]
    infos: Mapping[str, tuple[int, ...]]
    actions: tuple[ActionLeaf, ...]
    action_space: Any
    observation_spec: Composite
    action_spec: Composite
    has_action_mask: bool
    has_mask: bool

    @property
    def reward_spec(self) -> Composite:
        """The rewards of its agents."""
        size = len(self.agents)
        return Composite(reward=Unbounded((size, 1), dtype=torch.float32), shape=(size,))

    @property
    def done_spec(self) -> Composite:
        """The flags of its agents."""
        size = len(self.agents)
        return Composite({flag[0]: Categorical(2, (size, 1), dtype=torch.bool) for flag in FLAGS}, shape=(size,))


def make_group(name: str, agents: Sequence[str], env: Any, first: Moment, *, has_mask: bool, categorical: bool) -> Group:
    """Make the group of these agents.

    Args:
        name: its key.
        agents: its agents.
        env: the env, which provides the spaces of each agent.
        first: the result of a reset.
        has_mask: record which agents act next.
        categorical: discrete actions are indices, otherwise one-hot.

    Raises:
        OptionError: agents have different spaces, or spaces of an unsupported kind.
    """
    infos = [first.infos.get(agent, {}) for agent in agents]
    observed = [_without_mask(env.observation_space(agent)) for agent in agents]
    acted = [env.action_space(agent) for agent in agents]
    size, key = len(agents), (name, "observation")
    leaves = [space_leaves(space, key, categorical=False) for space, _ in observed]
    decoders = [action_leaves(space, (name, "action"), categorical=categorical) for space in acted]
    spec = _stacked(name, [{leaf.key: spec_from_space(leaf.space) for leaf in one} for one in leaves], size)
    action = _stacked(
        name, [{leaf.key: spec_from_space(leaf.space, categorical=categorical) for leaf in one} for one in decoders], size
    )
    has_action_mask = any(shows for _, shows in observed) or any(ACTION_MASK in info for info in infos)
    shapes = _shapes_of(infos)
    for info, shape in shapes.items():
        spec = spec.with_((name, "info", info), Unbounded((size, *shape), dtype=torch.float32))
    if has_action_mask:
        spec = spec.with_((name, ACTION_MASK), _mask_spec(name, action))
    if has_mask:
        spec = spec.with_((name, MASK), Categorical(2, (size,), dtype=torch.bool))
    return Group(
        name=name,
        agents=tuple(agents),
        observations=tuple(leaves[0]),
        infos=shapes,
        actions=tuple(decoders[0]),
        action_space=acted[0],
        observation_spec=spec,
        action_spec=action,
        has_action_mask=has_action_mask,
        has_mask=has_mask,
    )


def _without_mask(space: Any) -> tuple[Any, bool]:
    """An observation space without its action mask, and whether it had one."""
    if not (isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces):
        return space, False
    return spaces.Dict({name: part for name, part in space.spaces.items() if name != ACTION_MASK}), True


def _stacked(name: str, specs: Sequence[Mapping[Key, Spec]], size: int) -> Composite:
    """The specs of several agents stacked into one, `[n, ...]` each.

    Raises:
        OptionError: they have different keys, shapes, dtypes or choices.
    """
    tree = Composite({name: Composite(shape=(size,))})
    if any(one.keys() != specs[0].keys() for one in specs):
        raise _different(name, [sorted(map(str, map(plain, one))) for one in specs])
    for key, first in specs[0].items():
        each = [one[key] for one in specs]
        if all(one == first for one in each):
            tree = tree.with_(key, first.expand(size, *first.shape))
            continue
        if not all(
            isinstance(one, Bounded | Unbounded) and one.shape == first.shape and one.dtype == first.dtype for one in each
        ):
            raise _different(name, each)
        low, high = (torch.stack([_bound(one, side) for one in each]) for side in ("low", "high"))
        tree = tree.with_(key, Bounded(low, high, (size, *first.shape), dtype=first.dtype))
    return tree


def _bound(spec: Any, side: str) -> torch.Tensor:
    """The bounds of the numbers of one agent, on one side."""
    if isinstance(spec, Bounded):
        return (spec.low if side == "low" else spec.high).expand(spec.shape)
    if not spec.dtype.is_floating_point:
        limits = torch.iinfo(spec.dtype)
        return torch.full(spec.shape, limits.min if side == "low" else limits.max, dtype=spec.dtype)
    return torch.full(spec.shape, -torch.inf if side == "low" else torch.inf, dtype=spec.dtype)


def _different(name: str, found: Sequence[Any]) -> OptionError:
    return OptionError(
        f"group {name!r}: expected agents with equal spaces, whose values can be stacked, found {list(found)}; put agents with "
        "different spaces into groups of their own: group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT"
    )


def _mask_spec(name: str, actions: Composite) -> Spec:
    """The spec of the masks of the choices of all agents, `[n, choices]`."""
    leaf = actions.get((name, "action"))
    if isinstance(leaf, OneHot | MultiOneHot):
        return Categorical(2, leaf.shape, dtype=torch.bool)
    if isinstance(leaf, Categorical):
        return Categorical(2, (*leaf.shape, leaf.n), dtype=torch.bool)
    if isinstance(leaf, MultiCategorical):
        return Categorical(2, (*leaf.shape[:-1], int(leaf.nvec.sum())), dtype=torch.bool)
    raise OptionError(f"group {name!r}: expected an action mask for choices only, found one for {leaf}; drop it in a wrapper")


def _shapes_of(infos: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """The names of infos that are numbers, and their shapes."""
    found: dict[str, tuple[int, ...]] = {}
    for info in infos:
        for name, value in info.items():
            array = as_array(value)
            if name != ACTION_MASK and array is not None and array.dtype.kind in "biuf":
                found.setdefault(str(name), array.shape)
    return found


class GroupRows:
    """The arrays of one group in a stage and a slot.

    Args:
        group: the group.
        stage: the policy's inputs.
        slot: where a rollout is recorded.
        check: how closely values are checked.
        env: the name of the env in messages.
    """

    def __init__(self, group: Group, stage: Stage, slot: Slot, check: Check, env: str) -> None:
        self._group, self._env = group, env
        keys: list[Key] = [leaf.key for leaf in group.observations]
        keys += [(group.name, "info", name) for name in group.infos]
        keys += [(group.name, ACTION_MASK)] * group.has_action_mask
        self._keys = keys + [(group.name, MASK)] * group.has_mask
        kind = LooseFit if check == "first" else Fit
        self._fits = [kind(key, stage.arrays[key].shape[1:], stage.arrays[key].dtype) for key in keys]
        self._stage = [stage.arrays[key] for key in self._keys]
        self._next = [slot.by_column(after(key)) for key in self._keys]
        self._stage_flags = [stage.arrays[group.name, *flag] for flag in FLAGS]
        self._flags = [slot.by_column(after((group.name, *flag))) for flag in FLAGS]
        self._reward = slot.by_column(after((group.name, "reward")))
        self._actions = [slot.by_column(leaf.key) for leaf in group.actions]
        self._rows = {agent: row for row, agent in enumerate(group.agents)}

    def begin(self, moment: Moment) -> None:
        """Write the first values of an episode to the stage."""
        self._write(self._stage, moment, "reset")
        for flags in self._stage_flags:
            flags[...] = False

    def action(self, agent: str, t: int) -> Any:
        """The action of an agent in column `t`."""
        row, group = self._rows[agent], self._group
        parts = [leaf.one(array[t][row]) for leaf, array in zip(group.actions, self._actions, strict=True)]
        return assemble(group.action_space, parts)

    def write(self, t: int, moment: Moment, known: Collection[str]) -> tuple[Array, Array, Array]:
        """Write the results of a step to column `t`.

        Args:
            t: the column.
            moment: the results.
            known: the agents that have been there in this episode; an agent that comes later has not ended yet.

        Returns:
            The done, terminated and truncated flags of the agents that have been there, `[known of n]`.
        """
        self._write([array[t] for array in self._next], moment, "step")
        done, terminated, truncated = (array[t][:, 0] for array in self._flags)
        reward = self._reward[t]
        for row, agent in enumerate(self._group.agents):
            # An agent that left earlier has ended; the env no longer says how.
            is_gone = agent not in moment.observations
            reward[row, 0] = (
                0.0 if is_gone else one_number(self._given(moment.rewards, "reward", agent), f"reward of {agent!r}")
            )
            for flags, given, name in (
                (terminated, moment.terminations, "termination"),
                (truncated, moment.truncations, "truncation"),
            ):
                value = given.get(agent, True) if is_gone else self._given(given, name, agent)
                flags[row] = agent in known and one_flag(value, f"{name} of {agent!r}")
        np.logical_or(terminated, truncated, out=done)
        counted = [agent in known for agent in self._group.agents]
        return done[counted], terminated[counted], truncated[counted]

    def _given(self, values: Mapping[str, Any], name: str, agent: str) -> Any:
        """The value of an agent that has an observation."""
        try:
            return values[agent]
        except KeyError:
            raise SpecMismatch(
                f"{self._env}.step: expected a {name} for each agent with an observation, found none for {agent!r}; return "
                "rewards, terminations and truncations of all agents that acted"
            ) from None

    def _write(self, targets: Sequence[Array], moment: Moment, call: str) -> None:
        group = self._group
        if not group.has_mask and (gone := [agent for agent in group.agents if agent not in moment.observations]):
            raise SpecMismatch(
                f"{self._env}.{call}: expected observations of all agents, found none of {gone}; where agents leave before the "
                "episode ends, or come later, make the env with use_mask=True"
            )
        for row, agent in enumerate(group.agents):
            if agent in moment.observations:
                for target, value in zip(targets, self._values(agent, moment, call), strict=False):
                    target[row] = value
            else:
                for target in targets[: len(self._fits)]:
                    target[row] = 0
                if group.has_action_mask:
                    targets[len(self._fits) - 1][row] = True
            if group.has_mask:
                targets[-1][row] = agent in moment.acting

    def _values(self, agent: str, moment: Moment, call: str) -> list[Any]:
        """The values of a present agent, in writable form."""
        observation, info, group = moment.observations[agent], moment.infos.get(agent, {}), self._group
        where = f"{self._env}.{call}: agent {agent!r}"
        given = [leaf.read(observation) for leaf in group.observations]
        given += [info.get(name, np.zeros(shape, np.float32)) for name, shape in group.infos.items()]
        is_checked = [leaf.is_checked for leaf in group.observations] + [False] * len(group.infos)
        values = [
            value if checked else fit.take(value, where)
            for value, checked, fit in zip(given, is_checked, self._fits, strict=False)
        ]
        if group.has_action_mask:
            values.append(self._allowed(agent, observation, info, agent in moment.acting, where))
        return values

    def _allowed(self, agent: str, observation: Any, info: Any, acts: bool, where: str) -> Any:
        """The mask of actions that an agent may take; all if it does not act, or the env gives no mask."""
        mask = observation.get(ACTION_MASK) if isinstance(observation, Mapping) else None
        mask = info.get(ACTION_MASK) if mask is None else mask
        return self._fits[-1].take(mask, where) if acts and mask is not None else True
