"""The kinds of envs that collectors run, each made of a factory of gymnasium envs with numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from tensordict import TensorDict, TensorDictBase

from reap.collectors import SyncDataCollector
from reap.data import Composite, Unbounded
from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.seeds import next_seed

Factory = Callable[[int], gym.Env]


class ByTensorDict(EnvBase):
    """Gymnasium envs as an env that is written by TensorDicts; what it steps from stands in the TensorDict.

    An env offers its state if all of its rows do.
    """

    def __init__(self, envs: Sequence[gym.Env], batch_size: Sequence[int]) -> None:
        super().__init__(batch_size=batch_size)
        self.rows = list(envs)
        shape = envs[0].observation_space.shape
        self.observation_spec = Composite(observation=Unbounded((*batch_size, *shape)), shape=batch_size)
        self.action_spec = Unbounded((*batch_size, 1))
        self.add_truncated_keys()
        self._seeds: list[int | None] = [None] * len(self.rows)

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        count = len(self.rows)
        chosen = [True] * count
        if tensordict is not None and "_reset" in tensordict:
            chosen = tensordict["_reset"].reshape(-1).tolist()
        old = torch.zeros(count, 1) if all(chosen) else tensordict["observation"].reshape(count, -1)
        rows = list(old.unbind(0))
        for b in range(count):
            if chosen[b]:
                rows[b] = torch.as_tensor(self.rows[b].reset(seed=self._seeds[b])[0])
                self._seeds[b] = None
        taken = torch.tensor([0.0 if chosen[b] else 1.0 for b in range(count)]).unsqueeze(-1)
        if not all(chosen):
            taken = taken * tensordict["taken"].reshape(count, 1)
        return self._td(observation=torch.stack(rows), taken=taken)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions = tensordict["action"].reshape(len(self.rows), -1).numpy().copy()
        steps = [env.step(action) for env, action in zip(self.rows, actions, strict=True)]
        terminated, truncated = (torch.tensor([bool(step[i]) for step in steps]) for i in (2, 3))
        # Counted in the TensorDict alone: right only if the TensorDict of the step before comes back.
        taken = tensordict["taken"].reshape(len(self.rows), 1) + 1
        assert taken.flatten().tolist() == [getattr(env, "steps", taken[b]) for b, env in enumerate(self.rows)]
        return self._td(
            observation=torch.stack([torch.as_tensor(step[0]) for step in steps]),
            reward=torch.tensor([float(step[1]) for step in steps]).unsqueeze(-1),
            taken=taken,
            terminated=terminated,
            truncated=truncated,
            done=terminated | truncated,
        )

    def _td(self, **values: torch.Tensor) -> TensorDict:
        return TensorDict({key: value.reshape(*self.batch_size, -1) for key, value in values.items()}, self.batch_size)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        for b in range(len(self.rows)):
            self._seeds[b] = seed
            seed = seed if static_seed else next_seed(seed)
        return seed

    def state_dict(self) -> dict[str, Any] | None:
        if not all(hasattr(env, "state_dict") for env in self.rows):
            return None
        return {"rows": [env.state_dict() for env in self.rows], "seeds": list(self._seeds)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for env, own in zip(self.rows, state["rows"], strict=True):
            env.load_state_dict(own)
        self._seeds = list(state["seeds"])


def made(factory: Factory, count: int, start: int = 0) -> list[Callable[[], gym.Env]]:
    return [partial(factory, number) for number in range(start, start + count)]


def by_tensordict(factory: Factory, batch_size: Sequence[int], start: int = 0) -> ByTensorDict:
    count = torch.Size(batch_size).numel()
    return ByTensorDict([make() for make in made(factory, count, start)], batch_size)


def wrapped(factory: Factory, number: int) -> gym.Env:
    return OrderEnforcing(TimeLimit(factory(number), 1000))


KINDS: dict[str, Callable[[Factory], EnvBase]] = {
    "gym": lambda factory: GymEnv(factory(0)),
    "wrapped": lambda factory: GymEnv(wrapped(factory, 3), frame_skip=1),
    "serial": lambda factory: SerialEnv(3, made(factory, 3)),
    "serial of wrapped": lambda factory: SerialEnv(2, made(partial(wrapped, factory), 2)),
    "vector": lambda factory: GymEnv(SyncVectorEnv(made(factory, 3))),
    "serial of vectors": lambda factory: SerialEnv(2, [lambda n=n: GymEnv(SyncVectorEnv(made(factory, 2, n))) for n in (0, 2)]),
    "custom": lambda factory: by_tensordict(factory, ()),
    "custom batched": lambda factory: by_tensordict(factory, (2, 3)),
    "serial of customs": lambda factory: SerialEnv(2, [lambda n=n: by_tensordict(factory, (2,), n) for n in (0, 2)]),
}
"""Each kind of env, of a factory."""


def maker(kind: str) -> Callable[..., SyncDataCollector]:
    """`make_collector` for `check_collector`, with this kind of env."""

    def make_collector(env_factory: Factory, policy: Any, **options: Any) -> SyncDataCollector:
        return SyncDataCollector(lambda: KINDS[kind](env_factory), policy, **options)

    return make_collector
