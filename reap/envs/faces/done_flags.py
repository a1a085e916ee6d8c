"""Done flags: finds the rows whose episodes ended, and fills in missing flags.

done                   decides alone if it is at the root
agents / a / done      without one at the root, any leaf ends the episode of its row
agents / b / done
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from reap.envs.faces.td_access import get_leaf
from reap.errors import SpecMismatch
from reap.keys import Key, plain
from reap.recording.buffers import FLAGS
from reap.specs.tensor_fits import tensor_as_dtype, unreadable_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDictBase

    from reap.envs.specs import EnvSpecs

Flags = NDArray[Any]


class DoneFlags:
    """Finds in the result of a step which rows ended, and how.

    Args:
        env: the env's specs.
        complete: every `done` of the spec is present, so the other flags are read only if one is True.
    """

    def __init__(self, env: EnvSpecs, *, complete: bool = False) -> None:
        self._rows = max(1, env.batch_size.numel())
        groups = deciding_groups([key for key, _ in env.full_done_spec.leaves()])
        given = {prefix: (*names, *(flag[-1] for flag in FLAGS)) for prefix, names in groups.items()}
        self._groups = [[(name, plain((*prefix, name))) for name in dict.fromkeys(names)] for prefix, names in given.items()]
        keys = [key for group in self._groups for name, key in group if not complete or name == "done"]
        self._any = keys or [key for group in self._groups for _, key in group]
        has_one = all(spec.shape.numel() == 1 for _, spec in env.full_done_spec.leaves())
        self._is_any: Callable[[torch.Tensor], Any] = torch.Tensor.item if has_one else torch.Tensor.any
        self._where = f"{type(env).__name__}._step"
        self._sizes = {plain(key): spec.shape for key, spec in env.full_done_spec.leaves()}
        # A flag that the spec lacks has the shape of those beside it.
        for prefix, names in groups.items():
            beside = self._sizes[plain((*prefix, names[0]))]
            for flag in FLAGS:
                self._sizes.setdefault(plain((*prefix, *flag)), beside)

    def read(self, td: TensorDictBase) -> tuple[Flags, Flags] | None:
        """Terminated and truncated `[E]` of the rows, or None if no flag is True."""
        has_flag = False
        for key in self._any:
            value = get_leaf(td, key)
            if value is None:
                continue
            has_flag, shape = True, self._sizes[key]
            if value.dtype is not torch.bool or value.is_meta or value.numel() != shape.numel():
                value = checked_flag(value, shape, f"{self._where}: {key!r}")
            if self._is_any(value):
                break
        else:
            if has_flag:
                return None
            raise lacking_flags(self._where, list(self._any), td)
        terminated, truncated = np.zeros(self._rows, bool), np.zeros(self._rows, bool)
        for group in self._groups:
            ended = self._read_group({name: value for name, key in group if (value := get_leaf(td, key)) is not None})
            terminated |= ended[0]
            truncated |= ended[1]
        return terminated, truncated

    def _read_group(self, found: Mapping[str, torch.Tensor]) -> tuple[Flags, Flags]:
        rows = {name: self._any_of_row(value) for name, value in found.items()}
        none = np.zeros(self._rows, bool)
        terminated, truncated = rows.pop("terminated", none), rows.pop("truncated", none)
        done: Flags = none
        for flags in rows.values():
            done = done | flags
        rest = done & ~(terminated | truncated)
        if "terminated" in found and "truncated" not in found:
            return terminated, truncated | rest
        return terminated | rest, truncated

    def _any_of_row(self, flags: torch.Tensor) -> Flags:
        return np.logical_or.reduce(flags.detach().cpu().numpy().reshape(self._rows, -1), axis=1)


def lacking_flags(where: str, keys: Sequence[Any], td: TensorDictBase) -> SpecMismatch:
    """The error for the result of a step without a done flag."""
    return SpecMismatch(f"{where}: expected one of the done flags {keys}, found {sorted(map(str, td.keys(True, True)))}")


def deciding_groups(keys: Sequence[Key]) -> dict[Key, list[str]]:
    """The flags that end a row's episode: those at the root if there are any, else all.

    Example:
        >>> deciding_groups([("done",), ("agents", "done")]), deciding_groups([("a", "done"), ("b", "done")])
        ({(): ['done']}, {('a',): ['done'], ('b',): ['done']})
    """
    groups: dict[Key, list[str]] = {}
    for key in keys:
        groups.setdefault(key[:-1], []).append(key[-1])
    return {(): groups[()]} if () in groups else groups


def shape_flags(env: EnvSpecs, result: TensorDictBase, call: str) -> None:
    """Give done flags the shape of their spec, if the env has omitted the last dimension.

    Raises:
        SpecMismatch: a flag has a wrong number of values, or is not a tensor of booleans.
    """
    for key, spec in env.full_done_spec.leaves():
        value = result.get(plain(key), None)
        if value is None:
            continue
        flag = checked_flag(value, spec.shape, f"{type(env).__name__}.{call}: {plain(key)!r}")
        if flag is not value:
            result.set(plain(key), flag)


def checked_flag(value: Any, shape: torch.Size, where: str) -> torch.Tensor:
    """A done flag as bool in this shape, from bools or the integers 0 and 1.

    Raises:
        SpecMismatch: it has a wrong number of values, or other values.
    """
    unreadable = unreadable_kind(value)
    fitting = tensor_as_dtype(value, torch.bool) if isinstance(value, torch.Tensor) and not unreadable else None
    if fitting is None:
        found = unreadable or (f"dtype {value.dtype}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}")
        raise SpecMismatch(f"{where}: expected a tensor of dtype torch.bool, found {found}; write flags as value.bool()")
    if fitting.numel() != shape.numel():
        raise SpecMismatch(f"{where}: expected shape {tuple(shape)}, found {tuple(value.shape)}; give one flag for each row")
    return fitting if fitting.dtype == torch.bool and fitting.shape == shape else fitting.bool().reshape(shape)


def complete_flags(env: EnvSpecs, result: TensorDictBase) -> None:
    """Fill in done flags that a step omitted, so that `done == terminated | truncated`."""
    leaves = list(env.full_done_spec.leaves())
    given = {key: value for key, _ in leaves if (value := result.get(plain(key), None)) is not None}
    for key, spec in leaves:
        if key not in given:
            result.set(plain(key), _completed(key, given, spec.zero()))


def _completed(key: Key, given: Mapping[Key, torch.Tensor], none: torch.Tensor) -> torch.Tensor:
    """The value of an omitted flag, derived from its siblings as `DoneFlags` reads them."""
    done, terminated, truncated = (given.get((*key[:-1], *flag)) for flag in FLAGS)
    if key[-1] == "done":
        known = [flag for flag in (terminated, truncated) if flag is not None]
        return torch.stack(known).any(0) if known else none
    if done is None or (key[-1] == "truncated" and terminated is None):
        return none
    other = truncated if key[-1] == "terminated" else terminated
    return done if other is None else done & ~other


def require_not_done(env: EnvSpecs, begun: TensorDictBase, mask: torch.Tensor | None) -> None:
    """Raise unless the rows of a reset are not done, or the env allows done rows.

    Args:
        env: the env.
        begun: the result of `_reset`.
        mask: the rows `[*batch_size, 1]` that were reset; None for all.

    Raises:
        SpecMismatch: a done flag is set.
    """
    if env.allow_done_after_reset:
        return
    for key, spec in env.full_done_spec.leaves():
        flag = begun.get(plain(key), None)
        if flag is not None and bool(flag.any()):
            flags = flag.reshape(spec.shape)
            chosen = (
                flags
                if mask is None
                else flags & mask.reshape((*mask.shape, *(1,) * (flags.ndim - mask.ndim))).to(flags.device)
            )
            if bool(chosen.any()):
                raise SpecMismatch(
                    f"{type(env).__name__}._reset: {plain(key)!r}: expected no episode to end with its reset, found a flag "
                    "that is set; leave flags out, or allow it: super().__init__(allow_done_after_reset=True)"
                )
