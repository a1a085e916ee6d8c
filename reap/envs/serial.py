"""`SerialEnv`: several envs as one batch, stepped one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from reap.envs.base import EnvBase
from reap.envs.gymnasium.env import GymEnv
from reap.envs.gymnasium.rows import GymRow, GymRows, name_env
from reap.envs.make_env import build_env, is_env
from reap.envs.row_stepper import Rows, RowStepper, StepRows
from reap.envs.rows import RowsEnv
from reap.envs.transport import merged_kwargs, warn_of
from reap.errors import CallOrderError, OptionError, SpecMismatch, add_note
from reap.option_values import checked_seeding, is_count
from reap.recording.buffers import Slot, Stage
from reap.recording.records import Recipe, ResetLog
from reap.specs.fits import Check

Factory = Callable[..., Any]

Share = tuple[int, RowStepper, int, Rows | None]
"""An env's index, its face, its first row, and some of its rows counted from there (None: all)."""


class SerialEnv(RowsEnv):
    """A batch of envs of one kind, of batch size `[num_workers, *batch size of one]`.

    Args:
        num_workers: number of envs.
        create_env_fn: an env factory, a gymnasium id, or a list of one per env.
        create_env_kwargs: keywords for the factory, or a list of one dict per env.
        device: device of the env's TensorDicts.
        **transport: options of torchrl's class for the transport of data: accepted, with a warning where they differ from
            torchrl's defaults, and without effect.

    Raises:
        OptionError: a number of envs below 1, a list of another length, a factory that returns no env, an unknown option.
        SpecMismatch: envs of different specs.

    Example:
        >>> env = SerialEnv(2, lambda: GymEnv("CartPole-v1"))
        >>> env.batch_size, env.rollout(3, break_when_any_done=False).batch_size
        (torch.Size([2]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        num_workers: int,
        create_env_fn: Factory | str | Sequence[Factory | str],
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        device: torch.device | str | None = None,
        **transport: Any,
    ) -> None:
        warn_of(type(self).__name__, transport, ("create_env_kwargs", "device"))
        factories = each_of(num_workers, create_env_fn, "create_env_fn")
        kwargs = each_of(num_workers, create_env_kwargs, "create_env_kwargs")
        self._recipe = (num_workers, create_env_fn, create_env_kwargs, device)
        self.envs: list[EnvBase] = []
        first_number, total = self._numbers(num_workers)
        try:
            for number, (factory, given) in enumerate(zip(factories, kwargs, strict=True)):
                env = build_env(factory, given)
                is_given_again = is_env(factory) and any(factory is other for other in factories[:number])
                self.envs.append(env.another() if is_given_again else env)
                require_equal(self.envs[0], self.envs[-1], first_number + number, first_number)
            _require_different(self.envs)
        except BaseException as error:
            add_note(error, f"reap: in env {first_number + len(self.envs)} of {total}")
            for env in self.envs:
                env.close()
            raise
        first = self.envs[0]
        super().__init__(device=device, batch_size=(num_workers, *first.batch_size))
        self._set_observations()
        self.action_spec = first.full_action_spec.expand(*self.batch_size)
        self.reward_spec = first.full_reward_spec.expand(*self.batch_size)
        self.done_spec = first.full_done_spec.expand(*self.batch_size)
        self.resets_itself = first.resets_itself
        self.resets_rows = all(env.resets_rows for env in self.envs)
        self.steps_rows = all(env.steps_rows for env in self.envs)
        self.shares_memory = any(env.shares_memory for env in self.envs)
        self.checks_choices = all(env.checks_choices for env in self.envs)
        self.row: GymRows | ChildRows = self._merged()

    def _numbers(self, count: int) -> tuple[int, int]:
        """The number of the first of `count` envs, and the total number of envs, for messages."""
        return 0, count

    def _merged(self) -> GymRows | ChildRows:
        return merge_rows(self.envs, *self._numbers(len(self.envs)))

    def _set_observations(self) -> None:
        self.observation_spec = self.envs[0].observation_spec.expand(*self.batch_size)

    def set_check(self, check: Check) -> None:
        """Set how closely the values of all envs are checked; see `EnvBase`."""
        super().set_check(check)
        for env in self.envs:
            env.set_check(check)
        self.row = self._merged()

    def set_device(self, device: torch.device) -> None:
        """Set the device of all envs' values; see `EnvBase`."""
        super().set_device(device)
        for env in self.envs:
            env.set_device(device)
        self.row = self._merged()

    def let_shapes_change(self) -> None:
        """Let the observations of all envs change their shapes."""
        for env in self.envs:
            env.let_shapes_change()
        self._set_observations()
        self.row = self._merged()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Give each env the next seed of the chain; return the one after the last.

        Raises:
            OptionError: the seed is not an integer from 0 to 2**63 - 1, or `static_seed` not a bool.
        """
        self.ensure_open()
        seed, static_seed = checked_seeding(seed, static_seed)
        for env in self.envs:
            seed = env.set_seed(seed, static_seed)
        return seed

    @property
    def num_workers(self) -> int:
        """The number of envs."""
        return len(self.envs)

    def start(self) -> None:
        """Do nothing: the envs are built together with the batch."""

    def update_kwargs(self, kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Build all envs again with additional keywords for their factories.

        Args:
            kwargs: keywords for all, or a list of one dict per env.

        Raises:
            CallOrderError: a collector drives the envs.
        """
        if self.owner is not None:
            raise CallOrderError(f"{self!r}.update_kwargs: expected it before a collector drives the envs")
        count, create, before, device = self._recipe
        given = merged_kwargs(each_of(count, before, "create_env_kwargs"), each_of(count, kwargs, "kwargs"))
        for env in self.envs:
            env.close()
        type(self).__init__(self, count, create, create_env_kwargs=given, device=device)

    def get_attribute(self, name: str) -> list[Any]:
        """The attribute of each env."""
        return [env.get_attribute(name) for env in self.envs]

    def call(self, name: str, *args: Any) -> list[Any]:
        """Call a method of each env; return the results."""
        return [env.call(name, *args) for env in self.envs]

    def state_dict(self) -> dict[str, Any] | None:
        """The states of all envs; None if any env has none."""
        states = [env.state_dict() for env in self.envs]
        return None if any(state is None for state in states) else {"envs": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume each env from its state."""
        for env, own in zip(self.envs, state["envs"], strict=True):
            env.load_state_dict(own)

    def loop_state(self) -> dict[str, Any] | None:
        """The loop states of all envs; None if any env has none."""
        states = [env.loop_state() for env in self.envs]
        return None if any(state is None for state in states) else {"envs": states}

    def load_loop_state(self, state: Mapping[str, Any]) -> None:
        """Resume each env from its state."""
        for env, own in zip(self.envs, state["envs"], strict=True):
            env.load_loop_state(own)

    def keep_resets(self, log: ResetLog | None = None, first: int = 0) -> None:
        """Note the state of each env before its resets; see `EnvBase`."""
        self._resets = log or ResetLog()
        for env in self.envs:
            env.keep_resets(self._resets, first)
            first += env.batch_size.numel()

    def row_recipes(self) -> list[Recipe | None]:
        """The recipe of each row's env."""
        return [recipe for env in self.envs for recipe in env.row_recipes()]

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close all envs; a second call does nothing, or raises ClosedError with `raise_if_closed`."""
        super().close(raise_if_closed=raise_if_closed)
        with ExitStack() as all_of_them:
            for env in reversed(self.envs):
                all_of_them.callback(env.close)

    def another(self) -> EnvBase:
        """A new batch of envs from the same factories."""
        return _rebuild(type(self), *self._recipe)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), *self._recipe)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.envs)}, {self.envs[0]!r})"


class ChildRows:
    """Envs of any kind, stepped one after the other: each works on its own rows of the stage and the slot.

    Args:
        envs: the envs.
        first: the number of the first env, for messages.
        total: the total number of envs, for messages; None if these are all.
    """

    def __init__(self, envs: Sequence[EnvBase], first: int = 0, total: int | None = None) -> None:
        self._faces = [env.row_stepper() for env in envs]
        self._shapes = [tuple(env.batch_size) for env in envs]
        counts = [env.batch_size.numel() for env in envs]
        self._starts = [sum(counts[:i]) for i in range(len(counts))]
        self._stops = [start + count for start, count in zip(self._starts, counts, strict=True)]
        self._first, self._total = first, len(envs) if total is None else total
        self._cuts = tuple(zip(self._starts, self._stops, self._shapes, strict=True))
        self._sent: list[Share] = []
        self.step_rows: StepRows = self._step_rows

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind each env to its part of the stage and the slot."""
        for face, stage_part, slot_part in zip(self._faces, stage.parts(self._cuts), slot.parts(self._cuts), strict=True):
            face.bind(stage_part, slot_part)

    def _split(self, rows: Rows | None) -> list[Share]:
        """For each env that has any of these rows: its number, the env, its first row, and its rows counted from there."""
        if rows is None:
            return [(i, face, start, None) for i, (face, start) in enumerate(zip(self._faces, self._starts, strict=True))]
        return [(i, self._faces[i], self._starts[i], own) for i, own in rows_of_groups(rows, self._starts, self._stops)]

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Start new episodes in these rows, or in all."""
        number = 0
        try:
            for i, face, _, own in self._split(rows):
                number = i
                face.reset_rows(own, t)
        except Exception as error:
            self._name_env(error, number)
            raise

    def _step_rows(self, rows: Rows | None, t: int) -> Rows | None:
        self.send(rows, t)
        return self.receive()

    def send(self, rows: Rows | None, t: int) -> None:
        """Send the actions of column `t` to these rows."""
        self._sent = self._split(rows)
        number = 0
        try:
            for i, face, _, own in self._sent:
                number = i
                face.send(own, t)
        except Exception as error:
            self._name_env(error, number)
            raise

    def receive(self) -> Rows | None:
        """Write the results of the rows; return those whose episode ended."""
        ended: list[int] = []
        number = 0
        try:
            for i, face, start, _ in self._sent:
                number = i
                ended.extend(start + b for b in face.receive() or ())
        except Exception as error:
            self._name_env(error, number)
            raise
        return ended or None

    def _name_env(self, error: Exception, number: int) -> None:
        name_env(error, self._first + number, self._total)


def rows_of_groups(rows: Rows, starts: Sequence[int], stops: Sequence[int]) -> list[tuple[int, Rows | None]]:
    """The groups that contain any of these rows, each with its rows counted from its first (None: all)."""
    shares: list[tuple[int, Rows | None]] = []
    for group, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        own = [b - start for b in rows if start <= b < stop]
        if own:
            shares.append((group, None if len(own) == stop - start else own))
    return shares


def merge_rows(envs: Sequence[EnvBase], first: int = 0, total: int | None = None) -> GymRows | ChildRows:
    """The face of several envs: one flat loop over single gymnasium envs of one format, else a loop over the envs' own faces.

    Args:
        envs: the envs.
        first: the number of the first env, for messages.
        total: the total number of envs, for messages; None if these are all.
    """
    rows = [env.row for env in envs if type(env) is GymEnv and isinstance(env.row, GymRow)]
    if len(rows) == len(envs):
        return GymRows(rows, first, total)
    return ChildRows(envs, first, total)


def _require_different(envs: Sequence[EnvBase]) -> None:
    """Raise OptionError if several rows share one env."""
    objects = [getattr(env, "wrapped", env) for env in envs]
    if len(set(map(id, objects))) < len(objects):
        raise OptionError(
            "create_env_fn: expected an env of its own for each row, and the factories returned one "
            f"{type(objects[0]).__name__} for several: make it inside of the factory"
        )


def each_of(count: Any, given: Any, name: str) -> list[Any]:
    """One entry for each of `count` envs, from one for all or from a list."""
    if not is_count(count):
        raise OptionError(f"num_workers: expected a positive number of envs, got {count!r}")
    if not isinstance(given, list | tuple):
        return [given] * count
    if len(given) != count:
        raise OptionError(f"{name}: expected one or {count} entries, got {len(given)}")
    return list(given)


def require_equal(first: Any, other: Any, number: int, first_number: int = 0) -> None:
    """Raise SpecMismatch unless two envs, or the facts about them, fit into one batch.

    Args:
        first: an env.
        other: another one.
        number: its number, for messages.
        first_number: the number of the first one, for messages.
    """
    for name in ("observation_spec", "full_action_spec", "full_reward_spec"):
        expected, found = getattr(first, name), getattr(other, name)
        if expected != found:
            raise SpecMismatch(
                f"env {number} differs from env {first_number} in {name}: expected {expected}, found {found}; the envs of a "
                "batch have equal keys, shapes and dtypes"
            )
    if first.resets_itself != other.resets_itself:
        raise SpecMismatch(
            f"env {number} differs from env {first_number} in its autoreset mode: {first!r} and {other!r}; "
            "make both with the same autoreset mode"
        )


def _rebuild(cls: type[SerialEnv], count: int, create: Any, kwargs: Any, device: Any) -> SerialEnv:
    return cls(count, create, create_env_kwargs=kwargs, device=device)
