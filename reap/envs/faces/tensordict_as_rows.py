"""`TensorDictAsRows`: the array face of an env on TensorDicts.

    column t    slot action[t] --> | td: returned last by the env,   |
                                   | observations, state, flags      | --> calls.step --> result --> slot next[t]
                                   '---------------------------------'          |
                                                   ^----------------------------' td of the next column

An env steps from the TensorDict that it returned last. So everything that it keeps there, declared in its specs or not, is
available in the next step.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict

from reap.envs.checks.looks import Look, choice_look
from reap.envs.faces.done_flags import DoneFlags, Flags, complete_flags, require_not_done, shape_flags
from reap.envs.faces.results import check_result, clear_flags, merge_rows
from reap.envs.faces.td_access import get_leaf, set_leaf
from reap.errors import SpecMismatch
from reap.keys import Key, NestedKey, as_key, nested, plain
from reap.recording.buffers import TERMINATED, TRUNCATED, Slot, Stage, after
from reap.recording.layout import Field, sizes_of
from reap.recording.objects import copies_of, unstacked
from reap.specs.tensor_fits import LooseTensorFits, TensorFits
from reap.tensordicts import make_tensordict, sizes_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tensordict import TensorDictBase

    from reap.envs.specs import EnvSpecs
    from reap.recording.layout import Array

    Reset = Callable[[TensorDictBase | None], TensorDictBase]
    Step = Callable[[TensorDictBase], TensorDictBase]


# The internals of torch.inference_mode and torch.set_grad_enabled, at a third of the cost. On leaving the former, the
# gradient mode is what it was before, too.
inference_mode: Callable[[bool], Any] = torch._C._InferenceMode  # pyright: ignore[reportPrivateUsage]
set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled  # pyright: ignore[reportPrivateUsage]
copy_all: Callable[..., Any] = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


class TensorDictCalls(Protocol):
    """The calls of a `TensorDictAsRows` to an env on TensorDicts.

    The argument may be changed and kept; the result belongs to the caller.
    """

    resets_ended: bool
    """Whether `step` resets rows that ended, in the TensorDict from which the next step starts."""

    def begin(self) -> TensorDictBase:
        """Reset all rows; the first step starts from the result."""
        ...

    def begin_rows(self, current: TensorDictBase, mask: torch.Tensor) -> TensorDictBase:
        """Reset the rows of a mask `[*batch_size, 1]`; the other rows of `current` stay as they are."""
        ...

    def step(self, current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Apply the actions in `current`; return the results, and the TensorDict from which the next step starts."""
        ...


