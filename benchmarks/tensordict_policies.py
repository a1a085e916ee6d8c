"""Claim: a policy of TensorDict modules runs faster in reap than in a hand-written loop that calls it with TensorDicts.

CartPole with the same policy on both sides; reap calls its networks and distributions directly, after it has seen that the
bits are the same. Both compute the log-probability; reap also records it (and the logits), the hand-written loop drops them.
The envs are made by the same call on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from ceiling import CartPolePolicy, tensordict_loop
from pairs import SIZES, Pair, make_rows, plain_loop, reap_loop
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)

TARGETS = {1: 1.3, 8: 1.25, 64: 1.1}


def module() -> TensorDictModule:
    """The plain module of `cartpole.py` in a TensorDictModule."""
    return TensorDictModule(CartPolePolicy(), in_keys=["observation"], out_keys=["action"])


def logits() -> TensorDictModule:
    """The network alone."""
    return TensorDictModule(CartPolePolicy().net, in_keys=["observation"], out_keys=["logits"])


class OneHotCategorical(torch.distributions.OneHotCategorical):
    """torch's own, with actions of the env's dtype."""

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        return super().sample(torch.Size(sample_shape)).long()


def sequential() -> ProbabilisticTensorDictSequential:
    """Modules of tensordict alone: network, one-hot sample and its log-probability."""
    draw = ProbabilisticTensorDictModule(
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )
    return ProbabilisticTensorDictSequential(logits(), draw)


def actor() -> Any:
    """The ProbabilisticActor and OneHotCategorical of torchrl."""
    from torchrl.modules import OneHotCategorical as TorchrlOneHotCategorical
    from torchrl.modules import ProbabilisticActor

    return ProbabilisticActor(
        logits(),
        in_keys=["logits"],
        distribution_class=TorchrlOneHotCategorical,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )


POLICIES: tuple[tuple[str, Callable[[], Any], str | None], ...] = (
    ("CartPole, TensorDictModule", module, None),
    ("CartPole, ProbabilisticTensorDictSequential", sequential, None),
    ("CartPole, ProbabilisticActor", actor, "torchrl"),
)


def pairs() -> Iterator[Pair]:
    for claim, policy, needs in POLICIES:
        for envs, columns in SIZES:
            same_env = partial(make_rows, envs, partial(gym.make, "CartPole-v1"))
            ours = partial(reap_loop, same_env, policy, envs * columns)
            baseline = partial(plain_loop, lambda E=envs, T=columns, make=policy: tensordict_loop(E, T, make()))
            yield Pair(claim, "reap", envs, ours, baseline, TARGETS[envs], needs)
