"""`check_collector` over more kinds of env, torchrl's among them, and over every kind of policy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

from reap.collectors import SyncDataCollector
from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.recording.buffers import after
from reap.specs import Composite, Unbounded
from reap.testing import check_collector
from reap.testing import collector_checks as facts
from reap.testing.collector_checks import BATCHES, FACTS
from reap.testing.marked import Marked, Told
from reap.testing.streams import MakeCollector, collecting, frames_of, require_same, take
from tests.collectors.kinds import KINDS, Factory, made
from tests.envs.vector_envs import AutoresetMode, make_async, needs_modes
from tests.pairwise import by_default, each_value, pairwise

needs_torchrl = pytest.mark.skipif(find_spec("torchrl") is None, reason="torchrl is not installed")
STATELESS = tuple(fact for fact in FACTS if fact is not facts.state_goes_on)
"""Facts of envs without a state of their own, which begin a new episode where another collector goes on."""

RESETTING = tuple(fact for fact in STATELESS if fact not in {facts.limits_truncate, facts.the_budget_is_kept})
"""Facts of envs that reset their rows themselves: these refuse a limit, and their reset steps are no frames of the budget."""


class ByArrays(EnvBase):
    """Gymnasium envs as an env that is written by arrays."""

    def __init__(self, envs: Sequence[Any]) -> None:
        super().__init__(batch_size=(len(envs),))
        self.rows = list(envs)
        self.observation_spec = Composite(observation=Unbounded((len(envs), 4)), shape=(len(envs),))
        self.action_spec = Unbounded((len(envs), 1))
        self.add_truncated_keys()
        self.seeds: list[int | None] = [None] * len(envs)

    def bind(self, stage: Any, slot: Any) -> None:
        self.first = stage.arrays["observation",]
        names = ("observation", "reward", "done", "terminated", "truncated")
        self.written = [slot.by_row(after((name,))) for name in names]
        self.actions = slot.by_row(("action",))

    def reset_rows(self, rows: Any, t: int) -> None:
        for row in range(len(self.rows)) if rows is None else rows:
            self.first[row] = self.rows[row].reset(seed=self.seeds[row])[0]
            self.seeds[row] = None

    def step_rows(self, rows: Any, t: int) -> Any:
        ended = []
        for row in range(len(self.rows)) if rows is None else rows:
            observation, reward, terminated, truncated, _ = self.rows[row].step(self.actions[row, t].copy())
            for array, value in zip(
                self.written, (observation, reward, terminated or truncated, terminated, truncated), strict=True
            ):
                array[row, t] = value
            if terminated or truncated:
                ended.append(row)
        return ended or None

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        for row in range(len(self.rows)):
            self.seeds[row] = seed
            seed = super().set_seed(seed, static_seed)
        return seed

    def _set_seed(self, seed: int) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [env.state_dict() for env in self.rows], "seeds": list(self.seeds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for env, own in zip(self.rows, state["rows"], strict=True):
            env.load_state_dict(own)
        self.seeds = list(state["seeds"])


class Unknown(SyncVectorEnv):
    """A vector env of a class that is not known to honour masks: its reset steps stay in the batches."""


def by_arrays(factory: Factory, start: int, stop: int) -> ByArrays:
    return ByArrays([factory(number) for number in range(start, stop)])


def vector(factory: Factory, mode: str, is_wrapped: bool = False) -> GymEnv:
    env = SyncVectorEnv(made(factory, 3), autoreset_mode=AutoresetMode[mode])
    return GymEnv(wrappers.TransformReward(env, lambda reward: reward) if is_wrapped else env)


def torchrl_env(factory: Factory, kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl import envs

    def one(number: int) -> Any:
        return envs.GymWrapper(factory(number))

    if kind == "one":
        return one(2)
    if kind == "transformed":
        return envs.TransformedEnv(one(1), envs.Compose(envs.RewardSum(), envs.StepCounter(step_count_key="steps")))
    parts = [partial(one, number) for number in range(2)]
    return SerialEnv(2, parts) if kind == "serial of ours" else envs.SerialEnv(2, parts)


MORE: dict[str, tuple[Callable[[Factory], Any], Sequence[Any]]] = {
    "by arrays": (lambda factory: by_arrays(factory, 0, 3), FACTS),
    "serial by arrays": (lambda factory: SerialEnv(2, [partial(by_arrays, factory, n, n + 2) for n in (0, 2)]), FACTS),
    "resets itself": (lambda factory: GymEnv(Unknown(made(factory, 3))), RESETTING),
}
VECTORS: dict[str, tuple[Callable[[Factory], Any], Sequence[Any]]] = {
    "same step": (partial(vector, mode="SAME_STEP"), FACTS),
    "disabled": (partial(vector, mode="DISABLED"), FACTS),
    **{f"{mode}, wrapped": (partial(vector, mode=mode, is_wrapped=True), STATELESS) for mode in AutoresetMode.__members__},
}
TORCHRL = ("transformed", "serial", "one", "serial of ours")


def maker(build: Callable[[Factory], Any], wrap: Callable[[Any], Any] = lambda policy: policy) -> MakeCollector:
    def make_collector(env_factory: Factory, policy: Any, **options: Any) -> SyncDataCollector:
        return SyncDataCollector(lambda: build(env_factory), wrap(policy), **options)

    return make_collector


@pytest.mark.parametrize("kind", by_default(MORE, "resets itself"))
def test_more_kinds_of_env(kind: str) -> None:
    build, chosen = MORE[kind]
    check_collector(maker(build), chosen)


@needs_modes
@pytest.mark.parametrize("kind", by_default(VECTORS, "same step", "NEXT_STEP, wrapped"))
def test_vectors(kind: str) -> None:
    build, chosen = VECTORS[kind]
    check_collector(maker(build), chosen)


@needs_modes
@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")  # how gymnasium tells that an env crashed
def test_async_vectors() -> None:
    check_collector(maker(lambda factory: GymEnv(make_async(made(factory, 2)))), STATELESS)


@pytest.mark.processes
@needs_torchrl
@pytest.mark.parametrize("kind", TORCHRL)
def test_torchrl(kind: str) -> None:
    check_collector(maker(lambda factory: torchrl_env(factory, kind)), STATELESS)


# ---------------------------------------------------------------------- policies


class OutputsInOrder(nn.Module):
    """The outputs of a policy one behind the other, as a TensorDictModule takes them."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: torch.Tensor) -> Any:
        result = self.policy(observation)
        return (result["action"], result["seen"]) if isinstance(result, dict) else result


