"""Specs of torchrl as specs of reap, and back.

torchrl's classes are told by their names, so that translating from them imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reap.errors import OptionError
from reap.keys import Key, plain
from reap.optional import load
from reap.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Spec,
    Unbounded,
)


def composite_from_torchrl(spec: Any, shape: tuple[int, ...], path: Key = ()) -> Composite:
    """A torchrl Composite as a reap Composite, with all leaves starting with `shape`, and nested ones with their own shape.

    Args:
        spec: the torchrl Composite.
        shape: the batch dimensions that its leaves start with.
        path: its key, for errors.

    Raises:
        OptionError: a leaf is of a class that is not known, or parts of it have different shapes.
    """
    parts: dict[str, Spec] = {}
    for name, part in spec.items():
        key = (*path, name)
        if part is None:
            continue
        if _is_composite(part):
            parts[name] = composite_from_torchrl(part, tuple(part.shape), key)
            continue
        changes = any(size < 0 for size in part.shape)
        if changes and _is_stack(spec):
            raise OptionError(
                f"{plain(key)!r}: expected equal shapes in all parts of a stack, found {tuple(part.shape)}; pad them in a "
                "transform of the env, or put the parts under keys of their own, a group for each agent"
            )
        parts[name] = NonTensor(shape) if changes else spec_from_torchrl(part, key)
    return Composite(parts, shape=shape)


def _is_composite(spec: Any) -> bool:
    return any(cls.__name__ in {"Composite", "StackedComposite"} for cls in type(spec).__mro__)


def _is_stack(spec: Any) -> bool:
    return any(cls.__name__ == "StackedComposite" for cls in type(spec).__mro__)


def spec_from_torchrl(spec: Any, key: Key) -> Spec:
    """A leaf of a torchrl Composite as a spec of reap."""
    shape = tuple(spec.shape)
    names = [cls.__name__ for cls in type(spec).__mro__]
    name = next((name for name in names if name in _FROM_TORCHRL), None)
    if name is None:
        raise OptionError(f"{plain(key)!r}: expected one of torchrl's specs {sorted(_FROM_TORCHRL)}, found {names[0]}: {spec}")
    return _FROM_TORCHRL[name](spec, shape)


def _categorical(spec: Any, shape: tuple[int, ...]) -> Spec:
    # torchrl's Categorical(-1) has an unknown number of choices.
    if int(spec.n) < 1:
        return Unbounded(shape, spec.device, spec.dtype)
    return Categorical(int(spec.n), shape, spec.device, spec.dtype)


def _multi_one_hot(spec: Any, shape: tuple[int, ...]) -> Spec:
    return MultiOneHot([int(box.n) for box in spec.space], shape, spec.device, spec.dtype)


def _multi_categorical(spec: Any, shape: tuple[int, ...]) -> Spec:
    counts = spec.nvec
    while counts.ndim > 1 and bool((counts == counts[:1]).all()):
        counts = counts[0]
    return MultiCategorical(counts, shape, spec.device, spec.dtype)


_FROM_TORCHRL: Mapping[str, Callable[[Any, tuple[int, ...]], Spec]] = {
    "Bounded": lambda spec, shape: Bounded(spec.low, spec.high, shape, spec.device, spec.dtype),
    "Unbounded": lambda spec, shape: Unbounded(shape, spec.device, spec.dtype),
    "OneHot": lambda spec, shape: OneHot(int(spec.space.n), shape, spec.device, spec.dtype),
    "MultiOneHot": _multi_one_hot,
    "Categorical": _categorical,
    "MultiCategorical": _multi_categorical,
    "Binary": lambda spec, shape: Binary(None, shape, spec.device, spec.dtype),
    "NonTensor": lambda spec, shape: NonTensor(shape, spec.device, None, getattr(spec, "example_data", None)),
}


def spec_to_torchrl(spec: Spec) -> Any:
    """A spec of reap as a torchrl spec of the same shape, dtype, device and range."""
    data = load("torchrl.data", "as_torchrl")
    if isinstance(spec, Composite):
        leaves = {name: spec_to_torchrl(leaf) for name, leaf in spec.items()}
        return data.Composite(leaves, shape=spec.shape, device=spec.device)
    if isinstance(spec, NonTensor):
        return data.NonTensor(shape=spec.shape, device=spec.device, example_data=spec.example_data)
    name, arguments = _TO_TORCHRL[type(spec)](spec)
    return getattr(data, name)(*arguments, shape=spec.shape, device=spec.device, dtype=spec.dtype)


_TO_TORCHRL: Mapping[type[Spec], Callable[[Any], tuple[str, tuple[Any, ...]]]] = {
    Bounded: lambda spec: ("Bounded", (spec.low.clone(), spec.high.clone())),
    Unbounded: lambda _: ("Unbounded", ()),
    OneHot: lambda spec: ("OneHot", (spec.space.n,)),
    MultiOneHot: lambda spec: ("MultiOneHot", ([box.n for box in spec.space],)),
    Categorical: lambda spec: ("Categorical", (spec.n,)),
    MultiCategorical: lambda spec: ("MultiCategorical", (spec.nvec.clone(),)),
    Binary: lambda spec: ("Binary", (spec.shape[-1] if spec.shape else 1,)),
}
