"""The TensorDict face of every env: reset, step, rollout; and what a subclass must write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from reap.collectors import SyncDataCollector
from reap.data import Composite, Unbounded
from reap.envs import EnvBase, GymEnv, SerialEnv, step_mdp
from reap.errors import OptionError, SpecMismatch
from reap.seeds import next_seed
from reap.testing import Const, Count, CountTL, Id, IdRows

FLAGS = ("done", "terminated", "truncated")


def serial() -> EnvBase:
    return SerialEnv(3, [lambda i=i: Id(i) for i in range(3)])


BATCHED: dict[str, Callable[[], EnvBase]] = {"serial": serial, "own": lambda: IdRows((3,))}
SINGLE: dict[str, Callable[[], EnvBase]] = {"gym": lambda: GymEnv(Id(0)), "own": IdRows}


def action(env: EnvBase, value: float) -> TensorDict:
    return TensorDict({"action": torch.full((*env.batch_size, 1), value)}, env.batch_size)


# ---------------------------------------------------------------------- reset


@pytest.mark.parametrize("build", BATCHED.values())
def test_reset(build: Callable[[], EnvBase]) -> None:
    td = build().reset()
    assert td.batch_size == (3,)
    assert set(td.keys()) == {"observation", *FLAGS}
    assert td["observation"].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert all(td[flag].shape == (3, 1) and td[flag].dtype == torch.bool and not td[flag].any() for flag in FLAGS)


@pytest.mark.parametrize("build", BATCHED.values())
def test_reset_of_some_rows(build: Callable[[], EnvBase]) -> None:
    env = build()
    td = env.reset()
    td = step_mdp(env.step(td.update(action(env, 0.0))))
    mask = torch.tensor([[False], [True], [False]])
    kept = mask.clone()
    result = env.reset(td.clone().set("_reset", mask))
    assert torch.equal(mask, kept), "the caller's mask is as it was"
    assert result["observation"].tolist() == [[0, 0, 1], [1, 1, 0], [2, 0, 1]]
    following = env.step(result.update(action(env, 0.0)))["next"]
    assert following["observation"].tolist() == [[0, 0, 2], [1, 1, 1], [2, 0, 2]]


@pytest.mark.parametrize("build", BATCHED.values())
def test_d07_masks_of_all_and_of_none(build: Callable[[], EnvBase]) -> None:
    env = build()
    td = step_mdp(env.step(env.reset().update(action(env, 0.0))))
    none = env.reset(td.clone().set("_reset", torch.zeros(3, 1, dtype=torch.bool)))
    assert none["observation"].tolist() == [[0, 0, 1], [1, 0, 1], [2, 0, 1]]
    every = env.reset(td.clone().set("_reset", torch.ones(3, 1, dtype=torch.bool)))
    assert every["observation"].tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]
    assert env.reset()["observation"].tolist() == [[0, 2, 0], [1, 2, 0], [2, 2, 0]]


# ---------------------------------------------------------------------- step


@pytest.mark.parametrize("build", [*BATCHED.values(), *SINGLE.values()])
def test_step(build: Callable[[], EnvBase]) -> None:
    env = build()
    td = env.reset().update(action(env, 4.0))
    result = env.step(td)
    assert result is td
    following = result["next"]
    assert set(following.keys()) == {"observation", "reward", *FLAGS}
    rows = env.batch_size.numel()
    assert following["observation"].view(rows, 3).tolist() == [[row, 0, 1] for row in range(rows)]
    assert following["reward"].view(-1).tolist() == [Id.reward(row, 0, 1, 4.0) for row in range(rows)]
    assert following["reward"].shape == (*env.batch_size, 1)
    ends = [Id.ending(row, 0) if Id.length(row, 0) == 1 else (False, False) for row in range(rows)]
    assert [list(x) for x in zip(*ends, strict=True)] == [following[f].view(-1).tolist() for f in ("terminated", "truncated")]
    assert torch.equal(following["done"], following["terminated"] | following["truncated"])
    assert td["observation"].view(rows, 3).tolist() == [[row, 0, 0] for row in range(rows)]


@pytest.mark.parametrize("build", [*BATCHED.values(), *SINGLE.values()])
def test_results_stay_as_they_were(build: Callable[[], EnvBase]) -> None:
    env = build()
    steps = [env.reset()]
    copies = [steps[0].clone()]
    for _ in range(3):
        current = step_mdp(steps[-1]) if len(steps) > 1 else steps[0].copy()
        steps.append(env.step(current.update(action(env, 1.0))))
        copies.append(steps[-1].clone())
    assert all((found == kept).all() for found, kept in zip(steps, copies, strict=True))


def test_rand_step() -> None:
    env = GymEnv("CartPole-v1")
    td = env.rand_step(env.reset())
    assert td["action"].sum() == 1
    assert td["next", "reward"].tolist() == [1.0]
    assert env.rand_step()["next", "observation"].shape == (4,)
    torch.manual_seed(3)
    first = env.rand_action()["action"]
    torch.manual_seed(3)
    assert torch.equal(env.rand_action(TensorDict({"x": torch.zeros(1)}))["action"], first)
    env.close()


# ---------------------------------------------------------------------- rollout


def test_rollout_stops_at_the_end() -> None:
    td = GymEnv(Count(3)).rollout(10)
    assert td.batch_size == (3,)
    assert td.names == ["time"]
    assert td["observation"].flatten().tolist() == [0, 1, 2]
    assert td["next", "done"].flatten().tolist() == [False, False, True]
    assert GymEnv(Count(3)).rollout(2).batch_size == (2,)


def test_rollout_of_a_batch_stops_when_any_row_ends() -> None:
    env = SerialEnv(2, [lambda: Count(5), lambda: Count(2)])
    td = env.rollout(10)
    assert td.batch_size == (2, 2)
    assert td.names == [None, "time"]


def test_rollout_goes_on_over_ends() -> None:
    env = SerialEnv(2, [lambda: Count(5), lambda: Count(2)])
    td = env.rollout(5, break_when_any_done=False)
    assert td["observation"].squeeze(-1).tolist() == [[0, 1, 2, 3, 4], [0, 1, 0, 1, 0]]
    assert td["next", "observation"].squeeze(-1).tolist() == [[1, 2, 3, 4, 5], [1, 2, 1, 2, 1]]
    assert env.get_attribute("resets") == [1, 3], "no reset behind the last step"


def test_rollout_with_a_policy() -> None:
    def policy(td: TensorDictBase) -> None:
        td.set("action", td["observation"] * 2)

    for given in (policy, lambda td: td.set("action", td["observation"] * 2)):
        td = GymEnv(Count(5)).rollout(3, given)
        assert td["action"].flatten().tolist() == [0, 2, 4]


def test_rollout_set_truncated() -> None:
    td = GymEnv(Count(9)).rollout(3, set_truncated=True)
    assert td["next", "truncated"].flatten().tolist() == td["next", "done"].flatten().tolist() == [False, False, True]
    assert not td["next", "terminated"].any()
    assert not GymEnv(Count(9)).rollout(3)["next", "done"].any()


@pytest.mark.parametrize(
    "build", [lambda: SerialEnv(4, lambda: Count(5)), lambda: SerialEnv(2, lambda: SerialEnv(2, lambda: Count(5)))]
)
def test_a08_chained_rollouts(build: Callable[[], EnvBase]) -> None:
    env = build()
    td = env.reset()
    whole = []
    for calls in range(1, 4):
        part = env.rollout(5, auto_reset=False, break_when_any_done=False, tensordict=td)
        whole.append(part["observation"].flatten(0, -3).squeeze(-1)[0].tolist())
        steps = torch.tensor(env.get_attribute("steps")).flatten()
        resets = torch.tensor(env.get_attribute("resets")).flatten()
        assert steps.tolist() == [5] * 4, "no hidden reset behind the last step"
        assert resets.tolist() == [calls] * 4
        last = step_mdp(part[..., -1])
        td = env.reset(last.set("_reset", last["done"]))
    assert whole == [[0, 1, 2, 3, 4]] * 3


def test_a_rollout_goes_on_from_where_it_is_told() -> None:
    env = GymEnv(Count(9))
    first = env.rollout(3)
    second = env.rollout(2, auto_reset=False, tensordict=step_mdp(first[-1]))
    assert second["observation"].flatten().tolist() == [3, 4]
    assert env.rollout(2)["observation"].flatten().tolist() == [0, 1]


def test_step_mdp() -> None:
    following = {"observation": torch.ones(1), "reward": torch.ones(1), "done": torch.ones(1), "h": torch.ones(1)}
    td = TensorDict({"observation": torch.zeros(1), "action": torch.zeros(1), "value": torch.zeros(1), "next": following})
    assert set(step_mdp(td).keys()) == {"observation", "done", "h", "value"}
    assert step_mdp(td)["observation"].item() == 1
    assert set(step_mdp(td, keep_other=False).keys()) == {"observation", "done", "h"}
    assert set(step_mdp(td, exclude_reward=False, exclude_done=True).keys()) == {"observation", "reward", "h", "value"}
    assert set(step_mdp(td, exclude_action=False).keys()) == {"observation", "action", "done", "h", "value"}
    assert set(td.keys()) == {"observation", "action", "value", "next"}


# ---------------------------------------------------------------------- subclasses


class Own(EnvBase):
    """Counts to 3 by TensorDicts; what `_step` returns besides, and what it leaves out, is `values`."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.add_truncated_keys()
        self.values, self.steps = values, 0

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        self.steps = 0
        return TensorDict({"observation": torch.zeros(1)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        values = {"observation": torch.tensor([float(self.steps)]), "reward": torch.ones(1), **self.values}
        return TensorDict({key: value for key, value in values.items() if value is not None})


YES, NO = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ({"done": NO}, (False, False, False)),
        ({"done": YES}, (True, True, False)),
        ({"done": YES, "terminated": YES}, (True, True, False)),
        ({"terminated": YES}, (True, True, False)),
        ({"truncated": YES}, (True, False, True)),
        ({"done": YES, "truncated": YES}, (True, False, True)),
        ({"done": YES, "terminated": YES, "truncated": YES}, (True, True, True)),
        ({"done": YES, "terminated": NO}, (True, False, True)),
    ],
)
def test_flags_that_are_left_out_are_filled_in(values: dict[str, Any], flags: tuple[bool, ...]) -> None:
    batch = SyncDataCollector(Own(**values), Const(), frames_per_batch=2).next()
    assert tuple(batch["next", name][0].item() for name in FLAGS) == flags
    by_hand = Own(**values)
    following = by_hand.step(by_hand.reset().set("action", torch.zeros(1)))["next"]
    assert tuple(following[name].item() for name in FLAGS) == flags