class OnTensorDicts(OutputsInOrder):
    """A policy that is called with a TensorDict, and writes to it."""

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = self.policy(tensordict["observation"])
        return tensordict.update(result if isinstance(result, dict) else {"action": result})


class Remembering(OutputsInOrder):
    """A policy that counts its steps in a recurrent state."""

    def forward(self, observation: torch.Tensor, memory: torch.Tensor | None = None) -> Any:
        result = self.policy(observation)
        memory = torch.zeros_like(observation[..., :1]) if memory is None else memory
        return {**(result if isinstance(result, dict) else {"action": result}), ("next", "memory"): memory + 1}


def as_module(policy: Any) -> TensorDictModule:
    keys = ["action", "seen"] if isinstance(policy, Told) else ["action"]
    return TensorDictModule(OutputsInOrder(policy), ["observation"], keys)


POLICIES: dict[str, Callable[[Any], Any]] = {
    "TensorDictModule": as_module,
    "on TensorDicts": OnTensorDicts,
    "recurrent": Remembering,
}
KINDS_OF_POLICIES = ("gym", "serial", "vector", "custom batched")


@pytest.mark.parametrize(("policy", "kind", "fact"), each_value(pairwise(list(POLICIES), list(KINDS_OF_POLICIES), FACTS)))
def test_every_kind_of_policy(policy: str, kind: str, fact: Any) -> None:
    check_collector(maker(KINDS[kind], POLICIES[policy]), [fact])


@pytest.mark.parametrize(("kind", "limit"), each_value(product(KINDS, [None, 3])))
def test_the_state_of_a_policy_counts_the_steps_of_its_episode(kind: str, limit: int | None) -> None:
    """Zero exactly where an episode starts, in every row, across batches and a reset."""
    with collecting(maker(KINDS[kind], Remembering), Marked, Told(), max_frames_per_traj=limit) as collector:
        batches = take(collector, BATCHES)
        collector.reset()
        batches += take(collector, BATCHES)
    for place, frame in frames_of(batches):
        require_same(place, "memory", (place[2], place[2] + 1), (int(frame["memory"]), int(frame["next", "memory"])))


OF_RANDOM_ACTIONS = (
    facts.episodes_go_on,
    facts.ids_are_unique,
    facts.done_is_terminated_or_truncated,
    facts.limits_truncate,
    facts.reset_starts_new_episodes,
    facts.seeds_decide,
    facts.failures_name_their_cause,
    facts.shutdown_ends_it,
    facts.state_goes_on,
    facts.foreign_states_are_refused,
    facts.the_budget_is_kept,
    facts.stats_count,
)


@pytest.mark.parametrize("kind", by_default(KINDS, "serial", "vector", "custom batched"))
def test_random_actions(kind: str) -> None:
    check_collector(maker(KINDS[kind], lambda _: None), OF_RANDOM_ACTIONS)
