"""Networks and policies of TensorDict modules that the tests of this folder share."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import ProbabilisticTensorDictModule as Prob
from tensordict.nn import TensorDictModule
from tensordict.nn.distributions import NormalParamExtractor
from torch import distributions as d
from torch import nn
from torchrl.modules import OneHotCategorical, ProbabilisticActor

from reap.recording.buffers import Stage
from tests.policy.recording import OBSERVATION

STAGE = Stage(OBSERVATION, (3,))


def net(n_out: int = 2, n_in: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(n_in, 8), nn.Tanh(), nn.Linear(8, n_out))


def mod(out: Any = "action", n: int = 2, cls: type = TensorDictModule, **options: Any) -> Any:
    return cls(net(n), in_keys=["observation"], out_keys=[out], **options)


def prob(cls: type = Prob, **options: Any) -> Any:
    kwargs = {"out_keys": ["action"], "distribution_class": d.OneHotCategorical, "return_log_prob": True, **options}
    return cls(in_keys=["logits"], **kwargs)


def actor(**options: Any) -> ProbabilisticActor:
    kwargs = {"distribution_class": OneHotCategorical, "return_log_prob": True, **options}
    return ProbabilisticActor(mod("logits"), in_keys=["logits"], **kwargs)


def normal_parts(cls: type = TensorDictModule) -> list[Any]:
    return [mod("params", 4, cls), cls(NormalParamExtractor(), in_keys=["params"], out_keys=["loc", "scale"])]


def chain() -> list[TensorDictModule]:
    return [
        mod("hidden", 6),
        TensorDictModule(nn.Linear(6, 3), in_keys=["hidden"], out_keys=["deep"]),
        TensorDictModule(lambda deep, hidden: deep[..., :2] * hidden[..., :2], ["deep", "hidden"], ["action"]),
    ]


def two_samples() -> list[Any]:
    return [
        mod("loc"),
        Prob(in_keys=["loc"], out_keys=["goal"], distribution_class=d.Normal, distribution_kwargs={"scale": 0.5}),
        TensorDictModule(torch.tanh, in_keys=["goal"], out_keys=["centre"]),
        Prob(
            in_keys={"loc": "centre"},
            out_keys=["action"],
            distribution_class=d.Normal,
            distribution_kwargs={"scale": 2.0},
            return_log_prob=True,
        ),
    ]


def doubled(module: nn.Module, *args: Any) -> Any:
    return args[-1].set("action", 2 * args[-1]["action"])
