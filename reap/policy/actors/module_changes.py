"""`ModuleChanges`: detects changes of TensorDict modules that were unwrapped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any

from tensordict.nn import TensorDictSequential
from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class ModuleChanges:
    """Detects changes of TensorDict modules."""

    def __init__(self, modules: Sequence[Any]) -> None:
        self._hooks = [getattr(module, hooks) for module in modules for hooks in HOOKS]
        self._attributes = [vars(module) for module in modules]
        # Going from train to eval mode changes nothing in them; their networks take care of it.
        self._getters = [itemgetter(*(name for name in vars(module) if name != "training")) for module in modules]
        sequences = [module.module for module in modules if isinstance(module, TensorDictSequential)]
        self._children = [vars(module)["_modules"] for module in (*modules, *sequences)]
        self._before = self._state()

    def found(self) -> bool:
        """Whether an attribute, a network or a module of a sequence was replaced, or there is a hook."""
        if any(self._hooks) or nn.modules.module._has_any_global_hook():  # pyright: ignore[reportPrivateUsage]
            return True
        try:
            now = self._state()
        except KeyError:  # an attribute was deleted
            return True
        return len(now) != len(self._before) or not all(map(is_, now, self._before))

    def _state(self) -> list[Any]:
        values = chain.from_iterable(get(own) for get, own in zip(self._getters, self._attributes, strict=True))
        children = chain.from_iterable(modules.values() for modules in self._children)
        return [*map(len, self._attributes), *values, *children]
