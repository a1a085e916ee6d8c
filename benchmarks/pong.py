"""Claim: with pixels, where memory traffic counts, reap keeps up with a hand-written loop.

ALE Pong, 84 x 84 gray, 4 frames stacked, uint8, 8 envs, a small convolutional policy; envs and policy are made by the same
calls on both sides. The hand-written loop is `ceiling.hand_loop` for this env: same fields, arrays of its own for each
rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from pairs import Loop, Pair, make_rows, plain_loop, reap_loop
from torch import nn

CLAIM = "ALE Pong 84x84x4, small conv policy"
ENVS, COLUMNS = 8, 32
TARGET = 0.97
ACTIONS = 6


def make_pong() -> gym.Env[Any, Any]:
    import ale_py

    gym.register_envs(ale_py)
    return FrameStackObservation(AtariPreprocessing(gym.make("ALE/Pong-v5", frameskip=1)), 4)


class PixelPolicy(nn.Module):
    """Two convolutions, categorical sampling, one-hot action int64 `[..., 6]`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2592, ACTIONS)
        )

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        d = torch.distributions.Categorical(logits=self.net(observation / 255), validate_args=False)
        return nn.functional.one_hot(d.sample(), ACTIONS)


def hand_loop(E: int, T: int, policy: Callable[[torch.Tensor], torch.Tensor]) -> Loop:
    """`ceiling.hand_loop` for pixels: single gymnasium envs stepped one by one."""
    envs = [make_pong() for _ in range(E)]
    cur = np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)])
    ids = np.arange(E)
    count = E

    @torch.inference_mode()
    def rollout() -> int:
        nonlocal count
        tobs, tnext = (torch.empty(E, T, *cur.shape[1:], dtype=torch.uint8) for _ in range(2))
        tact = torch.empty(E, T, ACTIONS, dtype=torch.int64)
        obs, nxt = tobs.numpy(), tnext.numpy()
        rew = np.empty((E, T, 1), np.float32)
        term, trunc, done = (np.zeros((E, T, 1), bool) for _ in range(3))
        tid = np.empty((E, T), np.int64)
        for t in range(T):
            obs[:, t] = cur
            tid[:, t] = ids
            a = policy(tobs[:, t])
            tact[:, t] = a
            for b, k in enumerate(a.argmax(-1).tolist()):
                o, r, d, u, _ = envs[b].step(k)
                nxt[b, t] = o
                rew[b, t] = r
                cur[b] = o
                if d or u:
                    term[b, t], trunc[b, t], done[b, t] = d, u, True
                    cur[b] = envs[b].reset()[0]
                    ids[b] = count
                    count += 1
        return E * T

    return rollout


def pairs() -> Iterator[Pair]:
    ours = partial(reap_loop, partial(make_rows, ENVS, make_pong), PixelPolicy, ENVS * COLUMNS)
    baseline = partial(plain_loop, lambda: hand_loop(ENVS, COLUMNS, PixelPolicy()))
    yield Pair(CLAIM, "reap", ENVS, ours, baseline, TARGET, "ale_py")
