"""Other libraries collecting the same CartPole frames, each as its own documentation says.

All of them step `gymnasium.make("CartPole-v1")` in this process and call a 2 x 64 tanh network once a column for all envs,
without gradients, on one thread; a batch has the same number of frames.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ceiling import CartPolePolicy
from pairs import Loop

ENV = "CartPole-v1"


@contextmanager
def gymnasium_vector(envs: int, columns: int) -> Iterator[Loop]:
    """A torch loop that records the same fields, over gymnasium's `SyncVectorEnv` (same-step autoreset, no copies).

    Nothing differs but the stepping: one `step` of the vector env instead of one of each env.
    """
    autoreset = gym.vector.AutoresetMode.SAME_STEP
    venv = gym.vector.SyncVectorEnv([partial(gym.make, ENV)] * envs, copy=False, autoreset_mode=autoreset)
    cur, ids, count, policy = venv.reset(seed=0)[0], np.arange(envs), envs, CartPolePolicy()

    @torch.inference_mode()
    def rollout() -> int:
        nonlocal cur, count
        shape = (envs, columns)
        tobs, tnext, tact = torch.empty(*shape, 4), torch.empty(*shape, 4), torch.empty(*shape, 2, dtype=torch.int64)
        obs, nxt, rew, tid = tobs.numpy(), tnext.numpy(), np.empty(shape, np.float32), np.empty(shape, np.int64)
        term, trunc, done = (np.zeros(shape, bool) for _ in range(3))
        for t in range(columns):
            obs[:, t], tid[:, t] = cur, ids
            action = policy(tobs[:, t])
            tact[:, t] = action
            cur, rew[:, t], ended, cut, info = venv.step(action.argmax(-1).numpy())
            nxt[:, t] = cur
            over = ended | cut
            if over.any():
                term[:, t], trunc[:, t], done[:, t] = ended, cut, over
                for b in np.flatnonzero(over):
                    nxt[b, t] = info["final_obs"][b]
                    ids[b] = count
                    count += 1
        return envs * columns

    yield rollout
    venv.close()


@contextmanager
def stable_baselines(envs: int, columns: int) -> Iterator[Loop]:
    """Stable-Baselines3: `collect_rollouts` of PPO over a `DummyVecEnv`.

    More work: the log-probability and a value (one linear layer here), and advantages at the end of a rollout. Less work: no
    next observations, no ids; its buffer holds numpy arrays, used again for each rollout.
    """
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    venv = DummyVecEnv([partial(gym.make, ENV)] * envs)
    network = {"net_arch": {"pi": [64, 64], "vf": []}}
    frames = envs * columns
    algorithm = PPO("MlpPolicy", venv, n_steps=columns, batch_size=frames, policy_kwargs=network, seed=0, device="cpu")
    _, callback = algorithm._setup_learn(total_timesteps=1 << 60)

    def rollout() -> int:
        algorithm.collect_rollouts(venv, callback, algorithm.rollout_buffer, columns)
        return frames

    yield rollout
    venv.close()


@contextmanager
def torchrl_collector(envs: int, columns: int) -> Iterator[Loop]:
    """The collector of torchrl over its `SerialEnv` of `GymEnv` (one `GymEnv` for one env), with a TensorDictModule."""
    import torchrl.collectors
    from tensordict.nn import TensorDictModule
    from torchrl.envs import GymEnv, SerialEnv

    # `Collector` since 0.11; `SyncDataCollector` before.
    collector_class: Any = getattr(torchrl.collectors, "Collector", None) or torchrl.collectors.SyncDataCollector
    env = GymEnv(ENV) if envs == 1 else SerialEnv(envs, partial(GymEnv, ENV))
    policy = TensorDictModule(CartPolePolicy(), in_keys=["observation"], out_keys=["action"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about defaults of a later version
        collector = collector_class(env, policy, frames_per_batch=envs * columns, total_frames=-1)
    batches = iter(collector)
    yield lambda: next(batches).numel()
    collector.shutdown()


@dataclass(frozen=True)
class Peer:
    """A library, the package it needs beyond reap's own, and its loop."""

    name: str
    needs: str | None
    open_loop: Callable[[int, int], AbstractContextManager[Loop]]


PEERS = (
    Peer("gymnasium vector", None, gymnasium_vector),
    Peer("SB3 (also values)", "stable_baselines3", stable_baselines),
    Peer("torchrl", "torchrl", torchrl_collector),
)