@pytest.mark.parametrize("reward", [torch.zeros(2), torch.full((1,), 1e39, dtype=torch.float64), None])
def test_h14_what_a_step_returns_is_checked_once(reward: Any) -> None:
    collector = SyncDataCollector(Own(reward=reward), Const(), frames_per_batch=2)
    with pytest.raises(SpecMismatch, match=r"^Own\._step: (key reward: expected shape \(1,\)|expected key 'reward')"):
        collector.next()


def test_a_reset_is_checked_at_construction() -> None:
    class Wrong(Own):
        def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
            return TensorDict({"obs": torch.zeros(1)})

    with pytest.raises(SpecMismatch) as caught:
        SyncDataCollector(Wrong(), Const(), frames_per_batch=2)
    assert str(caught.value) == "Wrong._reset: expected key 'observation', found ['obs']"


def test_a_seed_for_an_env_without_seeds() -> None:
    with pytest.raises(NotImplementedError, match=r"^Own\._set_seed\(seed\) is not defined, and a seed was given$"):
        Own().set_seed(3)


def test_set_seed_returns_the_next_in_the_chain() -> None:
    env = IdRows()
    assert (env.set_seed(3), env.set_seed(4, static_seed=True)) == (next_seed(3), 4)
    assert env.seeds == [3, 4]


