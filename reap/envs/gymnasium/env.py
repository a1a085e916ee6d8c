"""`GymEnv`: a gymnasium env with specs, for the step loop and for use by TensorDicts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from gymnasium.vector import SyncVectorEnv, VectorEnv

from reap.envs.base import EnvBase
from reap.envs.gymnasium.any_shape import with_any_shape
from reap.envs.gymnasium.calls import Env, GymCalls
from reap.envs.gymnasium.facts.infos import InfoKeys, info_specs
from reap.envs.gymnasium.facts.names import GymFacts
from reap.envs.gymnasium.facts.row_specs import action_specs, observation_specs, reward_specs, row_format
from reap.envs.gymnasium.make import Wrapping, build
from reap.envs.gymnasium.processes.deaths import naming_deaths
from reap.envs.gymnasium.processes.ends import end_processes
from reap.envs.gymnasium.resets import keep_notes, return_to
from reap.envs.gymnasium.rows import GymRow, GymRows
from reap.envs.gymnasium.state import env_state, load_env_state
from reap.envs.gymnasium.vector import VectorRows
from reap.envs.gymnasium.vector_calls import VectorCalls
from reap.envs.gymnasium.vector_kinds import VectorKind, count_rows, is_vector_env, kind_of, layers, single_spaces
from reap.envs.gymnasium.vector_values import batched_format
from reap.envs.recipes import factory_recipe
from reap.envs.row_stepper import RowStepper
from reap.envs.rows import RowsEnv
from reap.errors import OptionError, add_note, nearest
from reap.option_values import checked_seeding, switch
from reap.recording.records import Note, Recipe, ResetLog
from reap.seeds import seed_chain
from reap.specs import Spec
from reap.specs.fits import Check


class GymEnv(RowsEnv, GymFacts):
    """A gymnasium env, or a vector env: gymnasium's, or EnvPool's made with `env_type="gymnasium"`.

    Observations: Box as they are; Discrete one-hot int64, or indices int64 with `categorical_action_encoding`;
    MultiDiscrete and MultiBinary likewise; the entries of a Dict at the root under their own names, nested ones nested; those
    of a Tuple under `("observation", "0")`, .... Actions the same under `"action"`. Values without fixed shape or dtype (Text,
    Graph, Sequence, OneOf, infos whose spec is `NonTensor`) are kept as Python objects, in a `NonTensorStack`.

    The rows of a vector env are its envs, batch size `[n]`. Rows that ended are reset alone if the class is known to support
    that: `SyncVectorEnv`, `AsyncVectorEnv`, EnvPool, also under most of gymnasium's wrappers. Other classes reset their rows
    themselves: in same-step mode nothing is lost; in next-step mode the reset step stays as an invalid frame
    (mask False, id -1, not counted), and rows cannot be limited or reset alone. The env's `repr` names the method.

    Args:
        env_name: an id, or an env or vector env that is used as it is.
        categorical_action_encoding: discrete actions and observations as indices, not one-hot.
        dtype: dtype for float observations (MuJoCo's are float64); cast when they are written.
        info_keys: values of `info` kept as observations: names (scalars, float32), or name to spec; zeros where absent or None.
        from_pixels: render each step, as `"pixels"` `[height, width, 3]` uint8.
        pixels_only: with `from_pixels`, leave out the env's own observation.
        frame_skip: number of times that each action is repeated; rewards are summed.
        device: device of the env's TensorDicts.
        batch_size: the expected batch size: `[n]` for a vector env, else `[]`; None accepts any.
        convert_actions_to_numpy: pass actions to the env as arrays and numbers; otherwise as tensors (single envs only).
        allow_done_after_reset: ignored, since no gymnasium env ends with its reset.
        num_envs: with an id, a vector env of this many: a `SyncVectorEnv`, with the same data as a `SerialEnv` of the same
            envs. `vectorization_mode="async"` steps each in its own process, `"vector_entry_point"` is the vector env
            that the id may have; `vector_kwargs` go to the vector env. 0: a single env.
        **kwargs: passed to `gymnasium.make` with an id.

    Raises:
        OptionError: unknown id, an observation key that collides with a key of the batch, a space that cannot be used, a vector
            env that does not say how it resets rows.

    Example:
        >>> env = GymEnv("CartPole-v1")
        >>> env.observation_spec["observation"].shape, env.action_spec.shape
        (torch.Size([4]), torch.Size([2]))
        >>> env.rollout(3).batch_size
        torch.Size([3])
        >>> GymEnv("CartPole-v1", num_envs=2).rollout(3).batch_size
        torch.Size([2, 3])
    """

    checks_choices = True

    def __init__(
        self,
        env_name: str | Env | VectorEnv[Any, Any, Any],
        *,
        categorical_action_encoding: bool = False,
        dtype: torch.dtype | None = None,
        info_keys: InfoKeys | None = None,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int | None = None,
        device: torch.device | str | None = None,
        batch_size: Sequence[int] | None = None,
        convert_actions_to_numpy: bool = True,
        allow_done_after_reset: bool = False,
        num_envs: int = 0,
        **kwargs: Any,
    ) -> None:
        _check_dtype(dtype)
        switch(categorical_action_encoding, "categorical_action_encoding")
        options: dict[str, Any] = {
            "categorical_action_encoding": categorical_action_encoding,
            "dtype": dtype,
            "info_keys": info_keys,
            "from_pixels": from_pixels,
            "pixels_only": pixels_only,
            "frame_skip": frame_skip,
            "device": device,
            "batch_size": batch_size,
            "convert_actions_to_numpy": convert_actions_to_numpy,
            "num_envs": num_envs,
        }
        self._recipe = (env_name, {**options, **kwargs})
        wrapping = Wrapping(from_pixels, pixels_only, frame_skip, convert_actions_to_numpy)
        with _hints_at_options(kwargs):
            self.wrapped: Any = build(env_name, num_envs, wrapping, kwargs)
        self._is_vector = is_vector_env(self.wrapped)
        kind = kind_of(self.wrapped) if self._is_vector and type(self.wrapped) is not SyncVectorEnv else None
        size = (count_rows(self.wrapped),) if self._is_vector else ()
        super().__init__(device=device, batch_size=size, allow_done_after_reset=allow_done_after_reset)
        self._require_batch_size(batch_size)
        name = "pixels" if from_pixels and pixels_only else "observation"
        spaces = single_spaces(self.wrapped)
        self._make_form = partial(row_format, name=name, categorical=categorical_action_encoding, infos=info_specs(info_keys))
        self.form = self._make_form(self.wrapped, *spaces)
        self._set_specs(categorical_action_encoding, dtype, info_keys)
        self.row: GymRow | GymRows | VectorRows = self._make_rows(kind, name, info_keys, categorical_action_encoding)

    def _require_batch_size(self, given: Sequence[int] | None) -> None:
        if given is not None and torch.Size(given) != self.batch_size:
            self.wrapped.close()
            raise OptionError(
                f"batch_size: expected {list(self.batch_size)}, the size of this env, got {list(given)}; GymEnv(env_name, "
                "num_envs=n) has batch size [n]"
            )

    def _make_rows(
        self, kind: VectorKind | None, name: str, info_keys: InfoKeys | None, categorical: bool
    ) -> GymRow | GymRows | VectorRows:
        env, form = self.wrapped, self.form
        if not self._is_vector:
            return GymRow(GymCalls(env), form)
        if kind is None:
            # A SyncVectorEnv loops over its envs as we do; done here, rows can be stepped alone too.
            return GymRows([GymRow(GymCalls(single), form) for single in env.envs])
        self.resets_rows, self.steps_rows, self.resets_itself = kind.takes_mask, kind.takes_ids, kind.resets_itself
        space, _ = single_spaces(env)
        count = self.batch_size.numel()
        every = batched_format(form, name, space, info_specs(info_keys), categorical=categorical, count=count)
        return VectorRows(VectorCalls(env, kind), every, form)

    def _stepper_by_hand(self) -> RowStepper:
        if not isinstance(self.row, GymRow):
            return self
        row = GymRow(self.row.calls, self.form)
        row.check = self.check
        return row

    def set_check(self, check: Check) -> None:
        """Set how closely values are checked; see `EnvBase`."""
        super().set_check(check)
        self.row.check = check
        self._exclusive = None
        for calls in [self.row.calls] if isinstance(self.row, VectorRows) else self._calls():
            calls.refuses_bounds = check != "types"

    def _use_infos(self, infos: dict[str, Spec]) -> None:
        _, options = self._recipe
        self._make_form = partial(self._make_form, infos=infos)
        self.form = self._make_form(self.wrapped, *single_spaces(self.wrapped))
        self._set_specs(options["categorical_action_encoding"], options["dtype"], infos)
        self._set_rows([GymRow(one, self.form) for one in self._calls()])

    def _set_rows(self, rows: list[GymRow]) -> None:
        """Switch to rows of another format, for envs that are reset and stepped alone."""
        self.row = GymRows(rows) if self._is_vector else rows[0]
        self._exclusive = None
        self.set_check(self.check)

    def let_shapes_change(self) -> None:
        """Let observations of Box spaces, except action masks, have any shape: each becomes an object, a separate tensor.

        Raises:
            OptionError: a vector env whose observations of all rows are in one array.
        """
        calls = self._calls()
        if not calls:
            raise OptionError(
                f"use_buffers=False: {self!r} returns the observations of all rows in one array, where they have one shape; "
                "use a SerialEnv, or a SyncVectorEnv"
            )
        _, options = self._recipe
        observation_space, action_space = single_spaces(self.wrapped)
        space = with_any_shape(observation_space, options["dtype"])
        self.form = self._make_form(self.wrapped, space, action_space)
        self._set_specs(options["categorical_action_encoding"], options["dtype"], options["info_keys"])
        for one in calls:
            one.expect(space)
        self._set_rows([GymRow(one, self.form) for one in calls])

    def _set_specs(self, categorical: bool, dtype: torch.dtype | None, info_keys: InfoKeys | None) -> None:
        env, form, infos = self.wrapped, self.form, info_specs(info_keys)
        # Expanded here: an observation as long as the batch would pass for one that has the batch dimension.
        size = self.batch_size
        self.observation_spec = observation_specs(env, form, infos, categorical=categorical, dtype=dtype).expand(*size)
        self.action_spec = action_specs(form, categorical=categorical).expand(*size)
        self.reward_spec = reward_specs(form).expand(*size)
        self.add_truncated_keys()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Give each row the next seed of the chain; return the one after the last.

        A vector env with one generator for all rows gets the first seed.

        Raises:
            OptionError: an EnvPool, which accepts seeds only at construction; or not a seed, or not a bool.
        """
        self.ensure_open()
        seed, static_seed = checked_seeding(seed, static_seed)
        *seeds, following = seed_chain(seed, max(1, self.batch_size.numel()), static=static_seed)
        self.row.seed(seeds)
        return following

    def get_attribute(self, name: str) -> Any:
        """An attribute of the gymnasium env, searched through its wrappers; for a vector env, a list with each env's."""
        if not self._is_vector:
            return self.wrapped.get_wrapper_attr(name)
        envs = layers(self.wrapped)[-1]
        if not hasattr(envs, "get_attr"):
            return getattr(self.wrapped, name)
        return list(naming_deaths(envs.get_attr, envs, f"get_attr({name!r})")(name))

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the gymnasium env, searched through its wrappers; for a vector env, call each env's."""
        if not self._is_vector:
            return self.wrapped.get_wrapper_attr(name)(*args)
        envs = layers(self.wrapped)[-1]
        if not hasattr(envs, "get_attr"):
            return getattr(self.wrapped, name)(*args)
        return list(naming_deaths(envs.call, envs, f"call({name!r})")(name, *args))

    def state_dict(self) -> dict[str, Any] | None:
        """The state of each env, if envs have `state_dict()` and `load_state_dict(state)`; else None."""
        states = [env_state(calls) for calls in self._calls()]
        return {"envs": states} if states and all(state is not None for state in states) else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`."""
        for calls, own in zip(self._calls(), state["envs"], strict=True):
            load_env_state(calls, own)

    def keep_resets(self, log: ResetLog | None = None, first: int = 0) -> None:
        """Note the state of each env before its resets; see `EnvBase`.

        Raises:
            OptionError: a vector env whose envs cannot be accessed.
        """
        calls = self._calls()
        if not calls:
            super().keep_resets(log, first)
        self._resets = log or ResetLog()
        for row, one in enumerate(calls, first):
            keep_notes(one, self._resets, row)

    hides_resets = "In this one all rows are one object; make its envs by SerialEnv, or ParallelEnv."

    def row_recipes(self) -> list[Recipe | None]:
        """The recipe of each row's env: the id and the options, or the factory of a SyncVectorEnv's row."""
        env, options = self._recipe
        if not self._is_vector:
            made = None if self.maker is None else factory_recipe(*self.maker)
            return [Recipe(env, options) if isinstance(env, str) else made]
        own = {name: options[name] for name in OF_ONE_ROW}
        makers: Sequence[Any] = getattr(self.wrapped, "env_fns", ())
        return [factory_recipe(partial(_of_one_row, maker, own)) for maker in makers]

    def return_to(self, note: Note) -> None:
        """Restore the state of another env before a reset; see `EnvBase`."""
        if not isinstance(self.row, GymRow):
            super().return_to(note)
        return_to(self._calls()[0], note)

    def _calls(self) -> Sequence[GymCalls]:
        """The calls of the envs that are reset and stepped alone."""
        row = self.row
        return row.calls if isinstance(row, GymRows) else [row.calls] if isinstance(row, GymRow) else ()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the gymnasium env; a second call does nothing, or raises ClosedError with `raise_if_closed`.

        Processes of an `AsyncVectorEnv` that have not ended 5 s later, because a step or the `close` of an env takes longer,
        are killed.
        """
        if not self.closed:
            end_processes(self.wrapped)
            self.wrapped.close()
        super().close(raise_if_closed=raise_if_closed)

    def another(self) -> EnvBase:
        """A new env with the same id and options; an env that was given as an object cannot be built again."""
        env, options = self._recipe
        return _rebuild(type(self), env, options) if isinstance(env, str) else super().another()

    def __reduce__(self) -> tuple[Any, ...]:
        env, options = self._recipe
        return _rebuild, (type(self), env, options)

    def __repr__(self) -> str:
        env, options = self._recipe
        spec = getattr(self.wrapped, "spec", None)
        name = env if isinstance(env, str) else getattr(spec, "id", None) or type(layers(self.wrapped)[-1]).__name__
        if not self._is_vector:
            return f"{type(self).__name__}({name if isinstance(env, str) or spec else self.wrapped})"
        way = self.row.calls.kind.way if isinstance(self.row, VectorRows) else "rows reset alone"
        return f"{type(self).__name__}({name}, num_envs={options['num_envs'] or self.batch_size.numel()}, {way})"


class GymWrapper(GymEnv):
    """Wraps an existing gymnasium env.

    Args:
        env: the env, or a vector env.
        categorical_action_encoding: see `GymEnv`.
        **kwargs: the other options of `GymEnv`.
    """

    def __init__(self, env: Env | VectorEnv[Any, Any, Any], categorical_action_encoding: bool = False, **kwargs: Any) -> None:
        super().__init__(env, categorical_action_encoding=categorical_action_encoding, **kwargs)  # pyright: ignore[reportArgumentType]


def _check_dtype(dtype: Any) -> None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise OptionError(f"dtype: expected a floating torch.dtype, for float observations, got {dtype!r}")


def _rebuild(cls: type[GymEnv], env: Any, options: dict[str, Any]) -> GymEnv:
    return cls(env, **options)


OF_ONE_ROW = ("categorical_action_encoding", "dtype", "info_keys")
"""The options of a vector env that apply to each row."""


def _of_one_row(make: Callable[[], Env], options: Mapping[str, Any]) -> GymEnv:
    return GymEnv(make(), **options)


@contextmanager
def _hints_at_options(kwargs: Mapping[str, Any]) -> Generator[None]:
    """Add to a TypeError about keywords that went to gymnasium the names of similar options."""
    try:
        yield
    except TypeError as error:
        known = list(inspect.signature(GymEnv.__init__).parameters)
        for name in kwargs:
            if name in str(error) and (hint := nearest(name, known)):
                add_note(error, f"reap: {name!r} is no option of GymEnv and went to gymnasium.make.{hint}")
        raise
