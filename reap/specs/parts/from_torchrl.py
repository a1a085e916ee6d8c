"""Specs of torchrl as specs of reap.

torchrl's classes are recognised by their names, so translating from them imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reap.errors import OptionError
from reap.keys import Key, plain
from reap.specs.parts.torchrl import KINDS


def is_torchrl_spec(given: Any) -> bool:
    """Whether an object is a torchrl spec; this does not import torchrl."""
    return any(cls.__name__ == "TensorSpec" and cls.__module__.startswith("torchrl.") for cls in type(given).__mro__)


def as_own(given: Any) -> Any:
    """A torchrl spec as one of reap's; anything else unchanged.

    Raises:
        OptionError: reap has no such spec.
    """
    if not is_torchrl_spec(given):
        return given
    if any(cls.__name__ == "Composite" for cls in type(given).__mro__):
        return composite_from_torchrl(given, tuple(given.shape))
    return spec_from_torchrl(given, ())


def composite_from_torchrl(spec: Any, shape: tuple[int, ...], path: Key = ()) -> Any:
    """A torchrl Composite as a reap Composite, with all leaves starting with `shape`, and nested ones with their own shape.

    Args:
        spec: the torchrl Composite.
        shape: the batch dimensions that its leaves start with.
        path: its key, for errors.

    Raises:
        OptionError: a leaf is of a class that is not known, or parts of it have different shapes.
    """
    parts: dict[str, Any] = {}
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
        parts[name] = KINDS["NonTensor"](shape) if changes else spec_from_torchrl(part, key)
    return KINDS["Composite"](parts, shape=shape)


def _is_composite(spec: Any) -> bool:
    return any(cls.__name__ in {"Composite", "StackedComposite"} for cls in type(spec).__mro__)


def _is_stack(spec: Any) -> bool:
    return any(cls.__name__ == "StackedComposite" for cls in type(spec).__mro__)


def spec_from_torchrl(spec: Any, key: Key) -> Any:
    """A leaf of a torchrl Composite, or a lone spec, as a spec of reap.

    Args:
        spec: torchrl's spec.
        key: its key, for the error; empty for a lone one.

    Raises:
        OptionError: it is of a class that is not known.
    """
    shape = tuple(spec.shape)
    names = [cls.__name__ for cls in type(spec).__mro__]
    name = next((name for name in names if name in _FROM_TORCHRL), None)
    if name is None:
        lead = f"{plain(key)!r}: " if key else ""
        raise OptionError(f"{lead}expected one of torchrl's specs {sorted(_FROM_TORCHRL)}, found {names[0]}: {spec}")
    return _FROM_TORCHRL[name](spec, shape)


def _categorical(spec: Any, shape: tuple[int, ...]) -> Any:
    # torchrl's Categorical(-1) has an unknown number of choices.
    if int(spec.n) < 1:
        return KINDS["Unbounded"](shape, spec.device, spec.dtype)
    return KINDS["Categorical"](int(spec.n), shape, spec.device, spec.dtype, spec.mask)


def _multi_one_hot(spec: Any, shape: tuple[int, ...]) -> Any:
    return KINDS["MultiOneHot"]([int(box.n) for box in spec.space], shape, spec.device, spec.dtype, spec.mask)


def _multi_categorical(spec: Any, shape: tuple[int, ...]) -> Any:
    counts = spec.nvec
    while counts.ndim > 1 and bool((counts == counts[:1]).all()):
        counts = counts[0]
    return KINDS["MultiCategorical"](counts, shape, spec.device, spec.dtype, spec.mask)


_FROM_TORCHRL: Mapping[str, Callable[[Any, tuple[int, ...]], Any]] = {
    "Bounded": lambda spec, shape: KINDS["Bounded"](spec.low, spec.high, shape, spec.device, spec.dtype),
    "Unbounded": lambda spec, shape: KINDS["Unbounded"](shape, spec.device, spec.dtype),
    "OneHot": lambda spec, shape: KINDS["OneHot"](int(spec.space.n), shape, spec.device, spec.dtype, spec.mask),
    "MultiOneHot": _multi_one_hot,
    "Categorical": _categorical,
    "MultiCategorical": _multi_categorical,
    "Binary": lambda spec, shape: KINDS["Binary"](None, shape, spec.device, spec.dtype),
    "NonTensor": lambda spec, shape: KINDS["NonTensor"](shape, spec.device, None, getattr(spec, "example_data", None)),
}
