"""Claim: with CartPole and a plain module, reap is as fast as a loop written by hand for this env and this policy.

Both step the same envs (`gymnasium.make("CartPole-v1")`, with the wrappers it adds), call the same network once a column for
all envs, and record the same fields. What differs: reap gives a single env's policy an observation `[4]`, the hand-written
loop `[1, 4]`; reap's batch has a few fields more (`done` flags at the root); the hand-written loop delivers arrays, reap a
TensorDict that may be kept.

"own env" is the env that reap makes from the id alone: without gymnasium's passive checker, which `gymnasium.make`
puts around every env and which costs one Python call a step.

Peers run against the same hand-written loop; `peers.py` says what differs in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import gymnasium as gym
import peers
from ceiling import CartPolePolicy, hand_loop
from pairs import SIZES, Pair, make_rows, plain_loop, reap_loop

from reap import GymEnv, SerialEnv

ENV = "CartPole-v1"
CLAIM = "CartPole, plain module"
TARGET = 1.0


def by_id(envs: int) -> GymEnv | SerialEnv:
    return GymEnv(ENV) if envs == 1 else SerialEnv(envs, ENV)


def pairs() -> Iterator[Pair]:
    for envs, columns in SIZES:
        frames = envs * columns
        baseline = partial(plain_loop, lambda E=envs, T=columns: hand_loop(E, T, CartPolePolicy()))
        same_env = partial(make_rows, envs, partial(gym.make, ENV))
        yield Pair(CLAIM, "reap", envs, partial(reap_loop, same_env, CartPolePolicy, frames), baseline, TARGET)
        own_env = partial(reap_loop, partial(by_id, envs), CartPolePolicy, frames)
        yield Pair(CLAIM, "reap, own env", envs, own_env, baseline)
        for peer in peers.PEERS:
            yield Pair(CLAIM, peer.name, envs, partial(peer.open_loop, envs, columns), baseline, needs=peer.needs)
