"""Plain attributes of a policy, such as `policy.eps = 0.1`: changed ones are sent with the weights, others are warned of.

    trainer's policy     Changes: last seen value, by name
      eps 1.0 -> 0.1  -> {"eps": (number of the change, 0.1)}, and all earlier changes  --(with extra states)--> acting policy

An update carries all changes so far, because a worker may have missed earlier ones. The worker applies those with numbers that
are new to it, so attributes that it counts itself are left alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from numbers import Number
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from reap.errors import callers_level
from reap.policy.contents.held import Held, joined
from reap.policy.contents.parts import attributes_and_slots

ATTRIBUTES = "_changed_attributes"
"""The name under which changes are sent with extra states: `{name: (number, value)}`."""

LOADED = 1
"""The number given to changes that come from a collector's state."""

OF_MODULES = frozenset((*vars(nn.Module()), "_compiled_call_impl", "call_super_init", "dump_patches"))
"""Attributes that torch keeps in every module."""

LIBRARIES = ("torch", "tensordict", "torchrl")


class Changes:
    """The changes of plain attributes since a policy was handed to the workers.

    Args:
        held: the policy as it was handed over; None if the workers made their own.
        known: attributes, by name, that are equal in all policies that they made.
    """

    def __init__(self, held: Held | None, known: Mapping[str, Any] | None = None) -> None:
        self._seen: dict[str, Any] = (
            {name: _kept(value) for name, value in attributes(held).items()} if held else dict(known or {})
        )
        # Another policy of this form has other lists and objects: nothing was changed by that.
        self._owner: Any = None if held is None else held.policy
        self._kinds: dict[str, type] | None = None if held is None else _kinds(held)
        self._found: dict[str, tuple[int, Any]] = {}
        self._warned: set[str] = set()
        self._number = LOADED

    def found(self, held: Held | None) -> dict[str, tuple[int, Any]]:
        """All changes so far, each with its number.

        Args:
            held: the current policy; None if weights were given without one.
        """
        if held is not None:
            self._number += 1
            is_own = self._owner is None or _is_one(held.policy, self._owner)
            for name, value in attributes(held).items():
                self._look_at(name, value, is_own)
            if is_own:
                self._look_at_modules(_kinds(held))
            self._owner = held.policy if self._owner is None else self._owner
        return dict(self._found)

    def _look_at(self, name: str, value: Any, is_own: bool) -> None:
        is_new = name not in self._seen
        if (not is_new and _is_same(self._seen[name], value)) or not (is_own or is_plain(value)):
            return
        before = self._seen.get(name)
        self._seen[name] = _kept(value)
        if is_new and self._owner is None:
            return
        if is_plain(value):
            self._found[name] = (self._number, self._seen[name])
        elif not is_new and name not in self._warned and not _is_computed(value):
            self._warned.add(name)
            warnings.warn(
                f"policy: {name} was a {type(before).__name__} and is another {type(value).__name__} now, which does not reach "
                "the policies that act elsewhere; numbers, strings and tensors do: keep it in one of these or in "
                "get_extra_state(), or build a new collector",
                stacklevel=callers_level(),
            )

    def _look_at_modules(self, now: dict[str, type]) -> None:
        before, self._kinds = self._kinds, now
        if before is None or before == now:
            return
        name = next(name for name in {**before, **now} if before.get(name) is not now.get(name))
        was, is_now = (kinds[name].__name__ if name in kinds else "nothing" for kinds in (before, now))
        warnings.warn(
            f"policy: the module {name!r} was {was} and is {is_now} now, which does not reach the policies that act elsewhere: "
            "only values of weights and attributes do; build a new collector",
            stacklevel=callers_level(),
        )


def _kinds(held: Held) -> dict[str, type]:
    """The classes of a policy's modules, by name; of lazy ones those that they become."""
    return {name: getattr(type(module), "cls_to_become", None) or type(module) for name, module in held.modules().items()}


def _is_one(policy: Any, other: Any) -> bool:
    """Whether two objects are the same; bound methods are compared by value, since each access makes a new one."""
    return policy is other or (isinstance(policy, MethodType) and policy == other)


def attributes(held: Held) -> dict[str, Any]:
    """Attributes of a policy's modules and of the objects that hold them, by dotted name, without torch's own attributes."""
    found: dict[str, Any] = {}
    for prefix, owner in held.objects().items():
        is_module = isinstance(owner, nn.Module)
        own = attributes_and_slots(owner)
        is_theirs = type(owner).__module__.partition(".")[0] in LIBRARIES
        for name in own.keys() - OF_MODULES if is_module else own:
            value = own[name]
            if not (is_theirs and (name.startswith("_") or isinstance(value, torch.Tensor))):
                found[joined(prefix, name)] = value
    return found


def plain_attributes(held: Held) -> dict[str, Any]:
    """The attributes that can be sent, with tensors copied."""
    return {name: _kept(value) for name, value in attributes(held).items() if is_plain(value)}


def set_attributes(held: Held, changes: Mapping[str, tuple[int, Any]]) -> None:
    """Apply changes that are new to a policy."""
    new = {name: change for name, change in changes.items() if change[0] > held.applied.get(name, 0)}
    if not new:
        return
    owners = held.objects()
    for name, (number, value) in new.items():
        prefix, _, attribute = name.rpartition(".")
        owner = owners.get(prefix)
        if owner is not None:
            _set(owner, attribute, value)
        held.applied[name] = number


def applied_attributes(held: Held) -> dict[str, Any]:
    """The current values of attributes that were set by applied changes."""
    found = plain_attributes(held) if held.applied else {}
    return {name: found[name] for name in held.applied if name in found}


def agreed(each: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The attributes that are equal in all of these policies."""
    first, *others = each
    return {name: value for name, value in first.items() if all(name in own and _is_same(own[name], value) for own in others)}


def loaded(values: Mapping[str, Any]) -> dict[str, tuple[int, Any]]:
    """Attributes from a collector's state, as changes."""
    return {name: (LOADED, value) for name, value in values.items()}


def is_plain(value: Any) -> bool:
    """Whether a value can be sent: a number, a string, None, or a tensor without gradient history."""
    if isinstance(value, torch.Tensor):
        return not _is_computed(value) and value.layout is torch.strided and not value.is_meta
    return value is None or isinstance(value, Number | np.generic | str)


def _is_computed(value: Any) -> bool:
    """Whether a value is part of an autograd graph: an activation, which is private to each policy."""
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _kept(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) and is_plain(value) else value


def _is_same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor):
        return (
            before.dtype == now.dtype
            and before.shape == now.shape
            and is_plain(now)
            and torch.equal(before, now.detach().cpu())
        )
    is_value = isinstance(now, Number | np.generic | str) and type(before) is type(now)
    return is_value and bool(before == now or (before != before and now != now))  # noqa: PLR0124  NaN is NaN still


def _set(owner: Any, name: str, value: Any) -> None:
    before: Any = attributes_and_slots(owner).get(name)
    if not isinstance(value, torch.Tensor):
        setattr(owner, name, value)
    elif isinstance(before, torch.Tensor) and before.shape == value.shape and before.dtype == value.dtype:
        with torch.no_grad():
            before.copy_(value)
    else:
        setattr(owner, name, value.clone().to(before.device if isinstance(before, torch.Tensor) else value.device))
