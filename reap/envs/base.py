"""`EnvBase`: the base class of envs, with specs and two interfaces ("faces").

The *TensorDict face* is for people: `reset`, `step`, `rand_step`, `rollout`. The *array face* is for the step loop:
`bind(stage, slot)` once per rollout, then `step_rows(rows, t)` and `reset_rows(rows, t)` per column, which read actions
from the slot and write into the bound arrays:

    step_rows    reads slot action[t]; writes slot next observation[t], next reward[t];
                 sets next terminated[t] / truncated[t] where an episode ends; returns those rows, or None
    reset_rows   writes the first observation of a new episode into the stage

A subclass writes one of the faces, the base derives the other: either `_reset`, `_step` and `_set_seed` on TensorDicts, or
`bind`, `reset_rows`, `send`, `receive` (or `step_rows`) and `_set_seed` on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Self

import torch

from reap.envs.faces.absent import checked_options
from reap.envs.faces.episodes import finish_reset, finish_step, with_own_mask
from reap.envs.faces.module_calls import ModuleCalls
from reap.envs.faces.moved import moving, require_values
from reap.envs.faces.results import check_values
from reap.envs.faces.rows_as_tensordict import RowsAsTensorDict
from reap.envs.faces.stepping import Stepping
from reap.envs.faces.tensordict_as_rows import OwnCalls, TensorDictAsRows, TensorDictCalls
from reap.envs.row_stepper import Rows, RowStepper, StepperHalf
from reap.errors import ClosedError, OptionError
from reap.keys import Key
from reap.option_values import checked_seeding, switch
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Block, Layout
from reap.recording.records import Note, Recipe, ResetLog
from reap.seeds import next_seed
from reap.specs.fits import Check

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class EnvBase(Stepping, ModuleCalls):
    """An environment, or a batch of them: rows that are reset and stepped together.

    Args:
        device: the device of the env's TensorDicts; None leaves them where they are made.
        batch_size: leading dimensions of everything the env reads and writes; empty for a single env.
        allow_done_after_reset: let `_reset` return done flags that are set; otherwise this is an error when the env is reset
            by hand, and at its first reset in a loop. In both cases a loop treats the row as not done.
        **options: options of torchrl's class: `run_type_checks=True` means `check="all"`; others are accepted only with
            torchrl's default value.

    Raises:
        OptionError: a device that does not exist, or an unsupported value of a torchrl option.

    Example:
        A subclass on TensorDicts sets specs and defines three methods; see `docs/basics.md` for a complete one.
    """

    resets_itself: bool = False
    """Whether the env itself resets rows that ended, in the next step, which is then an invalid frame."""

    resets_rows: bool = True
    """Whether a row can be reset without the others."""

    steps_rows: bool = True
    """Whether some rows can be stepped while others wait."""

    checks_choices: bool = False
    """Whether the env checks discrete observations and actions one by one; otherwise whole columns are checked, as for NaN."""

    stores_choices_as_given: bool = False
    """Whether one-hot actions are stored and passed to the env in the policy's dtype; otherwise in the spec's dtype."""

    shares_memory: bool = False
    """Whether other processes write the rows: stage and slot are then made in memory that can be shared, by `make_block`."""

    def __init__(
        self,
        *,
        device: torch.device | str | None = None,
        batch_size: Sequence[int] = (),
        allow_done_after_reset: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(device=device, batch_size=batch_size)
        self.allow_done_after_reset = switch(allow_done_after_reset, "allow_done_after_reset")
        self.check = checked_options(type(self).__name__, options)
        self.owner: object = None
        """The owner of the current episodes; a reset or step by TensorDicts takes them away from a collector."""
        self.maker: tuple[Callable[..., Any], Mapping[str, Any]] | None = None
        """The factory that made the env, and its keywords, if any."""
        self._closed = False
        self._moves = False
        self._face: TensorDictAsRows | None = None
        self._exclusive: RowsAsTensorDict | None = None
        # The arguments of `send`, for an env that only writes `step_rows`.
        self._sent: tuple[Rows | None, int] = (None, 0)
        self._check_face()

    def _check_face(self) -> None:
        cls = type(self)
        by_tensordict = cls._step is not EnvBase._step and cls._reset is not EnvBase._reset
        by_array = cls.reset_rows is not EnvBase.reset_rows and (
            cls.step_rows is not EnvBase.step_rows or cls.receive is not EnvBase.receive
        )
        self._is_by_tensordict = by_tensordict and not by_array
        if not (by_tensordict or by_array):
            raise TypeError(
                f"{cls.__name__} writes neither face of an env: define _reset(tensordict) and _step(tensordict), "
                "or bind(stage, slot), reset_rows(rows, t) and step_rows(rows, t)"
            )

    # ------------------------------------------------------------------ array face

    @property
    def make_block(self) -> Callable[[Layout], Block]:
        """Makes the memory of a stage and a slot for this env."""
        return Block.shared if self.shares_memory else Block.private

    def row_stepper(self) -> RowStepper:
        """The object whose array face a step loop calls: the env, or the part that does the work."""
        self.ensure_open()
        return self._made_face() if self._is_by_tensordict else self

    def stepper_halves(self) -> Sequence[StepperHalf]:
        """Two halves of the rows, for a loop in which the policy serves one half while the other steps; none by default."""
        return ()

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write."""
        self._made_face().bind(stage, slot)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Start a new episode in these rows (None: all); write its first observation to the stage.

        Args:
            rows: indices of the rows.
            t: the column in which the previous episode ended.
        """
        self._bound_face().reset_rows(rows, t)

    def send(self, rows: Rows | None, t: int) -> None:
        """Send the actions of column `t` to these rows (None: all)."""
        if self._is_by_tensordict:
            self._bound_face().send(rows, t)
        else:
            self._sent = rows, t

    def receive(self) -> Rows | None:
        """Write the results of `send`; return the rows whose episode ended, or None."""
        return self._bound_face().receive() if self._is_by_tensordict else self.step_rows(*self._sent)

    def step_rows(self, rows: Rows | None, t: int) -> Rows | None:
        """`send`, then `receive`."""
        self.send(rows, t)
        return self.receive()

    def _made_face(self) -> TensorDictAsRows:
        if self._face is None:
            self._face = TensorDictAsRows(self, self._tensordict_calls())
        return self._face

    def _tensordict_calls(self) -> TensorDictCalls:
        """The calls of the array face to an env on TensorDicts."""
        if not self._moves or self.device is None:
            return OwnCalls(self, self._reset, self._step)
        return OwnCalls(self, moving(self._reset, self.device), moving(self._step, self.device))

    def _bound_face(self) -> TensorDictAsRows:
        if self._face is None:
            raise RuntimeError(f"{type(self).__name__}.bind(stage, slot) comes before the first reset or step")
        return self._face

    def leave_to_policy(self, keys: Sequence[Key]) -> None:
        """Exclude keys of a policy's recurrent state from the observations, if the env returns them too."""

    def set_check(self, check: Check) -> None:
        """Set how closely values are checked: "types", "all" or "first"; collectors call this for each env that they drive."""
        self.check = check

    def set_device(self, device: torch.device) -> None:
        """Set the device of the env's values; collectors call this with their `env_device` for each env that they drive.

        Results of an env on TensorDicts are moved there, and so are its actions. An env on arrays has its values in host memory
        while it is stepped in a loop, and its own TensorDicts on the device.

        Raises:
            OptionError: a device that does not exist, or that holds no values.
        """
        require_values(device)
        self.to(device)
        self._moves = True

    def let_shapes_change(self) -> None:
        """Allow observations to have a different shape in each frame, permanently.

        They become objects then, each a separate tensor. An env whose shapes are fixed by its specs, like this one,
        ignores this call.
        """

    # ------------------------------------------------------------------ TensorDict face

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        """Start new episodes and return first observations; only for the rows in `tensordict["_reset"]`, if given."""
        return self._own_arrays().reset(tensordict)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the action in `tensordict`; return observations, reward, done and terminated at the root."""
        return self._own_arrays().step(tensordict)

    def _set_seed(self, seed: int) -> None:
        """Seed the env's random generators; takes effect at the next reset at the latest."""
        raise NotImplementedError(f"{type(self).__name__}._set_seed(seed) is not defined, and a seed was given")

    def _own_arrays(self) -> RowsAsTensorDict:
        if self._exclusive is None:
            self._exclusive = RowsAsTensorDict(self, self._stepper_by_hand(), self.make_block)
        return self._exclusive

    def _stepper_by_hand(self) -> RowStepper:
        """The array face used by `reset` and `step`: the env, or a separate object that nothing else binds."""
        return self

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Start new episodes and return their first observations and cleared done flags `[*batch_size]`.

        Args:
            tensordict: with a boolean `"_reset"` `[*batch_size, 1]`, only those rows are reset and the others keep the
                values that it holds; it is not changed. Its other keys are returned as they are.
        """
        self.ensure_open()
        self.owner = None
        request, mask = with_own_mask(self, tensordict)
        begun = None if mask is not None and not mask.any() else self._reset(request)
        return finish_reset(self, tensordict, begun, mask)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the action; the results are returned under `"next"` of the same TensorDict."""
        return tensordict.set("next", self.results_of_step(tensordict))

    def results_of_step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the action; the results are at the root of a new TensorDict."""
        self.ensure_open()
        self.owner = None
        result = self._step(tensordict)
        if self._is_by_tensordict:
            return finish_step(self, tensordict, result)
        # Flags that are read from arrays are complete, and of their shape.
        if self._exclusive is None or not self._exclusive.is_plainly_fine():
            check_values(self, result, "_step", f"{type(self).__name__}._step", by_hand=True)
        return result

    # ------------------------------------------------------------------ life

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the env; return the seed for the env after it in the chain (the same one if `static_seed`).

        Raises:
            OptionError: the seed is not an integer from 0 to 2**63 - 1, or `static_seed` not a bool.
        """
        self.ensure_open()
        seed, static_seed = checked_seeding(seed, static_seed)
        self._set_seed(seed)
        return seed if static_seed else next_seed(seed)

    def get_attribute(self, name: str) -> Any:
        """An attribute of the env, or a list with one value per env in a batch of envs."""
        return getattr(self, name)

    def own_attribute(self, name: str) -> Any:
        """An attribute of this object, such as `batch_size`; `get_attribute` also searches the wrapped env."""
        return getattr(self, name) if hasattr(EnvBase, name) or name in vars(self) else self.get_attribute(name)

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the env; return its result, or a list with one result per env in a batch of envs."""
        return getattr(self, name)(*args)

    def state_dict(self) -> dict[str, Any] | None:
        """Everything that the env needs to continue exactly where it is, as plain data and tensors; None if it has no state."""
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`."""
        raise NotImplementedError(f"{type(self).__name__} has no state to load")

    def loop_state(self) -> dict[str, Any] | None:
        """The `state_dict`, and for an env on TensorDicts also the TensorDict from which its next step in a loop starts."""
        state = self.state_dict()
        if state is None:
            return None
        return {"env": deepcopy(state), "current": self._made_face().state() if self._is_by_tensordict else None}

    def load_loop_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a `loop_state`."""
        self.load_state_dict(deepcopy(state["env"]))
        if self._is_by_tensordict:
            self._made_face().load_state(state["current"])

    def keep_resets(self, log: ResetLog | None = None, first: int = 0) -> None:
        """Start to note the state of each row before its resets, so that its episodes can be run again.

        A second call drops all notes, and makes sure that the next reset of each row is noted.

        Args:
            log: collects notes, also those of other envs; None for a log of its own.
            first: the row of the log that belongs to its first row.

        Raises:
            OptionError: the env does not support this.
        """
        raise OptionError(
            f"record_episodes: {self!r} does not tell where its rows are when they are reset; expected a gymnasium env, or "
            f"several in a SerialEnv, a ParallelEnv or a SyncVectorEnv. {self.hides_resets}"
        )

    _resets: ResetLog

    hides_resets = "Other envs define keep_resets() and row_recipes()."
    """The error text for an env whose episodes cannot be run again, and what to do."""

    def taken_resets(self) -> dict[int, Note]:
        """The notes of resets since the last call, by row; see `keep_resets`."""
        return self._resets.take()

    def row_recipes(self) -> list[Recipe | None]:
        """The recipe that builds the env of each row by itself; None if unknown."""
        return [None] * self.batch_size.numel()

    def return_to(self, note: Note) -> None:
        """Restore the state of another env before a reset, so that the next reset starts the same episode; for envs of one row.

        Raises:
            OptionError: the env does not support this.
            SpecMismatch: the other env was of a different kind.
        """
        raise OptionError(f"replay: expected a single gymnasium env, got {self!r}")

    def another(self) -> EnvBase:
        """A new env, built like this one.

        Raises:
            OptionError: this env cannot be built again.
        """
        factory = f"lambda: {type(self).__name__}(...)"
        raise OptionError(f"{self!r} was given for several rows, but it is one env: give a factory of it instead, {factory}")

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    def ensure_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self._closed:
            raise ClosedError(f"{type(self).__name__} is closed; build a new one")

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Release the env's resources.

        Args:
            raise_if_closed: a second call raises ClosedError; otherwise it does nothing.
        """
        if raise_if_closed:
            self.ensure_open()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={tuple(self.batch_size)}, action={self.action_keys}, device={self.device})"
