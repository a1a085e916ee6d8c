"""Claim: with a policy that has LSTM state, reap keeps up with a loop written by hand that carries the state in the same way.

Both step the same envs and call the same module with the observation and the state, all envs in one call; the state is carried
from step to step and is zero exactly where an episode starts. Both record the fields of `ceiling.hand_loop` and the
state, before and after each step. What differs otherwise is said in `cartpole.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from pairs import SIZES, Loop, Pair, make_rows, plain_loop, reap_loop
from torch import nn

ENV = "CartPole-v1"
CLAIM = "CartPole, LSTM state"
TARGET = 0.95
WIDTH = 64


class RecurrentPolicy(nn.Module):
    """An LSTM cell and a layer of logits; categorical sampling, one-hot action int64 `[..., 2]`."""

    initial_state = {"hidden": (WIDTH,), "cell": (WIDTH,)}  # noqa: RUF012  read, never written

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTMCell(4, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, observation: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> dict[Any, torch.Tensor]:
        hidden, cell = self.lstm(observation, (hidden, cell))
        choice = torch.distributions.Categorical(logits=self.head(hidden), validate_args=False)
        return {"action": nn.functional.one_hot(choice.sample(), 2), ("next", "hidden"): hidden, ("next", "cell"): cell}


def hand_loop(E: int, T: int, policy: RecurrentPolicy) -> Loop:
    """The loop of a specialist: that of `ceiling.py`, with the state of all envs in two tensors."""
    envs = [gym.make(ENV) for _ in range(E)]
    cur = np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)])
    ids, count = np.arange(E), E
    hidden, cell = torch.zeros(E, WIDTH), torch.zeros(E, WIDTH)

    @torch.inference_mode()
    def rollout() -> int:
        nonlocal count, hidden, cell
        tobs, tnext = torch.empty(E, T, 4), torch.empty(E, T, 4)
        thid, tcell, nhid, ncell = (torch.empty(E, T, WIDTH) for _ in range(4))
        tact = torch.empty(E, T, 2, dtype=torch.int64)
        obs, nxt = tobs.numpy(), tnext.numpy()
        rew = np.empty((E, T, 1), np.float32)
        term, trunc, done = (np.zeros((E, T, 1), bool) for _ in range(3))
        tid = np.empty((E, T), np.int64)
        for t in range(T):
            obs[:, t] = cur
            tid[:, t] = ids
            thid[:, t], tcell[:, t] = hidden, cell
            out = policy(tobs[:, t], hidden, cell)
            a, hidden, cell = out["action"], out["next", "hidden"], out["next", "cell"]
            tact[:, t], nhid[:, t], ncell[:, t] = a, hidden, cell
            for b, k in enumerate(a.argmax(-1).tolist()):
                o, r, d, u, _ = envs[b].step(k)
                nxt[b, t] = o
                rew[b, t] = r
                cur[b] = o
                if d or u:
                    term[b, t], trunc[b, t], done[b, t] = d, u, True
                    cur[b] = envs[b].reset()[0]
                    hidden[b] = cell[b] = 0
                    ids[b] = count
                    count += 1
        return E * T

    return rollout


def pairs() -> Iterator[Pair]:
    for envs, columns in SIZES:
        same_env = partial(make_rows, envs, partial(gym.make, ENV))
        ours = partial(reap_loop, same_env, RecurrentPolicy, envs * columns)
        baseline = partial(plain_loop, lambda E=envs, T=columns: hand_loop(E, T, RecurrentPolicy()))
        yield Pair(CLAIM, "reap", envs, ours, baseline, TARGET)
