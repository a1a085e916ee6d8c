"""Claim: on vector envs, which step all rows in one call, reap keeps up with a loop written by hand for this env and policy.

Both step the same vector env and call the same network once a column, and record the same fields as `ceiling.hand_loop`.
EnvPool and SyncVectorEnv: rows that ended are reset by id or by mask, at once. `CartPoleVectorEnv` cannot do that: in both
loops the step after an end is its reset step, a frame that is marked and not valid; all frames are counted here.

"bare loop" is what people write who let EnvPool's reset steps pass as if they were frames: it saves the resets, and its data
hold a false transition at the end of each episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ceiling import CartPolePolicy
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import SyncVectorEnv
from pairs import Loop, Pair, reap_loop
from pong import PixelPolicy

TARGET = 0.95
POOL_ENVS = 64
POOL_COLUMNS = {"CartPole-v1": 50, "Pong-v5": 16}
SIZES = ((8, 125), (64, 50))

Resets = Callable[[Any, Any], Any]
"""From an env and the rows that ended (int array) to their first observations; None: the env resets them in its next step."""


def make_pool(name: str, envs: int) -> Any:
    import envpool

    return envpool.make(name, env_type="gymnasium", num_envs=envs, seed=0)


def make_sync(envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([partial(gym.make, "CartPole-v1", disable_env_checker=True)] * envs)


def make_cart_poles(envs: int) -> CartPoleVectorEnv:
    return CartPoleVectorEnv(envs, max_episode_steps=500)


def reset_by_id(env: Any, rows: Any) -> Any:
    return env.reset(rows.astype(np.int32))[0]


def reset_by_mask(env: Any, rows: Any) -> Any:
    mask = np.zeros(env.num_envs, bool)
    mask[rows] = True
    return env.reset(options={"reset_mask": mask})[0][rows]


@contextmanager
def hand_loop(
    build: Callable[[], Any], resets: Resets | None, build_policy: Callable[[], Any], envs: int, columns: int
) -> Iterator[Loop]:
    """The loop of a specialist: one step of all rows a column, rows that ended reset in one call."""
    env, policy, E, T = build(), build_policy(), envs, columns
    cur = env.reset()[0]
    ids, count = np.arange(E), E
    skip = np.zeros(E, bool)
    actions = policy(torch.from_numpy(cur)).shape[-1]
    kind = torch.from_numpy(cur).dtype

    @torch.inference_mode()
    def rollout() -> int:
        nonlocal cur, count, skip
        tobs, tnext = (torch.empty(E, T, *cur.shape[1:], dtype=kind) for _ in range(2))
        tact = torch.empty(E, T, actions, dtype=torch.int64)
        obs, nxt = tobs.numpy(), tnext.numpy()
        rew = np.empty((E, T, 1), np.float32)
        term, trunc, done = (np.zeros((E, T, 1), bool) for _ in range(3))
        tid = np.empty((E, T), np.int64)
        for t in range(T):
            obs[:, t] = cur
            tid[:, t] = np.where(skip, -1, ids) if resets is None else ids
            a = policy(tobs[:, t])
            tact[:, t] = a
            cur, r, d, u, _ = env.step(a.argmax(-1).numpy())
            nxt[:, t] = cur
            rew[:, t, 0] = r
            skip = d | u
            if skip.any():
                term[:, t, 0], trunc[:, t, 0], done[:, t, 0] = d, u, skip
                rows = np.flatnonzero(skip)
                if resets is not None:
                    cur[rows] = resets(env, rows)
                ids[rows] = np.arange(count, count + len(rows))
                count += len(rows)
        return E * T

    yield rollout
    env.close()


def pool_pairs() -> Iterator[Pair]:
    for name, policy in (("CartPole-v1", CartPolePolicy), ("Pong-v5", PixelPolicy)):
        columns, build = POOL_COLUMNS[name], partial(make_pool, name, POOL_ENVS)
        ours = partial(reap_loop, build, policy, POOL_ENVS * columns)
        for title, resets, target in (("", reset_by_id, TARGET), (", bare loop", None, None)):
            baseline = partial(hand_loop, build, resets, policy, POOL_ENVS, columns)
            yield Pair(f"EnvPool {name}{title}", "reap", POOL_ENVS, ours, baseline, target, "envpool")


def pairs() -> Iterator[Pair]:
    yield from pool_pairs()
    kinds: tuple[tuple[str, Callable[[int], Any], Resets | None], ...] = (
        ("SyncVectorEnv, CartPole", make_sync, reset_by_mask),
        ("CartPoleVectorEnv", make_cart_poles, None),
    )
    for claim, make, resets in kinds:
        for envs, columns in SIZES:
            build = partial(make, envs)
            ours = partial(reap_loop, build, CartPolePolicy, envs * columns)
            baseline = partial(hand_loop, build, resets, CartPolePolicy, envs, columns)
            yield Pair(claim, "reap", envs, ours, baseline, TARGET)
