"""`private_copy`: copies the weights of a policy, and shares everything else with the original.

Modules are copied as a whole. Functions, objects and containers that lead to them are rebuilt: variables, attributes and
items that lead to weights are new, all others are shared.
"""

from __future__ import annotations

import copy
from types import FunctionType
from typing import Any

import torch
from torch import nn

from reap.errors import OptionError, headline
from reap.policy.actors.plain import name_of
from reap.policy.contents.held import Held, Search
from reap.policy.contents.parts import HIDDEN, Step, fixed_with, is_fixed, put, twin
from reap.workers.pickling import calls_function, give_attributes


def private_copy(policy: Any, device: torch.device | None = None) -> Held:
    """A copy of a policy, with its contents; the policy itself if it has no weights.

    Args:
        policy: the policy, or the result of `held_by` for it.
        device: the device of the copied weights; None keeps their devices.

    Raises:
        OptionError: it holds a module in a place without a name, or one that cannot be copied.
    """
    search = Search(policy.policy if isinstance(policy, Held) else policy)
    held = search.held()
    if not held:
        return held
    if hidden := held.behind_others():
        raise OptionError(
            f"policy {name_of(held.policy)}: expected weights that a copy of the policy can have for itself, found {hidden}, "
            "which belong to the class and not to the policy; keep them in attributes: self.net = ..."
        )
    try:
        own = held.of(Copies(search).of_policy(held.policy))
    except Exception as error:
        raise OptionError(_uncopied(held, headline(error))) from error
    if own is None:  # as of a module that torch.jit.trace made
        raise OptionError(_uncopied(held, "copy.deepcopy makes an object of another form"))
    if device is not None:
        for _, root in own.roots():
            root.to(device)
        for tensor in own.loose().values():
            tensor.data = tensor.data.to(device)
    return own


def _uncopied(held: Held, reason: str) -> str:
    return (
        f"policy {name_of(held.policy)}: expected one that can be copied for another thread or device: {reason}; "
        "keep what cannot be copied outside of its modules, or give their class a __deepcopy__"
    )


class Copies(dict[int, Any]):
    """The copies, by the `id` of the original: a memo for `copy.deepcopy` that makes the ways to weights itself."""

    def __init__(self, search: Search) -> None:
        super().__init__()
        self._search = search
        leading = search.leading()
        self._leading = {key: [one for one in parts if one[0].kind != HIDDEN] for key, parts in leading.items()}

    def of_policy(self, policy: Any) -> Any:
        """The copy of a policy."""
        new = self._copied(policy)
        for key, steps in self._leading.items():
            if isinstance(self._search.ways[key][0], nn.Module) and key in self:
                self._finish(self[key], steps)
        return new

    def get(self, key: int, default: Any = None) -> Any:
        """The copy of an object, made on demand if it leads to weights and is not a module."""
        if key in self or key not in self._leading:
            return super().get(key, default)
        value = self._search.ways[key][0]
        if calls_function(value):
            new = self[key] = object.__new__(type(value))
            give_attributes(new, copy.deepcopy(vars(value), self))
            return new
        return default if isinstance(value, nn.Module | torch.Tensor) else self._made(value, self._leading[key])

    def _copied(self, value: Any) -> Any:
        if isinstance(value, nn.Module | torch.Tensor):
            return copy.deepcopy(value, self)
        return self.get(id(value))

    def _made(self, value: Any, leading: list[tuple[Step, Any]]) -> Any:
        if is_fixed(value):
            new = fixed_with(value, {step: self._copied(part) for step, part in leading})
            return self.setdefault(id(value), new)
        new = self[id(value)] = twin(value, [step for step, _ in leading])
        for step, part in leading:
            put(new, step, self._copied(part))
        return new

    def _finish(self, module: nn.Module, leading: list[tuple[Step, Any]]) -> None:
        """The objects that `copy.deepcopy` does not copy: functions, and attributes of a module's class."""
        for step, part in leading:
            if step.kind == "member" or isinstance(part, FunctionType):
                put(module, step, self._copied(part))