def test_a_class_that_writes_neither_face() -> None:
    class Half(EnvBase):
        def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase: ...

    with pytest.raises(TypeError, match="^Half writes neither face of an env: define _reset"):
        Half()


def test_an_observation_spec_that_is_no_composite() -> None:
    env = IdRows()
    with pytest.raises(OptionError) as caught:
        env.observation_spec = Unbounded((3,))
    assert str(caught.value) == (
        "observation_spec of IdRows: expected a Composite, got Unbounded; write Composite(observation=...)"
    )


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1), (2, 3)])
def test_default_specs_have_the_batch_dimensions(shape: tuple[int, ...]) -> None:
    env = IdRows(shape)
    assert env.reward_spec.shape == (*shape, 1)
    assert {name: spec.shape for name, spec in env.full_done_spec.items()} == dict.fromkeys(
        ("done", "terminated", "truncated"), (*shape, 1)
    )
    assert (env.action_keys, env.reward_keys, env.done_key) == (["action"], ["reward"], "done")
    assert env.rollout(2, break_when_any_done=False)["next", "reward"].shape == (*shape, 2, 1)


def test_an_env_by_arrays_is_the_same_by_tensordicts() -> None:
    env = GymEnv(CountTL(9, 3))
    td = env.rollout(9)
    batch = SyncDataCollector(GymEnv(CountTL(9, 3)), Const(), frames_per_batch=3).next()
    for key in ("observation", *(("next", name) for name in ("observation", "reward", *FLAGS))):
        assert torch.equal(td[key], batch[key]), key
