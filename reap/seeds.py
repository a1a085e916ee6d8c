"""The chain of seeds: one number given by the user, one for each env after it."""

from __future__ import annotations

import random

import numpy as np
import torch


def next_seed(seed: int) -> int:
    """The seed that follows in the chain: hashed, so that seeds `s` and `s + 1` share no env.

    Example:
        >>> next_seed(0), next_seed(1)
        (1484405855, 917752063)
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0] >> 1)


def seed_chain(seed: int, count: int, *, static: bool = False) -> list[int]:
    """Seeds for `count` envs, and the next one after them; all the same if `static`."""
    seeds = [seed]
    for _ in range(count):
        seeds.append(seed if static else next_seed(seeds[-1]))
    return seeds


def seed_generators(seed: int) -> None:
    """Seed the global generators: processes that were forked from one would draw the same numbers."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  the global one, which envs may use
    random.seed(seed)
