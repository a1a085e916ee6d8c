"""`MLP`: a network for an env, for tuning before there is a policy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from reap.envs.base import EnvBase
from reap.envs.gymnasium.env import GymEnv
from reap.errors import OptionError
from reap.option_values import is_count
from reap.specs import Bounded, Categorical, OneHot
from reap.specs.tensor_spec import TensorSpec


class MLP(nn.Module):
    """Tanh layers between an env's observation and its action, with torch's initial weights.

    Args:
        env: a single env with one observation, of numbers, and one action: Bounded with finite bounds, OneHot or Categorical.
        hidden: widths of the hidden layers.

    Raises:
        OptionError: another kind of env, or a width that is not positive.
    """

    low: Tensor
    high: Tensor

    def __init__(self, env: EnvBase, hidden: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(hidden, list | tuple) or not all(map(is_count, hidden)):
            raise OptionError(f"hidden: expected a list of positive widths, such as [64, 64], got {hidden!r}")
        given = env.action_spec
        spec: Any = given  # its kind decides what it has
        observations = list(env.observation_spec.keys())
        if observations != ["observation"] or not isinstance(given, Bounded | OneHot | Categorical):
            raise OptionError(
                "hidden: expected an env with one observation and an action that is Bounded, OneHot or Categorical; found "
                f"observations {observations} and the action {spec}; give a policy"
            )
        observed = env.observation_spec["observation"]
        if not isinstance(observed, TensorSpec):
            raise OptionError(
                "hidden: expected an observation that is one tensor of numbers, found the observation 'observation' of "
                f"{_space(env)}; give a policy"
            )
        self._dims = len(observed.shape)
        if isinstance(given, Bounded) and not given.dtype.is_floating_point:
            raise OptionError(f"hidden: expected a Bounded action of floats, found {spec}; give a policy")
        self._is_box, self._is_one_hot = isinstance(given, Bounded), isinstance(given, OneHot)
        if self._is_box:
            self.register_buffer("low", torch.as_tensor(spec.low).expand(spec.shape).clone())
            self.register_buffer("high", torch.as_tensor(spec.high).expand(spec.shape).clone())
            if not (self.low.isfinite() & self.high.isfinite()).all():
                raise OptionError(f"hidden: expected an action with finite bounds, found {spec}; give a policy")
        outputs = spec.shape.numel() if self._is_box else int(spec.n)
        inputs = observed.shape.numel()
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *hidden, outputs)):
            layers += nn.Linear(before, after), nn.Tanh()
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, observation: Tensor) -> Tensor:
        """Actions `[*B, *action]` for observations `[*B, *observation]`."""
        rows = observation.shape[: observation.dim() - self._dims]
        outputs = self.layers(observation.reshape(*rows, -1).float())
        if self._is_box:
            middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
            return middle + half * outputs.tanh().reshape((*rows, *self.low.shape))
        choice = outputs.argmax(-1)
        return nn.functional.one_hot(choice, outputs.shape[-1]) if self._is_one_hot else choice


def _space(env: EnvBase) -> str:
    """The observations of an env, as its own library describes them."""
    if isinstance(env, GymEnv):
        return f"the space {env.wrapped.observation_space}"
    return f"the spec {env.observation_spec['observation']}"
