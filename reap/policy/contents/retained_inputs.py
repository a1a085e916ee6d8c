"""Replaces inference tensors that a policy has kept, since they cannot be used for training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from itertools import chain
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from reap.policy.contents.held import held_by

MUTABLE = (list, deque, set, dict)


def detach_inference_tensors(policy: Callable[..., Any]) -> bool:
    """Replace inference tensors that a policy holds by ordinary copies; return whether there were any.

    A policy that stores activations or materialises lazy layers during a rollout would fail in the next backward pass. It
    searches the attributes of modules, of a callable object, the variables of a function, and the attributes of objects
    that lead to modules, including items of lists, deques, tuples, sets and dicts in them.
    """
    found = False
    for store in chain(_stores(policy), *map(_stores, held_by(policy).objects().values())):
        found = _replace(store) or found
    return found


def _stores(policy: Any) -> Iterator[MutableMapping[str, Any]]:
    """The namespaces in which a policy keeps values."""
    if isinstance(policy, nn.Module):
        for part in policy.modules():
            attributes = vars(part)
            # TorchScript has none of these two: it keeps them elsewhere, and makes no new ones.
            yield from (attributes[name] for name in ("_parameters", "_buffers") if name in attributes)
            yield attributes
        return
    if isinstance(policy, partial):
        yield from _stores(policy.func)
        return
    if isinstance(policy, MethodType):
        policy = policy.__self__
        if isinstance(policy, nn.Module):
            yield from _stores(policy)
            return
    if isinstance(policy, FunctionType):
        variables = Variables(policy)
        yield variables
        attributes: dict[str, Any] = dict(variables.items())
    else:
        attributes = getattr(policy, "__dict__", {})
        yield attributes
    for value in list(attributes.values()):
        if isinstance(value, nn.Module):
            yield from _stores(value)


class Variables(MutableMapping[str, Any]):
    """The values of a function's free names: variables of enclosing functions, and globals that it uses."""

    def __init__(self, function: FunctionType) -> None:
        self._globals = function.__globals__
        names = function.__code__.co_freevars
        self._cells = dict(zip(names, function.__closure__ or (), strict=True))
        self._names = [*names, *(name for name in function.__code__.co_names if name in self._globals)]

    def __getitem__(self, name: str) -> Any:
        cell = self._cells.get(name)
        if cell is None:
            return self._globals[name]
        try:
            return cell.cell_contents
        except ValueError:  # not set yet
            return None

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._cells:
            self._cells[name].cell_contents = value
        else:
            self._globals[name] = value

    def __delitem__(self, name: str) -> None:
        raise TypeError("variables of a function are replaced, not deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _replace(store: MutableMapping[str, Any]) -> bool:
    kept = {name: _ordinary(value) for name, value in store.items() if _has_inference(value)}
    for name, value in kept.items():
        store[name] = value
    return bool(kept)


def _has_inference(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_inference()
    if type(value) is dict:
        return any(map(_has_inference, list(value.values())))
    return (type(value) is tuple or type(value) in MUTABLE) and any(map(_has_inference, list(value)))


def _ordinary(value: Any) -> Any:
    """The value with ordinary tensors in it: the same container where it can be changed, for others may hold it too."""
    if isinstance(value, torch.Tensor):
        if not value.is_inference():
            return value
        return nn.Parameter(value.clone(), value.requires_grad) if isinstance(value, nn.Parameter) else value.clone()
    if type(value) is tuple:
        return tuple(map(_ordinary, value))
    if type(value) is dict:
        value.update({name: _ordinary(item) for name, item in value.items()})
    elif type(value) in MUTABLE:
        items = list(map(_ordinary, value))
        value.clear()
        (value.update if type(value) is set else value.extend)(items)
    return value
