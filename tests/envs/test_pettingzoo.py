"""Envs of PettingZoo: groups, masks, agents that leave, and what torchrl makes of the same envs."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase

from reap import SyncDataCollector, check_env_specs
from reap.envs import MarlGroupMapType, PettingZooEnv, PettingZooWrapper, SerialEnv
from reap.envs.pettingzoo.calls import make_task
from reap.errors import OptionError, SpecMismatch
from reap.specs import Bounded, Categorical
from tests.envs.agents import Walkers


def number_of_agent(tensordict: TensorDictBase) -> TensorDictBase:
    """Each agent's action is its number."""
    for group in ("red", "blue"):
        tensordict[group, "action"] = tensordict[group, "observation"][..., 0].long()
    return tensordict


def task(name: str, *, parallel: bool) -> Any:
    return partial(make_task, name, parallel=parallel, keywords={})


def described(tensordict: TensorDictBase) -> dict[Any, Any]:
    return {
        key: (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else tuple(value.batch_size)
        for key, value in tensordict.items(include_nested=True)
    }


def test_values_of_the_agents_of_a_group_are_stacked() -> None:
    with SyncDataCollector(PettingZooWrapper(Walkers()), number_of_agent, frames_per_batch=5) as collector:
        batch = collector.next()
    assert batch["red"].batch_size == batch["next", "red"].batch_size == (5, 2)
    assert batch["blue"].batch_size == (5, 1)
    assert batch["red", "observation"][3].tolist() == [[0, 3], [1, 3]]
    assert batch["next", "blue", "observation"][3].tolist() == [[2, 4]]
    assert batch["next", "red", "reward"].squeeze(-1).tolist() == [[0, 1]] * 5
    assert batch["red", "info", "steps"].tolist() == [[step, step] for step in range(5)]
    for flag, last in (("done", True), ("terminated", False), ("truncated", True)):
        assert batch["next", "red", flag].squeeze(-1).tolist() == [[False, False]] * 4 + [[last, last]]
        assert batch["next", flag].flatten().tolist() == [False] * 4 + [last]


def test_actions_reach_the_agents_they_are_for() -> None:
    env = PettingZooWrapper(Walkers())
    with SyncDataCollector(env, number_of_agent, frames_per_batch=2) as collector:
        collector.next()
    assert env.wrapped.taken == [{"red_0": 0, "red_1": 1, "blue": 2}] * 2


def test_the_episode_ends_with_the_first_agent_that_ends() -> None:
    with SyncDataCollector(PettingZooWrapper(Walkers((2, 0, 0))), number_of_agent, frames_per_batch=4) as collector:
        batch = collector.next()
    assert batch["next", "terminated"].flatten().tolist() == [False, True] * 2
    assert not batch["next", "truncated"].any()
    assert batch["next", "red", "done"].squeeze(-1).tolist() == [[False, False], [True, False]] * 2
    assert batch["collector", "traj_ids"].tolist() == [0, 0, 1, 1]


def test_agents_that_left_are_masked() -> None:
    env = PettingZooWrapper(Walkers((2, 0, 3), 4), use_mask=True, done_on_any=False)
    with SyncDataCollector(env, number_of_agent, frames_per_batch=4) as collector:
        batch = collector.next()
    assert batch["red", "mask"].tolist() == [[True, True], [True, True], [False, True], [False, True]]
    assert batch["blue", "mask"].flatten().tolist() == [True, True, True, False]
    following = batch["next"]
    assert following["red", "observation"][:, 0].tolist() == [[0, 1], [0, 2], [0, 0], [0, 0]]
    assert following["red", "reward"][:, 1, 0].tolist() == [1, 1, 1, 1]
    assert following["blue", "reward"].flatten().tolist() == [2, 2, 2, 0]
    # An agent that left earlier has all flags set, as with torchrl.
    assert following["red", "terminated"][:, 0, 0].tolist() == [False, True, True, True]
    assert following["red", "truncated"][:, 0, 0].tolist() == [False, False, True, True]
    assert following["done"].flatten().tolist() == [False, False, False, True]
    assert following["truncated"].flatten().tolist() == [False, False, False, True]
    assert env.wrapped.taken[2:] == [{"red_1": 1, "blue": 2}, {"red_1": 1}]


@pytest.mark.parametrize("cut", [2, 3], ids=["before_the_birth", "after_it"])
def test_agents_that_come_later_have_not_ended(cut: int) -> None:
    """`red_1` comes after two steps; the slots of the rollouts change before that, or after."""
    env = PettingZooWrapper(Walkers(length=4, births=(0, 2, 0)), use_mask=True)
    with SyncDataCollector(env, number_of_agent, frames_per_batch=cut) as collector:
        batch = torch.cat([collector.next() for _ in range(4)])[:6]
    assert batch["red", "mask"].tolist() == [
        [True, False],
        [True, False],
        [True, True],
        [True, True],
        [True, False],
        [True, False],
    ]
    assert batch["red", "observation"][:, 1].tolist() == [[0, 0], [0, 0], [1, 2], [1, 3], [0, 0], [0, 0]]
    following = batch["next"]
    for flag, last in (("done", True), ("terminated", False), ("truncated", True)):
        assert following["red", flag][:, 1, 0].tolist() == [False, False, False, last, False, False]
        assert following[flag].flatten().tolist() == [False, False, False, last, False, False]
    assert batch["collector", "traj_ids"].tolist() == [0, 0, 0, 0, 1, 1]
    assert following["red", "reward"][:, 1, 0].tolist() == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("done_on_any", [True, False])
@pytest.mark.parametrize(
    ("lives", "births", "first", "last"),
    [
        ((3, 0, 0), (0, 4, 0), 3, 5),  # red_0 ends before red_1 comes
        ((2, 0, 3), (0, 4, 0), 2, 3),  # all that have come end, and red_1 never comes
        ((2, 4, 4), (0, 2, 0), 2, 4),  # red_1 comes as red_0 ends
        ((3, 4, 0), (0, 0, 9), 3, 4),  # a group of its own that never comes
    ],
)
def test_an_episode_ends_with_agents_that_have_come(done_on_any: bool, lives: Any, births: Any, first: int, last: int) -> None:
    env = PettingZooWrapper(Walkers(lives, births=births), use_mask=True, done_on_any=done_on_any)
    with SyncDataCollector(env, number_of_agent, frames_per_batch=12) as collector:
        done = collector.next()["next", "done"].flatten().tolist()
    length = first if done_on_any else last
    assert done == [step % length == 0 for step in range(1, 13)]


def test_flags_that_an_env_gives_for_agents_that_have_not_come() -> None:
    class Sloppy(Walkers):
        def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
            observations, rewards, _, truncated, infos = super().step(actions)
            return observations, rewards, {agent: agent not in self.agents for agent in self.possible_agents}, truncated, infos

    env = PettingZooWrapper(Sloppy(length=9, births=(0, 2, 0)), use_mask=True)
    with SyncDataCollector(env, number_of_agent, frames_per_batch=4) as collector:
        batch = collector.next()
    assert not batch["next", "red", "done"].any()
    assert not batch["next", "done"].any()


def test_agents_that_come_later_need_the_mask() -> None:
    env = PettingZooWrapper(Walkers(births=(0, 2, 0)))
    with pytest.raises(SpecMismatch, match=r"found none of \['red_1'\]; where agents leave .*, or come later, .*use_mask=True"):
        env.reset()


def test_done_is_terminated_or_truncated_where_agents_end_differently() -> None:
    env = PettingZooWrapper(Walkers((4, 0, 0), 4), done_on_any=False)
    with SyncDataCollector(env, number_of_agent, frames_per_batch=4) as collector:
        last = collector.next()["next"][-1]
    assert last["red", "terminated"].flatten().tolist() == [True, False]
    assert (last["done"].item(), last["terminated"].item(), last["truncated"].item()) == (True, False, True)


def test_agents_that_leave_need_the_mask() -> None:
    with (
        SyncDataCollector(
            PettingZooWrapper(Walkers((2, 0, 0)), done_on_any=False), number_of_agent, frames_per_batch=4
        ) as collector,
        pytest.raises(SpecMismatch, match=r"found none of \['red_0'\].*use_mask=True"),
    ):
        collector.next()


@pytest.mark.parametrize(("place", "name"), [(1, "reward"), (2, "termination"), (3, "truncation")])
def test_values_that_an_agent_lacks(place: int, name: str) -> None:
    class Lacking(Walkers):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            results = super().step(actions)
            if self.steps == 2:
                del results[place]["red_1"]
            return results

    message = f"expected a {name} for each agent with an observation, found none for 'red_1'"
    with (
        SyncDataCollector(PettingZooWrapper(Lacking()), number_of_agent, frames_per_batch=4) as collector,
        pytest.raises(SpecMismatch, match=message),
    ):
        collector.next()


@pytest.mark.parametrize(
    ("group_map", "groups"),
    [
        (None, {"red": ["red_0", "red_1"], "blue": ["blue"]}),
        (MarlGroupMapType.ALL_IN_ONE_GROUP, {"agents": ["red_0", "red_1", "blue"]}),
        (MarlGroupMapType.ONE_GROUP_PER_AGENT, {"red_0": ["red_0"], "red_1": ["red_1"], "blue": ["blue"]}),
        ({"b": ["blue", "red_1"], "a": ["red_0"]}, {"b": ["blue", "red_1"], "a": ["red_0"]}),
    ],
)
def test_group_maps(group_map: Any, groups: dict[str, list[str]]) -> None:
    env = PettingZooWrapper(Walkers(), group_map=group_map)
    assert env.group_map == groups
    first = env.reset()
    for group, agents in groups.items():
        numbers = [Walkers.possible_agents.index(agent) for agent in agents]
        assert first[group, "observation"][:, 0].tolist() == numbers
        assert first[group].batch_size == (len(agents),)


def test_a_group_map_of_torchrl_is_taken() -> None:
    from torchrl.envs.utils import MarlGroupMapType as Theirs

    assert PettingZooWrapper(Walkers(), group_map=Theirs.ALL_IN_ONE_GROUP).group_map == {"agents": Walkers.possible_agents}


@pytest.mark.parametrize(
    ("group_map", "message"),
    [
        ({"red": ["red_0"]}, "expected each of the agents"),
        ({"red": Walkers.possible_agents, "none": []}, "no group without agents"),
        ({"red": [*Walkers.possible_agents, "blue"]}, "in one group"),
        ({"next": Walkers.possible_agents}, r"groups \['next'\] have names that batches use"),
        (3, "expected a dict of lists of agents, or a MarlGroupMapType, got int"),
    ],
)
def test_group_maps_that_are_none(group_map: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PettingZooWrapper(Walkers(), group_map=group_map)


def test_the_global_state() -> None:
    with SyncDataCollector(PettingZooWrapper(Walkers(), True), number_of_agent, frames_per_batch=3) as collector:
        batch = collector.next()
    assert batch["state"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["next", "state"].tolist() == [[1, 1], [2, 2], [3, 3]]


def test_one_hot_actions() -> None:
    env = PettingZooWrapper(Walkers(), categorical_actions=False)
    assert env.full_action_spec["red", "action"].shape == (2, 3)
    env.step(
        env.reset()
        .set(("red", "action"), torch.eye(3, dtype=torch.int64)[[2, 1]])
        .set(("blue", "action"), torch.eye(3, dtype=torch.int64)[[0]])
    )
    assert env.wrapped.taken == [{"red_0": 2, "red_1": 1, "blue": 0}]


def test_seeds_go_with_the_next_reset() -> None:
    env = PettingZooWrapper(Walkers(), seed=7)
    env.reset()
    env.set_seed(3)
    env.reset()
    env.reset()
    assert env.wrapped.seeds == [7, 7, 3, None]


class Unequal(Walkers):
    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-self.possible_agents.index(agent) - 1, 100, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(4 if agent == "blue" else 3)


def test_bounds_of_agents_are_stacked_and_other_spaces_refused() -> None:
    env = PettingZooWrapper(Unequal())
    spec = env.observation_spec["red", "observation"]
    assert isinstance(spec, Bounded)
    assert spec.low.tolist() == [[-1, -1], [-2, -2]]
    with pytest.raises(OptionError, match=r"group 'agents': expected agents with equal spaces.*ONE_GROUP_PER_AGENT"):
        PettingZooWrapper(Unequal(), group_map=MarlGroupMapType.ALL_IN_ONE_GROUP)


@pytest.mark.filterwarnings("ignore:PettingZoo in TorchRL is tested")
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (task("rps_v2", parallel=True), {}),
        (task("rps_v2", parallel=True), {"use_mask": True, "categorical_actions": False}),
        (task("tictactoe_v3", parallel=False), {"use_mask": True}),
        (task("connect_four_v3", parallel=False), {"use_mask": True}),
        (Walkers, {"use_mask": True, "return_state": True}),
    ],
    ids=["parallel", "one-hot", "turns", "dict", "own"],
)
def test_keys_shapes_and_dtypes_are_those_of_torchrl(make: Any, options: dict[str, Any]) -> None:
    from torchrl.envs import PettingZooWrapper as Theirs

    ours, theirs = (
        described(cls(make(), **options).rollout(4, break_when_any_done=False)) for cls in (PettingZooWrapper, Theirs)
    )
    assert ours == theirs


def test_agents_act_in_turns() -> None:
    env = PettingZooEnv("tictactoe_v3", parallel=False, use_mask=True)
    check_env_specs(env)
    places = iter([0, 3, 1, 4, 2])

    def play(tensordict: TensorDictBase) -> TensorDictBase:
        place = torch.tensor([next(places)])
        for player in ("player_1", "player_2"):
            tensordict[player, "action"] = place
        return tensordict

    game = env.rollout(9, play)
    assert game.batch_size == (5,)
    assert game["player_1", "mask"].flatten().tolist() == [True, False, True, False, True]
    assert game["player_2", "mask"].flatten().tolist() == [False, True, False, True, False]
    assert game["next", "player_1", "reward"].flatten().tolist() == [0, 0, 0, 0, 1]
    assert game["next", "player_2", "reward"].flatten().tolist() == [0, 0, 0, 0, -1]
    assert game["player_2", "action_mask"][1, 0].tolist() == [False, *[True] * 8]
    assert game["next", "terminated"].flatten().tolist() == [False] * 4 + [True]


def test_random_actions_obey_action_masks() -> None:
    env = PettingZooEnv("classic/tictactoe_v3", parallel=False, use_mask=True)
    with SyncDataCollector(env, None, frames_per_batch=200, total_frames=200) as collector:
        batch = collector.next()  # an illegal move ends a game at once, with -1
    wins = [batch["next", player, "reward"].flatten() for player in ("player_1", "player_2")]
    assert torch.equal(wins[0], -wins[1])
    lengths = torch.bincount(batch["collector", "traj_ids"])[:-1]
    assert lengths.min() >= 5


def test_a_task_of_turns_where_all_can_act_at_once() -> None:
    env = PettingZooEnv("rps_v2", parallel=True, max_cycles=3)
    assert env.parallel
    assert env.full_action_spec["player", "action"] == Categorical(3, (2,))
    assert env.rollout(5).batch_size == (3,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PettingZooEnv("rps_v2", parallel=False), "act in turns, so that use_mask=True is necessary"),
        (lambda: PettingZooEnv("none_v1", parallel=True), "expected a task of an installed package.*got 'none_v1'"),
        (lambda: PettingZooEnv("mine/none_v1", parallel=True), "got 'mine/none_v1'"),
        (
            lambda: SyncDataCollector(Walkers(), None, frames_per_batch=4),
            r"is wrapped: PettingZooWrapper\(env\), from reap.envs",
        ),  # type: ignore[arg-type]
        (lambda: SyncDataCollector(Walkers, None, frames_per_batch=4), r"is wrapped: PettingZooWrapper\(env\), from reap.envs"),
        (lambda: PettingZooWrapper(3), "expected a pettingzoo.ParallelEnv or AECEnv, got int: 3"),
    ],
)
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_batches_of_envs_and_pickles() -> None:
    env = PettingZooEnv("rps_v2", parallel=True, max_cycles=3)
    assert pickle.loads(pickle.dumps(env)).group_map == {"player": ["player_0", "player_1"]}
    assert SerialEnv(2, env).rollout(3)["player"].batch_size == (2, 3, 2)
    copy = pickle.loads(pickle.dumps(PettingZooWrapper(Walkers(), use_mask=True)))
    assert copy.reset()["red", "mask"].tolist() == [True, True]
    assert copy.get_attribute("length") == 5
