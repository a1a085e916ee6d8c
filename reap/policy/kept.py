"""Tensors that a module keeps from inference mode, where they cannot be used for training."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn

CONTAINERS = (list, tuple, set)


def detach_inference_tensors(module: nn.Module) -> bool:
    """Replace inference tensors that a module's parts hold by ordinary copies; return whether there were any.

    A module that stores activations or materialises lazy layers during a rollout would fail in the next backward pass. Those in
    lists, tuples and dicts are found too.
    """
    found = False
    for part in module.modules():
        attributes = vars(part)
        for store in (attributes["_parameters"], attributes["_buffers"], attributes):
            found = _replace(store) or found
    return found


def _replace(store: MutableMapping[str, Any]) -> bool:
    kept = {name: _ordinary(value) for name, value in store.items() if _has_inference(value)}
    store.update(kept)
    return bool(kept)


def _has_inference(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_inference()
    if type(value) in CONTAINERS:
        return any(map(_has_inference, value))
    return type(value) is dict and any(map(_has_inference, value.values()))


def _ordinary(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_inference():
            return value
        return nn.Parameter(value.clone(), value.requires_grad) if isinstance(value, nn.Parameter) else value.clone()
    if type(value) in CONTAINERS:
        return type(value)(map(_ordinary, value))
    return {name: _ordinary(item) for name, item in value.items()} if type(value) is dict else value
