"""`RowsAsTensorDict`: the TensorDict face of an env that works on arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from reap.envs.faces.td_access import get_leaf
from reap.keys import Key, nested, plain
from reap.recording.buffers import DONE, TERMINATED, TRUNCATED, Slot, Stage, after
from reap.recording.layout import sizes_of
from reap.recording.objects import copies_of, stacked, unstacked
from reap.specs.tensor_fits import TensorFits
from reap.tensordicts import make_tensordict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensordict import TensorDictBase

    from reap.envs.row_stepper import RowStepper
    from reap.envs.specs import EnvSpecs
    from reap.recording.layout import Array, Block, Layout


class RowsAsTensorDict:
    """Resets and steps an env through a private stage and a private slot of one column.

    Args:
        env: the env's specs.
        stepper: its array face; if this is the env itself, others may bind it to other arrays too.
        make_block: makes the memory of the stage and the slot.
    """

    def __init__(self, env: EnvSpecs, stepper: RowStepper, make_block: Callable[[Layout], Block]) -> None:
        self._env, self._stepper = env, stepper
        self._is_shared = id(stepper) == id(env)
        batch = tuple(env.batch_size)
        self._stage = Stage(env.fields_of_stage(), batch, make_block)
        self._slot = Slot(env.slot_fields(), batch, 1, make_block)
        self._objects = [key for key, field in self._stage.fields.items() if field.is_object]
        actions = env.fields(env.full_action_spec)
        shapes = [torch.Size((*batch, *field.shape)) for field in actions.values()]
        self._actions = [plain(key) for key in actions]
        self._fits = TensorFits(self._actions, shapes, [field.dtype for field in actions.values()])
        self._taken = [self._slot.views(key)[0] for key in actions]
        results = [*self._stage.tensors, *env.fields(env.full_reward_spec)]
        self._results = [(key, self._slot.views(after(key))[0]) for key in results]
        self._sizes = sizes_of({**self._stage.fields, **env.fields(env.full_reward_spec)})
        # Flags of every slot that are not in the env's specs are left out.
        self._flags = [(flag, self._slot.views(after(flag))[0], flag in env.full_done_spec) for flag in (TERMINATED, TRUNCATED)]
        found = {key: env.looks_of(key, spec) for key, spec in env.specs_of_result("_step")}
        self._has_looks = all(numbers or bounds for numbers, bounds in found.values())
        arrays = {key: self._slot.by_column(after(key))[0] for key in found}
        self._looks = [(look, arrays[key]) for key, pair in found.items() for look in pair if look is not None]

        self._stepper.bind(self._stage, self._slot)

    def _bind(self) -> None:
        if self._is_shared:
            self._stepper.bind(self._stage, self._slot)

    def reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        """Reset all rows, or those of the mask `"_reset"`; return the observations of all rows."""
        rows = None
        if tensordict is not None and "_reset" in tensordict:
            mask = tensordict.get("_reset").reshape(-1)
            rows = None if bool(mask.all()) else torch.nonzero(mask).flatten().tolist()
            for key, view in self._stage.tensors.items():
                view.copy_(tensordict.get(plain(key), view))
            for key in self._objects:
                if (held := tensordict.get(plain(key), None)) is not None:
                    array = self._stage.arrays[key]
                    array[...] = unstacked(held, self._stage.batch_shape).reshape(array.shape)
        self._bind()
        if rows is None or rows:
            self._stepper.reset_rows(rows, 0)
        leaves: dict[Key, Any] = {key: view.clone() for key, view in self._stage.tensors.items()}
        leaves.update({key: self._stacked(self._stage.arrays[key]) for key in self._objects})
        return self._tensordict(leaves)

    def _tensordict(self, leaves: Mapping[Key, Any]) -> TensorDictBase:
        device = self._env.device
        if device is not None and device.type != "cpu":
            leaves = {key: value.to(device) for key, value in leaves.items()}
        return make_tensordict(nested(leaves, self._sizes), self._env.batch_size, device=device)

    def _stacked(self, column: Array) -> Any:
        """Copies of one column of objects, since the stage will be overwritten."""
        return stacked(copies_of(column).reshape(self._stage.batch_shape))

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step all rows with the action in a TensorDict; the results are at the root of a new one."""
        env, slot = self._env, self._slot
        slot.clear_flags()
        given = self._fits.take([get_leaf(tensordict, key) for key in self._actions], type(env).__name__, "step")
        for view, value in zip(self._taken, given, strict=True):
            view.copy_(value)
        self._bind()
        self._stepper.step_rows(None, 0)
        leaves = {key: view.clone() for key, view in self._results}
        (_, terminated, _), (_, truncated, _) = self._flags
        leaves[DONE] = terminated | truncated
        leaves.update({flag: view.clone() for flag, view, is_known in self._flags if is_known})
        leaves.update({key: self._stacked(slot.by_column(after(key))[0]) for key in self._objects})
        return self._tensordict(leaves)

    def is_plainly_fine(self) -> bool:
        """Whether all numbers of the last step are within their bounds; False if there are choices or objects."""
        return self._has_looks and all(look.is_fine(array) for look, array in self._looks)
