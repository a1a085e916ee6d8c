"""One face of an env derived from the other.

`TensorDictFace` gives the array face to an env that writes `_reset` and `_step`; `ArrayFace` gives these two to an env that
writes the array face.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from reap.buffers import DONE, FLAGS, TERMINATED, TRUNCATED, Slot, Stage, after
from reap.errors import SpecMismatch
from reap.keys import Key, plain
from reap.layout import Array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict import TensorDictBase

    from reap.envs.base import EnvBase
    from reap.envs.specs import EnvSpecs

    Reset = Callable[[TensorDictBase | None], TensorDictBase]
    Step = Callable[[TensorDictBase], TensorDictBase]


class TensorDictFace:
    """Calls an env's `_reset` and `_step` with TensorDicts, and writes what they return into arrays."""

    def __init__(self, env: EnvSpecs, reset: Reset, step: Step) -> None:
        self._env = env
        self._call_reset, self._call_step = reset, step
        self._observations = tuple(env.fields(env.observation_spec))
        self._rewards = tuple(env.fields(env.full_reward_spec))
        self._actions = tuple(env.fields(env.full_action_spec))
        self._checked_reset = self._checked_step = False
        self._sent: TensorDictBase | None = None
        self._rows: Sequence[int] | None = None
        self._t = 0

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following calls read and write."""
        self._stage, self._slot = stage, slot
        self._lead = (stage.rows,) if stage.batch_shape else ()
        self._next: list[tuple[Key, Array]] = [(key, slot.by_column(after(key))) for key in self._observations]
        self._next += [(key, slot.by_column(after(key))) for key in self._rewards]
        self._ends = slot.by_column(after(TERMINATED)), slot.by_column(after(TRUNCATED))

    def reset_rows(self, rows: Sequence[int] | None) -> None:
        """Reset rows and write their first observations to the stage."""
        if rows is None:
            result, chosen = self._call_reset(None), ...
        else:
            result, chosen = self._partial_reset(rows)
        if not self._checked_reset:
            self._check(result, "reset")
            self._checked_reset = True
        for key in self._observations:
            self._stage.arrays[key][chosen] = self._values(result, key)[chosen]

    def _partial_reset(self, rows: Sequence[int]) -> tuple[TensorDictBase, Any]:
        if not self._lead:
            return self._call_reset(None), ...
        mask = np.zeros(self._stage.rows, bool)
        mask[list(rows)] = True
        request = self._inputs()
        request.set("_reset", torch.from_numpy(mask).view(*self._stage.batch_shape, 1))
        return self._call_reset(request), mask

    def send(self, rows: Sequence[int] | None, t: int) -> None:
        """Hand over the observations of the stage and copies of the actions of column `t`.

        The env steps all rows, for a TensorDict holds them all; only these (None: all) are heeded.
        """
        td = self._inputs()
        for key in self._actions:
            td.set(plain(key), self._slot.views(key)[t].clone())
        self._sent, self._rows, self._t = td, rows, t

    def receive(self) -> Sequence[int] | None:
        """Step the env and write what follows; return the rows whose episode ended."""
        sent, t = self._sent, self._t
        assert sent is not None, "send comes before receive"
        self._sent = None
        result = self._call_step(sent)
        if not self._checked_step:
            self._check(result, "step")
            self._checked_step = True
        for key, array in self._next:
            array[t] = self._values(result, key)
        return self._write_ends(result, t)

    def _write_ends(self, result: TensorDictBase, t: int) -> Sequence[int] | None:
        found = {key: result.get(plain(key), None) for key in FLAGS}
        truncated = self._flag(found[TRUNCATED])
        terminated = self._flag(found[TERMINATED] if found[TERMINATED] is not None else found[DONE])
        if found[DONE] is not None and found[TERMINATED] is not None and found[TRUNCATED] is None:
            truncated = self._flag(found[DONE]) & ~terminated
        elif found[TERMINATED] is None:
            terminated = terminated & ~truncated
        ended = np.flatnonzero(terminated | truncated)
        if self._rows is not None:
            ended = np.intersect1d(ended, self._rows)
        if not ended.size:
            return None
        for array, values in zip(self._ends, (terminated, truncated), strict=True):
            array[t] = values
        return ended.tolist()

    def _flag(self, value: torch.Tensor | None) -> Array:
        shape = (*self._lead, 1)
        return np.zeros(shape, bool) if value is None else value.detach().cpu().numpy().reshape(shape)

    def _inputs(self) -> TensorDictBase:
        from_stage = self._stage.tensors
        td = self._env.empty_tensordict()
        for key in self._observations:
            td.set(plain(key), from_stage[key].clone())
        return td

    def _values(self, td: TensorDictBase, key: Key) -> Array:
        value = td.get(plain(key)).detach().cpu()
        field_shape = value.shape[len(self._stage.batch_shape) :]
        return value.numpy().reshape((*self._lead, *field_shape))

    def _check(self, td: TensorDictBase, call: str) -> None:
        env = self._env
        where = f"{type(env).__name__}._{call}"
        specs = dict(env.observation_spec.leaves())
        if call == "step":
            specs.update(env.full_reward_spec.leaves())
        for key, spec in specs.items():
            value = td.get(plain(key), None)
            if value is None:
                raise SpecMismatch(f"{where}: expected key {plain(key)!r}, found {sorted(map(str, td.keys(True, True)))}")
            spec.validate(value, key=str(plain(key)), where=where)


class ArrayFace:
    """A stage and a slot of one column of its own, so that an env by arrays can be used by TensorDicts."""

    def __init__(self, env: EnvBase) -> None:
        self._env = env
        batch = tuple(env.batch_size)
        self._stage = Stage(env.fields(env.observation_spec), batch)
        self._slot = Slot(env.slot_fields(), batch, 1)

    def reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        """Reset all rows, or those of the mask `"_reset"`, and return the observations of all."""
        rows = None
        env = self._env
        if tensordict is not None and "_reset" in tensordict:
            mask = tensordict.get("_reset").reshape(-1)
            rows = None if bool(mask.all()) else torch.nonzero(mask).flatten().tolist()
            for key, view in self._stage.tensors.items():
                view.copy_(tensordict.get(plain(key), view))
        env.bind(self._stage, self._slot)
        if rows is None or rows:
            env.reset_rows(rows, 0)
        td = env.empty_tensordict()
        for key, view in self._stage.tensors.items():
            td.set(plain(key), view.clone())
        return td

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """One column: the action goes in, what follows comes out at the root of a new TensorDict."""
        env, slot = self._env, self._slot
        slot.clear_flags()
        for key in env.fields(env.full_action_spec):
            slot.views(key)[0].copy_(tensordict.get(plain(key)))
        env.bind(self._stage, slot)
        env.step_rows(None, 0)
        td = env.empty_tensordict()
        for key in (*env.fields(env.observation_spec), *env.fields(env.full_reward_spec), TERMINATED, TRUNCATED):
            td.set(plain(key), slot.views(after(key))[0].clone())
        td.set("done", td.get("terminated") | td.get("truncated"))
        return td
