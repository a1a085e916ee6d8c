"""Compares TensorDicts that an env returned with its specs, completes them, and merges them with earlier ones."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from reap.envs.checks.looks import as_numpy
from reap.envs.checks.rounding import without_rounding
from reap.envs.faces.done_flags import lacking_flags, shape_flags
from reap.envs.faces.td_access import get_leaf
from reap.errors import BoundsWarning, SpecMismatch, callers_level
from reap.keys import Key, plain
from reap.optional import tensordict as load_tensordict
from reap.recording.buffers import FLAGS
from reap.recording.objects import stacked, unstacked
from reap.specs.faults import Fault, message
from reap.specs.tensor_fits import as_spec, unreadable_kind

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from reap.envs.specs import EnvSpecs
    from reap.specs import Spec


def merge_rows(old: TensorDictBase, new: TensorDictBase, mask: torch.Tensor) -> TensorDictBase:
    """`new` in the rows of a mask `[*batch_size, 1]`, `old` in the others; keys of only one of them are kept as they are."""
    merged = old.copy()
    for key, value in new.items(include_nested=True, leaves_only=True, is_leaf=_is_leaf):
        kept = old.get(key, None)
        is_partial = mask.ndim > 1 and kept is not None and kept.shape == value.shape
        merged.set(key, _merged(kept, value, mask) if is_partial else value)
    return merged


def _is_leaf(cls: type) -> bool:
    return issubclass(cls, torch.Tensor) or cls.__name__ in {"NonTensorData", "NonTensorStack"}


def _merged(old: Any, new: Any, mask: torch.Tensor) -> Any:
    shape = mask.shape[:-1]
    if isinstance(new, torch.Tensor):
        return torch.where(mask.reshape((*shape, *(1,) * (new.ndim - len(shape)))).to(new.device), new, old)
    return stacked(np.where(mask[..., 0].cpu().numpy(), unstacked(new, shape), unstacked(old, shape)))


def clear_flags(env: EnvSpecs, begun: TensorDictBase) -> None:
    """Add the done flags of the spec that a reset omitted, all False."""
    for key, spec in env.full_done_spec.leaves():
        if plain(key) not in begun.keys(include_nested=True):
            begun.set(plain(key), spec.zero())


def check_result(env: EnvSpecs, td: Any, call: str, *, by_hand: bool = False) -> None:
    """Raise SpecMismatch unless the result of `_reset` or `_step` fits the env's specs.

    Args:
        env: the env.
        td: the result.
        call: the name of the method.
        by_hand: the result is for a caller: values of another dtype that fit are converted to the spec's, and a warning tells
            of numbers outside their bounds; in a loop a `SlotCheck` handles both.
    """
    where = f"{type(env).__name__}.{call}"
    if not isinstance(td, load_tensordict().TensorDictBase):
        hint = "; does it lack a return?" if td is None else ""
        raise SpecMismatch(f"{where}: expected a TensorDict, found {type(td).__name__}{hint}")
    check_values(env, td, call, where, by_hand=by_hand)
    shape_flags(env, td, call)
    if call == "_step" and not _has_flags(env, td):
        raise lacking_flags(where, [plain(key) for key, _ in env.full_done_spec.leaves()], td)


def check_values(env: EnvSpecs, td: TensorDictBase, call: str, where: str, *, by_hand: bool) -> None:
    """The part of `check_result` for observations and rewards."""
    for key, spec in env.specs_of_result(call):
        value = get_leaf(td, plain(key))
        if value is None:
            found = sorted(map(str, td.keys(True, True)))
            hint = "; _step returns its values at the root, not under 'next'" if "next" in td.keys() else ""
            raise SpecMismatch(f"{where}: expected key {plain(key)!r}, found {found}{hint}")
        fitting = value if spec.dtype is None else as_spec(value, spec.shape, spec.dtype)
        _check_value(env, spec, fitting, key, where, by_hand)
        if by_hand and fitting is not value:
            td.set(plain(key), fitting)


def _check_value(env: EnvSpecs, spec: Spec, value: Any, key: Key, where: str, by_hand: bool) -> None:
    """Raise SpecMismatch unless a value is in its spec; when called by hand, warn once of numbers outside their bounds."""
    numbers, bounds = env.looks_of(key, spec)
    is_ordinary = isinstance(value, torch.Tensor) and not unreadable_kind(value)
    has_layout = is_ordinary and (value.shape, value.dtype) == (spec.shape, spec.dtype)
    if bounds is None and numbers is not None and has_layout and numbers.is_fine(as_numpy(value)):
        return
    if bounds is None or not has_layout or env.check == "first":
        spec.validate(without_rounding(value, spec), key=plain(key), where=where)
        return
    array = as_numpy(value)
    if numbers is not None and not numbers.is_fine(array):
        raise SpecMismatch(message(Fault(*numbers.words(array, 0)), key, where))
    if not by_hand or bounds.is_fine(array):
        return
    text = message(Fault(*bounds.words(array, 0)), key, where)
    if env.check == "all":
        raise SpecMismatch(text)
    if key not in env.left_bounds:
        env.left_bounds.add(key)
        warnings.warn(f"{text} It is passed on, as are others under this key.", BoundsWarning, stacklevel=callers_level())


def _has_flags(env: EnvSpecs, td: TensorDictBase) -> bool:
    if get_leaf(td, "done") is not None:
        return True
    known = {key for key, _ in env.full_done_spec.leaves()} | set(FLAGS)
    return any(td.get(plain(key), None) is not None for key in known)
