"""Moves results of an env on TensorDicts to the device of its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from reap.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDictBase


def moving(call: Callable[[Any], TensorDictBase], device: torch.device) -> Callable[[Any], TensorDictBase]:
    """Wraps a call and moves its result to a device, if any of it is elsewhere."""

    def moved(given: Any) -> TensorDictBase:
        result = call(given)
        return result if result.device == device or is_there(result, device) else result.to(device)

    return moved


def is_there(values: Any, device: torch.device) -> bool:
    """Whether all tensors of a TensorDict are on a device."""
    for value in values.values():
        if isinstance(value, torch.Tensor):
            if value.device != device:
                return False
        elif not is_there(value, device):
            return False
    return True


def require_values(device: torch.device) -> None:
    """Raise OptionError for a device whose tensors hold no values."""
    if device.type == "meta":
        raise OptionError("env_device='meta': expected a device that holds values, and tensors on meta have none")
