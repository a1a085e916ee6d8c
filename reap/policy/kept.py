"""Tensors that a module keeps from inference mode, where they cannot be used for training."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn


def detach_inference_tensors(module: nn.Module) -> bool:
    """Replace inference tensors that a module's parts hold by ordinary copies; return whether there were any.

    A module that stores activations or materialises lazy layers during a rollout would fail in the next backward pass.
    """
    found = False
    for part in module.modules():
        attributes = vars(part)
        for store in (attributes["_parameters"], attributes["_buffers"], attributes):
            found = _replace(store) or found
    return found


def _replace(store: MutableMapping[str, Any]) -> bool:
    kept = [name for name, value in store.items() if isinstance(value, torch.Tensor) and value.is_inference()]
    for name in kept:
        value = store[name]
        copy = value.clone()
        store[name] = nn.Parameter(copy, value.requires_grad) if isinstance(value, nn.Parameter) else copy
    return bool(kept)