class OwnCalls:
    """The calls to an env that defines `_reset` and `_step`; its first results are checked against its specs."""

    resets_ended = False

    def __init__(self, env: EnvSpecs, reset: Reset, step: Step) -> None:
        self._env = env
        self._reset, self._step = reset, step
        self._has_more_flags = bool(env.fields_of_flags())
        self._checked_reset = self._checked_step = False

    def begin(self) -> TensorDictBase:
        """Reset all rows."""
        result = self._reset(None)
        is_first = not self._checked_reset
        begun = self._begun(result)
        if is_first:
            require_not_done(self._env, begun, None)
        return begun

    def begin_rows(self, current: TensorDictBase, mask: torch.Tensor) -> TensorDictBase:
        """Reset the rows of a mask, by the key `"_reset"`."""
        request = current.copy().set("_reset", mask.clone())
        return merge_rows(current, self._begun(self._reset(request)), mask)

    def _begun(self, result: TensorDictBase) -> TensorDictBase:
        if not self._checked_reset:
            check_result(self._env, result, "_reset")
            self._checked_reset = True
        begun = self._env.empty_tensordict().update(result)
        begun.pop("_reset", None)
        shape_flags(self._env, begun, "_reset")
        clear_flags(self._env, begun)
        return begun

    def step(self, current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step all rows; the first result is checked."""
        result = self._step(current)
        if not self._checked_step:
            check_result(self._env, result, "_step")
            self._checked_step = True
        if self._has_more_flags:
            shape_flags(self._env, result, "_step")
            complete_flags(self._env, result)
        return result, current.copy().update(result)


class TensorDictAsRows:
    """The array face of an env on TensorDicts.

    Calls are made outside the loop's inference mode, because tensors that an env keeps must be usable elsewhere.

    Args:
        env: the env's specs.
        calls: the env's own calls.
    """

    def __init__(self, env: EnvSpecs, calls: TensorDictCalls) -> None:
        self._env = env
        self._calls = calls
        self._name = type(env).__name__
        self._lead = len(env.batch_size)
        self._done_flags = DoneFlags(env, complete=calls.resets_ended)
        self._current: TensorDictBase = env.empty_tensordict()
        self._observed = env.fields_of_stage()
        self._following = {**self._observed, **env.fields(env.full_reward_spec)}
        acted = env.fields(env.full_action_spec)
        self._acted = list(acted)
        # Nested TensorDicts of actions alone, with batch dimensions of their own: the env returns none of them.
        sizes = sizes_of({**acted, **self._following})
        shown = {key[:end] for key in self._observed for end in range(len(key))}
        self._bare = [(plain(key), torch.Size((*env.batch_size, *size))) for key, size in sizes.items() if key not in shown]
        self._fresh: set[int] = set()
        self._rows: Sequence[int] | None = None
        self._t = 0
        # A copy of an action on the env's device; slots are on the host.
        is_near = env.device is None or env.device.type == "cpu"
        copied = partial(torch.Tensor.to, device=env.device, copy=True)
        self._own: Callable[[torch.Tensor], torch.Tensor] = torch.clone if is_near else copied

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write."""
        self._stage, self._slot = stage, slot
        fields = self._following
        tensors = {key: field for key, field in fields.items() if not field.is_object}
        self._keys = [plain(key) for key in tensors]
        self._fits = self._fits_of(tensors)
        self._views = [slot.views(after(key)) for key in tensors]
        self._next_objects = [(plain(key), slot.by_column(after(key))) for key, field in fields.items() if field.is_object]
        self._actions = [(plain(key), slot.views(key)) for key in self._acted]
        looks = {key: look for key, spec in self._env.full_action_spec.leaves() if (look := choice_look(spec, self._lead))}
        self._choices = [] if self._is_loose else [(key, slot.by_column(key), look) for key, look in looks.items()]
        self._flags = slot.by_column(after(TERMINATED)), slot.by_column(after(TRUNCATED))

    @property
    def _is_loose(self) -> bool:
        return self._env.check == "first"

    def _fits_of(self, fields: Mapping[Key, Field]) -> TensorFits:
        shapes = [torch.Size((*self._env.batch_size, *field.shape)) for field in fields.values()]
        kind = LooseTensorFits if self._is_loose else TensorFits
        return kind([plain(key) for key in fields], shapes, [field.dtype for field in fields.values()])

    def forget(self) -> None:
        """Reset rows again on request even if the last step has reset them: the env was seeded, or used by hand."""
        self._fresh.clear()

    def state(self) -> dict[str, Any]:
        """The tensors from which the next step starts, by key, and the rows that have been reset already."""
        leaves = self._current.items(include_nested=True, leaves_only=True)
        tensors = [(key, value.clone()) for key, value in leaves if isinstance(value, torch.Tensor)]
        sizes = [(key, list(size)) for key, size in sizes_in(self._current, self._lead).items()]
        return {"tensors": tensors, "fresh": sorted(self._fresh), "sizes": sizes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Start the next step from a `state`."""
        leaves = {as_key(key): value.clone() for key, value in state["tensors"]}
        sizes = {as_key(key): tuple(size) for key, size in state.get("sizes", ())}
        self._current = make_tensordict(nested(leaves, sizes), self._env.batch_size, device=self._env.device)
        self._fresh = set(state["fresh"])

    def reset_rows(self, rows: Sequence[int] | None, t: int) -> None:
        """Reset rows and write their first observations to the stage."""
        every = range(self._stage.rows)
        chosen = every if rows is None else rows
        late = [b for b in chosen if b not in self._fresh]
        with inference_mode(False):
            set_grad_enabled(False)
            if len(late) == len(every):
                self._current = self._calls.begin()
            elif late:
                self._current = self._calls.begin_rows(self._current, self._mask(late))
            tensors = {key: field for key, field in self._observed.items() if not field.is_object}
            values = [self._current.get(plain(key), None) for key in tensors]
            for key, value in zip(tensors, self._fits_of(tensors).take(values, self._name, "reset"), strict=True):
                self._write_stage(self._stage.tensors[key], value, rows)
            for key in self._observed.keys() - tensors.keys():
                self._write_objects(self._stage.arrays[key], plain(key), rows)
        self._fresh.difference_update(chosen)

    def _write_stage(self, target: torch.Tensor, value: torch.Tensor, rows: Sequence[int] | None) -> None:
        if rows is None or not self._stage.batch_shape:
            target.copy_(value)
            return
        flat = (self._stage.rows, *target.shape[len(self._stage.batch_shape) :])
        chosen = list(rows)
        target.view(flat)[chosen] = value.reshape(flat)[chosen].to(target.device, target.dtype)

    def _write_objects(self, target: Array, key: NestedKey, rows: Sequence[int] | None) -> None:
        chosen: Any = ... if rows is None or not self._stage.batch_shape else list(rows)
        target[chosen] = self._objects(self._current, key).reshape(target.shape)[chosen]

    def _objects(self, td: TensorDictBase, key: NestedKey) -> Array:
        """Copies of the objects of all rows; a tensor without fixed shape counts as an object for each row."""
        return copies_of(unstacked(get_leaf(td, key), self._stage.batch_shape).reshape(-1))

    def _mask(self, rows: Sequence[int]) -> torch.Tensor:
        mask = torch.zeros(self._stage.rows, dtype=torch.bool)
        mask[list(rows)] = True
        return mask.view(*self._stage.batch_shape, 1).to(self._env.device)

    def send(self, rows: Sequence[int] | None, t: int) -> None:
        """Pass on copies of the actions of column `t`.

        The env steps all rows, because a TensorDict holds them all; only the results of these rows (None: all) are used.
        """
        self._rows, self._t = rows, t

    def receive(self) -> Sequence[int] | None:
        """Step the env and write the results; return the rows whose episode ended."""
        return self.step_rows(self._rows, self._t)

    def step_rows(self, rows: Sequence[int] | None, t: int) -> Sequence[int] | None:
        """`send`, then `receive`."""
        self._fresh.clear()
        for key, column, look in self._choices:
            if not look.is_fine(column[t] if rows is None else column[t][list(rows)]):
                raise self._no_choice(key, column[t], look, rows, t)
        with inference_mode(False):
            set_grad_enabled(False)
            current = self._current
            for key, size in self._bare:
                current.set(key, TensorDict({}, size, device=self._env.device))
            for key, views in self._actions:
                set_leaf(current, key, self._own(views[t]))
            following, self._current = self._calls.step(current)
            values = [get_leaf(following, key) for key in self._keys]
            try:
                values = self._fits.take(values, self._name, "step")
            except SpecMismatch as error:
                raise error.at(f"column {t}") from None
            try:
                copy_all([views[t] for views in self._views], values)
            except (RuntimeError, TypeError) as error:  # no ordinary tensor
                raise self._fits.uncopied(values, self._name, "step", error) from None
            for key, array in self._next_objects:
                array[t] = self._objects(following, key).reshape(array[t].shape)
            ends = self._done_flags.read(following)
        return None if ends is None else self._write_ends(ends, rows, t)

    def _no_choice(self, key: Key, column: Array, look: Look, rows: Sequence[int] | None, t: int) -> SpecMismatch:
        """The error for an action that is not one of the choices."""
        wrong = look.wrong(column).reshape(-1)
        b = next(b for b in (range(self._stage.rows) if rows is None else rows) if wrong[b])
        expected, found = look.words(column[b] if self._stage.batch_shape else column, b)
        return SpecMismatch(f"policy: {plain(key)!r}: expected {expected}, found {found}").at(f"column {t}").at(f"row {b}")

    def _write_ends(self, ends: tuple[Flags, Flags], rows: Sequence[int] | None, t: int) -> Sequence[int] | None:
        terminated, truncated = ends
        ended: list[int] = np.flatnonzero(terminated | truncated).tolist()
        if self._calls.resets_ended:
            self._fresh.update(ended)
        if rows is not None:
            ended = sorted(set(ended).intersection(rows))
        if not ended:
            return None
        for array, values in zip(self._flags, (terminated, truncated), strict=True):
            array[t] = values.reshape(array[t].shape)
        return ended
