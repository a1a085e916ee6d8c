"""`visit`: finds the objects that would be sent with a value to another process.

Functions and classes of `__main__`, lambdas, closures and local classes are sent by value, with everything they refer to;
others by name, so that the other process has its own. Only the pickler knows which are which, and what an object leaves out
of its state. So this runs the pickler and drops the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copyreg import dispatch_table
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

from reap.workers.pickling import ByValuePickler

ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))
PROTOCOL = 5


@dataclass(frozen=True)
class Visited:
    """The objects that a pickler visited.

    Attributes:
        objects: all objects but numbers and strings, by `id`; they live as long as this does.
        weights: the modules and parameters among them.
        by_value: the `id` of each function and class that would be sent by value.
        packed: objects of torch's C++ code, such as the weights of quantized layers; their parts are not listed.
    """

    objects: dict[int, Any]
    weights: list[Any]
    by_value: frozenset[int]
    packed: list[Any]


def visit(value: Any) -> Visited:
    """Find the objects that would be sent with a value.

    Objects that cannot be pickled are included, but their parts are not; reporting that is left to the actual pickling.

    Args:
        value: anything; it is not changed, and no tensor is copied.
    """
    pickler = _VisitingPickler()
    with suppress(Exception):  # pickling runs the user's code, which may raise anything
        pickler.dump(value)
    return Visited(pickler.objects, pickler.weights, frozenset(pickler.by_value), pickler.packed)


def is_weight(value: Any) -> bool:
    """Whether a value is a module, or a tensor that an optimizer could update."""
    if type(value) is torch.Tensor:
        return value.requires_grad and value.is_leaf
    return isinstance(value, nn.Module) or (isinstance(value, torch.Tensor) and isinstance(value, nn.Parameter))


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


class _VisitingPickler(ByValuePickler):
    """A pickler that lists the objects it visits."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), protocol=PROTOCOL)
        self.objects: dict[int, Any] = {}
        self.weights: list[Any] = []
        self.by_value: set[int] = set()
        self.packed: list[Any] = []

    def persistent_id(self, obj: Any) -> str | None:
        if type(obj) in ATOMS:
            return None
        self.objects[id(obj)] = obj
        if is_weight(obj):
            self.weights.append(obj)
        if type(obj) is torch.ScriptObject:
            self.packed.append(obj)
            return "values"
        has_no_parts = isinstance(obj, torch.Tensor) or (isinstance(obj, np.ndarray) and not obj.dtype.hasobject)
        return "values" if has_no_parts else None

    def reducer_override(self, obj: Any) -> Any:
        if obj is str:
            return NotImplemented
        # In place of the object a string, with the parts of the object as its state: nothing is left that could fail.
        return str, (), self._parts(obj)

    def _parts(self, obj: Any) -> list[Any]:
        try:
            reduced = super().reducer_override(obj)
            if reduced is NotImplemented:
                if isinstance(obj, type | FunctionType):
                    return []
                reduced = self._reduced(obj)
            elif isinstance(reduced, tuple):
                self.by_value.add(id(obj))
            # Items of lists and dicts are given by iterators.
            return [] if isinstance(reduced, str) else [list(part) if isinstance(part, Iterator) else part for part in reduced]
        except Exception:  # noqa: BLE001  as above
            return []

    def _reduced(self, obj: Any) -> Any:
        if isinstance(obj, nn.Module) and _is_torchs(type(obj).__reduce__):
            return "a module of torch's that is made anew where it arrives"
        reduce: Callable[[Any], Any] | None = self.dispatch_table.get(type(obj)) or dispatch_table.get(type(obj))
        return reduce(obj) if reduce is not None else obj.__reduce_ex__(PROTOCOL)


def _is_torchs(method: Any) -> bool:
    return (getattr(method, "__module__", None) or "").partition(".")[0] == "torch"
