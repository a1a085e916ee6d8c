"""torchrl's envs in collectors, and envs of reap as torchrl's; against torchrl itself."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv, check_env_specs
from reap.envs.adapters.torchrl import TorchRLEnv
from reap.envs.make_env import build_env
from reap.errors import OptionError, SpecMismatch
from reap.testing import Id, IdRows, check_env
from tests import warm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    envs = pytest.importorskip("torchrl.envs")
    from torchrl import data as specs
    from torchrl.envs import utils as torchrl_utils
    from torchrl.modules import LSTMModule

TorchRLBase: Any = envs.EnvBase


def one_hot(observation: torch.Tensor) -> torch.Tensor:
    """A policy for CartPole that depends on nothing but its input."""
    return torch.nn.functional.one_hot((observation[..., 2] > 0).long(), 2)


def cartpole() -> Any:
    return envs.GymEnv("CartPole-v1")


def transformed() -> Any:
    return envs.TransformedEnv(cartpole(), envs.Compose(envs.StepCounter(), envs.RewardSum(), envs.InitTracker()))


def stacked_frames() -> Any:
    frames = envs.CatFrames(3, dim=-1, in_keys=["observation"], out_keys=["frames"])
    return envs.TransformedEnv(envs.SerialEnv(2, cartpole), envs.Compose(envs.StepCounter(), frames))


def normalised() -> Any:
    return envs.TransformedEnv(cartpole(), envs.ObservationNorm(0.5, 2.0, in_keys=["observation"]))


BUILDERS: dict[str, Callable[[], Any]] = {
    "one": cartpole,
    "transformed": transformed,
    "serial": lambda: envs.SerialEnv(3, cartpole),
    "serial of transformed": lambda: envs.SerialEnv(2, transformed),
    "stacked frames": stacked_frames,
    "normalised": normalised,
}


def torchrl_rollout(env: Any, columns: int) -> TensorDictBase:
    policy = TensorDictModule(one_hot, in_keys=["observation"], out_keys=["action"])
    with torch.no_grad():
        return env.rollout(columns, policy, break_when_any_done=False)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_batch_is_what_torchrl_itself_collects(name: str) -> None:
    """Bit for bit, every key, over batches that end within episodes and with them."""
    env = BUILDERS[name]()
    env.set_seed(3)
    wanted = torchrl_rollout(env, 120)
    env.close()
    env = BUILDERS[name]()
    rows = max(1, env.batch_size.numel())
    with SyncDataCollector(env, one_hot, frames_per_batch=24 * rows) as collector:
        collector.set_seed(3)
        found = torch.cat([collector.next() for _ in range(5)], -1)
    assert wanted["next", "done"].any()
    for key in wanted.keys(True, True):
        assert torch.equal(found[key], wanted[key]), key


def test_the_stream_does_not_depend_on_the_size_of_batches() -> None:
    streams: list[TensorDictBase] = []
    for columns in (1, 7, 84):
        with SyncDataCollector(transformed(), one_hot, frames_per_batch=columns) as collector:
            collector.set_seed(0)
            streams.append(torch.cat([collector.next() for _ in range(84 // columns)], -1))
    for stream in streams[1:]:
        for key in streams[0].keys(True, True):
            assert torch.equal(stream[key], streams[0][key]), key


@pytest.mark.processes
def test_parallel_envs_are_stepped_and_reset_in_their_processes() -> None:
    env = envs.ParallelEnv(2, cartpole, mp_start_method="fork" if sys.platform == "linux" else None)
    serial = envs.SerialEnv(2, cartpole)
    found: list[TensorDictBase] = []
    for one in (env, serial):
        with SyncDataCollector(one, one_hot, frames_per_batch=60, max_frames_per_traj=9) as collector:
            collector.set_seed(1)
            found.append(collector.next())
    for key in found[1].keys(True, True):
        assert torch.equal(found[0][key], found[1][key]), key


def test_a_limit_resets_its_rows_and_no_others() -> None:
    env = envs.TransformedEnv(envs.SerialEnv(2, cartpole), envs.StepCounter())
    with SyncDataCollector(env, one_hot, frames_per_batch=80, max_frames_per_traj=7) as collector:
        batch = collector.next()
    steps, following = batch["step_count"].squeeze(-1), batch["next"]
    assert int(following["step_count"].max()) == 7
    ended = following["done"].squeeze(-1)
    assert torch.equal(steps[:, 1:] == 0, ended[:, :-1])
    assert torch.equal(following["truncated"].squeeze(-1), (following["step_count"].squeeze(-1) == 7))
    goes_on = ~ended[:, :-1]
    assert torch.equal(batch["observation"][:, 1:][goes_on], following["observation"][:, :-1][goes_on])
    assert (batch["observation"][:, 1:][ended[:, :-1]].abs() <= 0.05).all()


class Agents(TorchRLBase):
    """Rows of two agents; agent `a` of row `b` is done in step `2 + a + 3 * b`, the root in step 6 + b where there is one."""

    def __init__(self, has_root: bool, size: int = 2) -> None:
        super().__init__(batch_size=[size])
        shape, flag = (size, 2, 1), specs.Categorical(2, shape=(size, 2, 1), dtype=torch.bool)
        group = {"observation": specs.Unbounded((size, 2, 3)), "other": {"mark": specs.Unbounded((size, 2, 1))}}
        self.observation_spec = specs.Composite(agents=specs.Composite(group, shape=(size, 2)), shape=(size,))
        several = {"move": specs.Unbounded(shape), "speak": specs.Categorical(4, shape=(size, 2))}
        self.action_spec = specs.Composite(agents=specs.Composite(several, shape=(size, 2)), shape=(size,))
        self.reward_spec = specs.Composite(
            agents=specs.Composite(reward=specs.Unbounded(shape), shape=(size, 2)), shape=(size,)
        )
        done: dict[str, Any] = {"agents": specs.Composite(done=flag, terminated=flag.clone(), shape=(size, 2))}
        if has_root:
            root = specs.Categorical(2, shape=(size, 1), dtype=torch.bool)
            done = {**done, "done": root, "terminated": root.clone()}
        self.done_spec = specs.Composite(done, shape=(size,))
        self.has_root = has_root
        self.steps, self.episodes = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
        self.masks: list[Any] = []

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDictBase:
        chosen = torch.ones_like(self.steps, dtype=torch.bool)
        key = "_reset" if self.has_root else ("agents", "_reset")
        if tensordict is not None and (mask := tensordict.get(key, None)) is not None:
            self.masks.append(mask.clone())
            chosen = mask.flatten(1).any(1)
        self.steps[chosen] = 0
        self.episodes[chosen] += 1
        return self._observe()

    def _observe(self) -> TensorDict:
        size = len(self.steps)
        rows = torch.stack([torch.arange(size), self.episodes, self.steps], -1).float()
        observation = rows[:, None].expand(size, 2, 3).clone()
        mark = observation[..., :1] * 10 + torch.arange(2.0)[None, :, None]
        agents = TensorDict({"observation": observation, "other": {"mark": mark}}, [size, 2])
        return TensorDict({"agents": agents}, [size])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        size = len(self.steps)
        result = self._observe()
        result["agents", "reward"] = tensordict["agents", "move"] + tensordict["agents", "speak"][..., None]
        rows = torch.arange(size)[:, None, None]
        done = self.steps[:, None, None] >= 2 + torch.arange(2)[None, :, None] + 3 * rows
        result["agents", "done"] = result["agents", "terminated"] = done
        if self.has_root:
            result["done"] = result["terminated"] = self.steps[:, None] >= 6 + torch.arange(size)[:, None]
        return result

    def _set_seed(self, seed: int | None) -> None:
        pass


def speak_and_move(tensordict: TensorDictBase) -> TensorDictBase:
    steps = tensordict["agents", "observation"][..., 2]
    tensordict["agents", "move"] = steps[..., None] / 2
    return tensordict.set(("agents", "speak"), steps.long() % 4)


@pytest.mark.parametrize("has_root", [True, False])
def test_a03_a_root_done_decides_alone_without_one_any_leaf(has_root: bool) -> None:
    env = Agents(has_root)
    with SyncDataCollector(env, speak_and_move, frames_per_batch=48) as collector:
        batch = collector.next()
        episodes = collector.stats().episodes
    lengths = (6, 7) if has_root else (2, 5)
    for row, length in enumerate(lengths):
        column = torch.arange(24)
        last = column % length == length - 1
        following = batch[row]["next"]
        assert torch.equal(following["done"].squeeze(-1), last)
        assert torch.equal(following["terminated"].squeeze(-1), last)
        assert not following["truncated"].any()
        wanted = torch.stack([torch.full((24,), row), 1 + column // length, column % length], -1).float()
        assert torch.equal(batch[row]["agents", "observation"], wanted[:, None].expand(24, 2, 3))
        assert torch.equal(following["agents", "observation"][..., 2], (wanted[:, None, 2] + 1).expand(24, 2))
        agent_done = (column % length + 1)[:, None] >= 2 + torch.arange(2) + 3 * row
        assert torch.equal(following["agents", "done"].squeeze(-1), agent_done)
        assert not batch[row]["done"].any()
        steps = wanted[:, 2]
        assert torch.equal(following["agents", "reward"].squeeze(-1), (steps / 2 + steps % 4)[:, None].expand(24, 2))
    assert episodes[0].reward == 2 * sum(s / 2 + s % 4 for s in range(episodes[0].length))
    if not has_root:
        assert all(torch.equal(mask.any(1), mask.all(1)) for mask in env.masks), "rows are reset as a whole"


@pytest.mark.parametrize("has_root", [True, False])
def test_a_limit_resets_agents_as_a_whole(has_root: bool) -> None:
    with SyncDataCollector(Agents(has_root, 3), speak_and_move, frames_per_batch=45, max_frames_per_traj=4) as collector:
        batch = collector.next()
    lengths = (4, 4, 4) if has_root else (2, 4, 4)
    for row, length in enumerate(lengths):
        assert batch[row]["agents", "observation"][:, 0, 2].tolist() == [t % length for t in range(15)]


@pytest.mark.parametrize("has_root", [True, False])
def test_envs_of_torchrl_keep_to_the_facts(has_root: bool) -> None:
    check_env(lambda: Agents(has_root), seeded=False)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["transformed", "stacked frames"])
def test_transformed_envs_keep_to_the_facts(name: str) -> None:
    check_env(BUILDERS[name])


def test_done_rows_idle_without_resets() -> None:
    env = envs.SerialEnv(3, cartpole)
    with SyncDataCollector(env, one_hot, frames_per_batch=240, reset_when_done=False) as collector:
        collector.set_seed(0)
        first, second = collector.next(), collector.next()
    for batch in (first, second):
        mask = batch["collector", "mask"]
        ends = mask.sum(-1)
        assert (ends < 80).any()
        for row, end in enumerate(ends.tolist()):
            assert batch[row]["next", "done"].squeeze(-1).nonzero().flatten().tolist() == [end - 1]
            assert not batch[row]["observation"][end:].any()
        assert (batch["collector", "traj_ids"][mask] >= 0).all()


def lstm(features: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LSTMModule(input_size=features, hidden_size=5, in_key="observation", out_key="hidden")


def test_a17_a_primer_in_the_env_leaves_the_state_to_the_policy() -> None:
    """As torchrl's documentation builds it: the LSTM's state is carried in the env by a TensorDictPrimer."""
    module = lstm(4)
    policy = TensorDictSequential(module, TensorDictModule(one_hot, in_keys=["hidden"], out_keys=["action"]))
    found: list[TensorDictBase] = []
    for with_primer in (True, False):
        transforms = [envs.InitTracker(), *([module.make_tensordict_primer()] if with_primer else [])]
        env = envs.TransformedEnv(cartpole(), envs.Compose(*transforms))
        with SyncDataCollector(env, policy, frames_per_batch=90) as collector:
            collector.set_seed(0)
            found.append(collector.next())
    assert found[0]["is_init"].sum() > 1
    for key in found[1].keys(True, True):
        assert torch.equal(found[0][key], found[1][key]), key
    state = found[0]["recurrent_state_h"]
    starts = found[0]["is_init"].squeeze(-1)
    assert not state[starts].any()
    assert torch.equal(state[1:][~starts[1:]], found[0]["next", "recurrent_state_h"][:-1][~starts[1:]])


class Penalty(envs.Transform):
    """Takes what the policy wrote under `cost` off the reward."""

    def __init__(self) -> None:
        super().__init__(in_keys=["cost"], out_keys=["reward"])

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.set("reward", next_tensordict["reward"] - tensordict["cost"])


def test_transforms_read_what_the_policy_wrote() -> None:
    def policy(observation: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"action": one_hot(observation), "cost": observation[..., :1]}

    env = envs.TransformedEnv(cartpole(), Penalty())
    with SyncDataCollector(env, policy, frames_per_batch=30) as collector:
        batch = collector.next()
    assert torch.equal(batch["next", "reward"], 1 - batch["cost"])


class Words(TorchRLBase):
    """Observes a word and as many numbers as steps were taken."""

    def __init__(self, size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=size)
        word = specs.NonTensor(shape=size, example_data="")
        self.observation_spec = specs.Composite(word=word, numbers=specs.Unbounded((*size, -1)), shape=size)
        self.action_spec = specs.Unbounded((*size, 1))
        self.reward_spec = specs.Unbounded((*size, 1))
        self.steps = 0

    def _observe(self) -> TensorDict:
        count = max(1, *self.batch_size, 1)
        words = [f"{row} {self.steps}" for row in range(count)]
        word: Any = NonTensorStack(*words) if self.batch_size else words[0]
        return TensorDict({"word": word, "numbers": torch.full((*self.batch_size, self.steps), 7.0)}, self.batch_size)

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDictBase:
        self.steps = 0
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        done = torch.full((*self.batch_size, 1), self.steps == 3)
        return self._observe().update({"reward": tensordict["action"], "done": done, "terminated": done})

    def _set_seed(self, seed: int | None) -> None:
        pass


@pytest.mark.parametrize("size", [(), (2,)])
def test_h09_words_and_changing_shapes_are_recorded_as_objects(size: tuple[int, ...]) -> None:
    rows = max(1, *size, 1)
    with SyncDataCollector(Words(size), None, frames_per_batch=6 * rows) as collector:
        batch = collector.next()
    words = [[f"{row} {t % 3}" for t in range(6)] for row in range(rows)]
    assert batch["word"] == (words if size else words[0])
    numbers = batch["next"].get("numbers").tolist()
    for row in numbers if size else [numbers]:
        assert [len(value) for value in row] == [1, 2, 3, 1, 2, 3]


def test_frames_of_actions_are_copies() -> None:
    kept: list[torch.Tensor] = []

    class Keeps(Words):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            kept.append(tensordict["action"])
            return super()._step(tensordict)

    with SyncDataCollector(Keeps(), None, frames_per_batch=4) as collector:
        batch = collector.next()
        collector.next()
    assert torch.equal(torch.stack(kept[:4]), batch["action"])
    assert not any(action.is_inference() for action in kept)


def test_the_env_is_what_was_given() -> None:
    env = transformed()
    with SyncDataCollector(env, None, frames_per_batch=8) as collector:
        assert isinstance(collector.env, TorchRLEnv)
        assert collector.env.wrapped is env
        assert collector.env.as_torchrl() is env
        assert collector.getattr_env("batch_size") == torch.Size([])
        collector.next()
    assert env.is_closed
    with pytest.raises(OptionError, match="lack a call"):
        build_env(lambda: envs.GymEnv)


def test_an_env_that_is_used_by_hand_begins_new_episodes() -> None:
    env = transformed()
    with SyncDataCollector(env, one_hot, frames_per_batch=5) as collector:
        first = collector.next()
        collector.env.rollout(3)
        second = collector.next()
    assert second["step_count"].flatten().tolist() == [0, 1, 2, 3, 4]
    assert not set(first["collector", "traj_ids"].tolist()) & set(second["collector", "traj_ids"].tolist())


def test_agents_of_different_shapes_are_refused_by_name() -> None:
    class Uneven(Words):
        def __init__(self) -> None:
            super().__init__()
            parts = [specs.Composite(seen=specs.Unbounded((size,))) for size in (2, 3)]
            self.observation_spec = specs.Composite(agents=torch.stack(parts))

    with pytest.raises(OptionError, match=r"'agents', 'seen'.*pad them"):
        build_env(Uneven())


# Envs of reap as torchrl's


REAP_ENVS: dict[str, Callable[[], Any]] = {
    "CartPole": lambda: GymEnv("CartPole-v1"),
    "indices": lambda: GymEnv("CartPole-v1", categorical_action_encoding=True),
    "Pendulum": lambda: GymEnv("Pendulum-v1"),
    "Blackjack": lambda: GymEnv("Blackjack-v1"),
    "serial": lambda: SerialEnv(2, "CartPole-v1"),
    "rows": lambda: IdRows((2, 3)),
}


@pytest.mark.parametrize("name", REAP_ENVS)
def test_torchrl_accepts_envs_of_reap(name: str) -> None:
    env = REAP_ENVS[name]().as_torchrl()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchrl_utils.check_env_specs(env)
    env.close()
    assert env.wrapped.closed


def test_transforms_of_torchrl_go_around_envs_of_reap_and_into_collectors() -> None:
    def build() -> Any:
        return envs.TransformedEnv(SerialEnv(2, [lambda: Id(0), lambda: Id(1)]).as_torchrl(), envs.StepCounter())

    with SyncDataCollector(build(), None, frames_per_batch=40) as collector:
        batch = collector.next()
    with SyncDataCollector(SerialEnv(2, [lambda: Id(0), lambda: Id(1)]), None, frames_per_batch=40) as collector:
        bare = collector.next()
    assert torch.equal(batch["step_count"].squeeze(-1), batch["observation"][..., 2].long())
    assert torch.equal(batch["observation"], bare["observation"])
    assert torch.equal(batch["next", "done"], bare["next", "done"])


def test_specs_survive_the_way_there_and_back() -> None:
    for build in REAP_ENVS.values():
        env = build()
        back = TorchRLEnv(env.as_torchrl())
        for name in ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec"):
            there, here = dict(getattr(back, name).leaves()), dict(getattr(env, name).leaves())
            assert {key: (type(leaf), leaf.shape, leaf.dtype) for key, leaf in there.items()} == {
                key: (type(leaf), leaf.shape, leaf.dtype) for key, leaf in here.items()
            }


def test_a_seed_given_through_torchrl_reaches_the_env() -> None:
    first, second = (GymEnv("CartPole-v1").as_torchrl() for _ in range(2))
    first.set_seed(5)
    second.set_seed(5)
    assert torch.equal(first.reset()["observation"], second.reset()["observation"])


def test_check_env_specs_takes_torchrl_envs() -> None:
    check_env_specs(transformed())

    class Wrong(Words):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("surplus", torch.zeros(1))

    with pytest.raises(SpecMismatch, match="surplus"):
        check_env_specs(Wrong())


def test_reap_does_not_import_torchrl() -> None:
    # Where this program runs, nothing but reap has been imported.
    code = "import sys, reap.envs, reap.collectors as c; print(c.SyncDataCollector.__name__, 'torchrl' in sys.modules)"
    assert warm.run(code, timeout=180) == (0, "SyncDataCollector False\n", "")


class Door(TorchRLBase):
    """One of four doors; notes the dtypes in which it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = specs.Composite(observation=specs.Unbounded((3,)))
        self.action_spec, self.reward_spec = specs.OneHot(4), specs.Unbounded((1,))
        self.told: list[torch.dtype] = []

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict({"observation": torch.zeros(3)}, [])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.told.append(tensordict["action"].dtype)
        done = torch.zeros(1, dtype=torch.bool)
        return TensorDict({"observation": torch.zeros(3), "reward": torch.ones(1), "done": done, "terminated": done}, [])

    def _set_seed(self, seed: int | None) -> None:
        pass


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_one_hot_actions_keep_the_dtype_of_the_policy(dtype: torch.dtype) -> None:
    """torchrl's `OneHot` is bool, and its `OneHotCategorical` draws int64: the env gets what the policy gave."""
    env = Door()
    assert env.action_spec.dtype == torch.bool
    with SyncDataCollector(
        env, lambda observation: torch.eye(4)[1].to(dtype), frames_per_batch=5, init_random_frames=5
    ) as collector:
        env.told.clear()
        batches = [collector.next() for _ in range(2)]
    assert [batch["action"].dtype for batch in batches] == [dtype] * 2
    assert env.told[5:] == [dtype] * 5
    assert batches[1]["action"].tolist() == [[0, 1, 0, 0]] * 5
    assert batches[0]["action"].sum(-1).tolist() == [1] * 5


def test_a_later_one_hot_of_another_dtype_is_stored_in_that_of_the_first() -> None:
    steps = iter([torch.int64, *[torch.bool] * 20])

    def policy(observation: torch.Tensor) -> torch.Tensor:
        return torch.eye(4)[2].to(next(steps))

    with SyncDataCollector(Door(), policy, frames_per_batch=5) as collector:
        batch = collector.next()
    assert batch["action"].dtype == torch.int64
    assert batch["action"].argmax(-1).tolist() == [2] * 5


class WithMore(GymEnv):
    """An env with a method and an attribute of its own."""

    gain = 3

    def doubled(self, number: int) -> int:
        return 2 * number


def test_what_an_env_has_of_its_own_is_reached_through_torchrl() -> None:
    env = envs.TransformedEnv(WithMore("CartPole-v1").as_torchrl(), envs.StepCounter())
    assert (env.gain, env.doubled(4)) == (3, 8)
    assert env.base_env.doubled(5) == 10
    assert not hasattr(env, "tripled")
    with pytest.raises(AttributeError, match="no attribute '_hidden'"):
        _ = env.base_env._hidden
    assert "step_count" in env.rollout(3).keys()
