"""`WeightStrategy`: extracts weights from one model and applies them to another, in one of two forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from reap.errors import OptionError
from reap.keys import nested
from reap.tensordicts import make_tensordict
from reap.weights.base import load_weights

FORMS = ("tensordict", "state_dict")


class WeightStrategy:
    """Extracts weights from models and applies them.

    Args:
        extract_as: "tensordict", nested by module, or "state_dict", flat, with the names of `nn.Module.state_dict`.

    Attributes:
        extract_as: as given.

    Raises:
        OptionError: an unknown form.

    Example:
        >>> strategy, source, target = WeightStrategy(), nn.Linear(2, 1), nn.Linear(2, 1)
        >>> strategy.apply_weights(target, strategy.extract_weights(source))
        >>> torch.equal(target.weight, source.weight)
        True
    """

    def __init__(self, extract_as: str = "tensordict") -> None:
        if extract_as not in FORMS:
            raise OptionError(f"extract_as: expected one of {list(FORMS)}, got {extract_as!r}")
        self.extract_as = extract_as

    def extract_weights(self, source: nn.Module | TensorDictBase | Mapping[str, Any]) -> TensorDictBase | dict[str, Any]:
        """The weights of a module, a TensorDict or a state dict, which share its memory.

        Raises:
            OptionError: anything else.
        """
        if isinstance(source, nn.Module):
            source = TensorDict.from_module(source) if self.extract_as == "tensordict" else source.state_dict()
        if isinstance(source, TensorDictBase):
            return source if self.extract_as == "tensordict" else dict(source.flatten_keys(".").items())
        if isinstance(source, Mapping):
            return dict(source) if self.extract_as == "state_dict" else _nested(source)
        raise OptionError(f"weights: expected a module, a TensorDict or a state dict, got {type(source).__name__}")

    def apply_weights(self, destination: Any, weights: Any) -> None:
        """Copy weights into a module, a TensorDict or a dict of tensors, in place; None changes nothing.

        Raises:
            OptionError: weights in an unknown form.
            SpecMismatch: names or shapes differ; nothing is changed then.
        """
        if weights is not None:
            load_weights(destination, weights)


def _nested(state: Mapping[str, Any]) -> TensorDictBase:
    tensors = {tuple(name.split(".")): value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return make_tensordict(nested(tensors), torch.Size())
