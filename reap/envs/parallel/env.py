"""`ParallelEnv`: several envs as one batch, stepped by several processes that write straight into the caller's rows.

stage, slot of the caller (shared memory)
rows 0..3  <==== process 0: envs 0..3, one after the other    first half  } with overlap=True the policy serves one half
rows 4..7  <==== process 1: envs 4..7                         second half } while the processes of the other one step
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from reap.envs.base import EnvBase
from reap.envs.make_env import is_env, refuse_instances
from reap.envs.parallel.child import Share
from reap.envs.parallel.processes import Processes
from reap.envs.parallel.rows import ByBoard, ByChannel, ProcessRows
from reap.envs.row_stepper import RowStepper, StepperHalf
from reap.envs.rows import RowsEnv
from reap.envs.serial import SerialEnv, each_of, require_equal
from reap.envs.transport import merged_kwargs, warn_of
from reap.errors import CallOrderError, OptionError, SpecMismatch
from reap.option_values import checked_seeding, is_count, switch
from reap.recording.buffers import Slot, Stage
from reap.recording.records import Recipe, ResetLog
from reap.specs.fits import Check
from reap.system.machine import usable_cores
from reap.system.native import require_workers
from reap.words import counted
from reap.workers.stall import checked_seconds

Factory = Callable[..., Any]

OWN = ("create_env_kwargs", "num_processes", "device", "overlap", "serial_for_single", "stall_after")

_FROM_PROCESSES = frozenset({"batch_size", "_observation", "_action", "_reward", "_done"})

_built = count()


class ParallelEnv(RowsEnv):
    """A batch of envs of one kind, of batch size `[num_workers, *batch size of one]`, stepped in processes.

    The processes start when specs or data are first needed: an object that is only sent elsewhere, as a factory for a
    collector's workers, starts none here.

    Args:
        num_workers: number of envs.
        create_env_fn: an env factory, a gymnasium id, or a list of one per env.
        create_env_kwargs: keywords for the factory, or a list of one dict per env.
        num_processes: number of processes, each of which steps several envs one after the other; by default the number of
            cores, or of envs if there are fewer.
        device: device of the env's TensorDicts.
        overlap: in a collector, let the policy serve one half of the envs while the other half steps in its processes: worth it
            where policy and envs do not wait for the same cores. The policy is called for each half by itself, so that a
            batch has the same data as one without overlap only if the outputs of the policy for a row do not depend on how many
            rows there are. Needs two envs and two processes; an odd number makes halves of unequal size. Random actions, and
            an env in another one (`SerialEnv`, transforms), are stepped as without it.
        stall_after: seconds of waiting after which a warning names the process that makes no progress, and its activity
            since then; None for never. It has no other effect.
        serial_for_single: with one env, return a SerialEnv, which starts no process.
        **transport: options of torchrl's class for the transport of data: accepted, with a warning where they differ from
            torchrl's defaults, and without effect.

    Raises:
        OptionError: an invalid number of envs or processes, too few for `overlap`, an unknown option, an env that exists in
            this process only, a factory that cannot be sent to a process or returns no env.
        SpecMismatch: envs of different specs.
        WorkerRaised: a factory, or an env, raised an exception.
        WorkerDied: a process ended.

    Example:
        >>> with ParallelEnv(2, "CartPole-v1") as env:
        ...     env.batch_size, env.rollout(3, break_when_any_done=False).batch_size
        (torch.Size([2]), torch.Size([2, 3]))
    """

    shares_memory = True

    def __new__(
        cls,
        num_workers: int,
        create_env_fn: Factory | str | Sequence[Factory | str],
        *,
        serial_for_single: bool = False,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        device: torch.device | str | None = None,
        **_: Any,
    ) -> Any:
        """The batch, or with `serial_for_single` and one env a SerialEnv."""
        if switch(serial_for_single, "serial_for_single") and num_workers == 1:
            return SerialEnv(1, create_env_fn, create_env_kwargs=create_env_kwargs, device=device)
        return super().__new__(cls)

    def __init__(
        self,
        num_workers: int,
        create_env_fn: Factory | str | Sequence[Factory | str],
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        num_processes: int | None = None,
        device: torch.device | str | None = None,
        overlap: bool = False,
        stall_after: float | None = 60.0,
        serial_for_single: bool = False,
        **transport: Any,
    ) -> None:
        require_workers(type(self).__name__, "SerialEnv")
        warn_of(type(self).__name__, transport, OWN)
        self._factories = each_of(num_workers, create_env_fn, "create_env_fn")
        self._kwargs = each_of(num_workers, create_env_kwargs, "create_env_kwargs")
        refuse_instances(self._factories, "processes")
        _require_another(self._factories)
        self._num_processes = _number_of_processes(num_processes, num_workers, least=2 if switch(overlap, "overlap") else 1)
        self._overlap, self._stall_after = overlap, checked_seconds(stall_after)
        self._build_again = partial(
            type(self),
            num_workers,
            create_env_fn,
            create_env_kwargs=create_env_kwargs,
            num_processes=num_processes,
            device=device,
            overlap=overlap,
            stall_after=stall_after,
        )
        self._processes: Processes | None = None
        super().__init__(device=device)
        for name in _FROM_PROCESSES:
            delattr(self, name)

    # Facts that only the processes know

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _FROM_PROCESSES or "_processes" not in self.__dict__:
                return super().__getattr__(name)
            self._started()
            return self.__dict__[name]

    @property
    def resets_itself(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  known when the envs are built
        """Whether the envs themselves reset rows that ended, in the next step, which is then an invalid frame."""
        return self._started().facts[0].resets_itself

    @property
    def resets_rows(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a row can be reset without the others."""
        return all(facts.resets_rows for facts in self._started().facts)

    @property
    def steps_rows(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether some rows can be stepped while others wait."""
        return all(facts.steps_rows for facts in self._started().facts)

    def _started(self) -> Processes:
        if self._processes is None:
            super().ensure_open()
            processes = Processes(self._groups, self._stall_after)
            try:
                for share, facts in zip(self._groups, processes.facts, strict=True):
                    require_equal(processes.facts[0], facts, share.first)
                self._take_facts(processes)
            except BaseException:
                processes.close()
                raise
            self._processes = processes
        return self._processes

    @cached_property
    def _groups(self) -> list[Share]:
        """Contiguous groups of envs, whose sizes differ by at most one."""
        total, groups = len(self._factories), self._num_processes
        firsts = [-(-total * group // groups) for group in range(groups + 1)]
        entropy = np.random.SeedSequence(torch.initial_seed() % 2**63, spawn_key=(next(_built),))
        seeds = entropy.generate_state(groups, np.uint64)
        return [
            Share(self._factories[first:stop], self._kwargs[first:stop], first, total, int(seed >> 1))
            for first, stop, seed in zip(firsts, firsts[1:], seeds, strict=False)
        ]

    def _take_facts(self, processes: Processes) -> None:
        """Specs of the batch, from the facts that the processes report about one env each."""
        first = processes.facts[0]
        size = self.batch_size = torch.Size((len(self._factories), *first.batch_shape))
        self._observation = first.observation_spec.expand(*size).lock_()
        self._action = first.full_action_spec.expand(*size).lock_()
        self._reward = first.full_reward_spec.expand(*size).lock_()
        self._done = first.full_done_spec.expand(*size).lock_()
        has_objects = any(field.is_object for field in self.fields_of_stage().values())
        carrier = ByChannel(processes) if has_objects else ByBoard(processes)
        self.row = ProcessRows(carrier, [facts.rows for facts in processes.facts])

    @property
    def checks_choices(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all envs check discrete observations and actions themselves."""
        return all(facts.checks_choices for facts in self._started().facts)

    def set_check(self, check: Check) -> None:
        """Set how closely the values of all envs are checked; see `EnvBase`."""
        if check != self.check:
            self._started().ask("set_check", check)
        super().set_check(check)

    def set_device(self, device: torch.device) -> None:
        """Set the device of all envs' values; see `EnvBase`."""
        super().set_device(device)
        self._started().ask("set_device", device)

    def let_shapes_change(self) -> None:
        """Let the observations of all envs change their shapes."""
        processes = self._started()
        processes.ask("let_shapes_change")
        processes.describe()
        self._take_facts(processes)

    # Array face

    def row_stepper(self) -> RowStepper:
        """The rows of all processes, which step loops call directly."""
        self.ensure_open()
        self._started()
        return self.row

    def stepper_halves(self) -> Sequence[StepperHalf]:
        """Two halves of the rows, each of whole processes, with `overlap=True`."""
        if not self._overlap:
            return ()
        first = self._started().facts[0]
        of_one = math.prod(first.batch_shape)
        halves: list[StepperHalf] = []
        for face, rows in self.row.halves():
            shape = (len(rows) // of_one, *first.batch_shape)
            halves.append(StepperHalf(face, rows, shape, first.full_action_spec.expand(*shape)))
        return halves

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write; both must be in shareable memory."""
        self.row_stepper().bind(stage, slot)

    # Life

    @property
    def num_workers(self) -> int:
        """The number of envs."""
        return len(self._factories)

    def start(self) -> None:
        """Start the processes, which otherwise start on first use."""
        self._started()

    def update_kwargs(self, kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Add keywords for the factories of the envs, before the processes have started.

        Args:
            kwargs: keywords for all, or a list of one dict per env.

        Raises:
            CallOrderError: the processes have started.
        """
        if self._processes is not None:
            raise CallOrderError(f"{self!r}.update_kwargs: expected it before the processes start; build another ParallelEnv")
        self._kwargs = merged_kwargs(self._kwargs, each_of(len(self._factories), kwargs, "kwargs"))
        self._build_again = partial(self._build_again, create_env_kwargs=self._kwargs)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Give each env the next seed of the chain; return the one after the last.

        Raises:
            OptionError: the seed is not an integer from 0 to 2**63 - 1, or `static_seed` not a bool.
        """
        self.ensure_open()
        seed, static_seed = checked_seeding(seed, static_seed)
        return self._started().ask_along("set_seed", seed, static_seed)

    def get_attribute(self, name: str) -> list[Any]:
        """The attribute of each env, whose value must be sent here."""
        return _joined(self._started().ask("get_attribute", name))

    def call(self, name: str, *args: Any) -> list[Any]:
        """Call a method of each env; return the results. Arguments and results are sent between processes."""
        return _joined(self._started().ask("call", name, *args))

    def state_dict(self) -> dict[str, Any] | None:
        """The states of all envs, in the form of a SerialEnv's; None if any env has none."""
        return self._states("state_dict")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume each env from its state."""
        self._load("load_state_dict", state)

    def loop_state(self) -> dict[str, Any] | None:
        """The loop states of all envs, in the form of a SerialEnv's; None if any env has none."""
        return self._states("loop_state")

    def load_loop_state(self, state: Mapping[str, Any]) -> None:
        """Resume each env from its state."""
        self._load("load_loop_state", state)

    def _states(self, name: str) -> dict[str, Any] | None:
        states = self._started().ask(name)
        return None if any(state is None for state in states) else {"envs": _joined([state["envs"] for state in states])}

    def _load(self, name: str, state: Mapping[str, Any]) -> None:
        envs = list(state["envs"])
        if len(envs) != len(self._factories):
            raise SpecMismatch(f"state: expected the states of {counted(len(self._factories), 'env')}, found {len(envs)}")
        stops = [share.first + len(share.factories) for share in self._groups]
        self._started().ask_each(name, [({"envs": envs[a:b]},) for a, b in zip([0, *stops], stops, strict=False)])

    def keep_resets(self, log: ResetLog | None = None, first: int = 0) -> None:
        """Note the state of each env before its resets, in its process; see `EnvBase`."""
        processes = self._started()
        processes.ask_each("keep_resets", [(None, first + share.first) for share in self._groups])
        self._resets = log or ResetLog()
        self._resets.read_from(partial(processes.ask, "taken_resets"))

    def row_recipes(self) -> list[Recipe | None]:
        """The recipe of each row's env."""
        return _joined(self._started().ask("row_recipes"))

    def ensure_open(self) -> None:
        """Raise ClosedError after `close`, or after a process has failed."""
        super().ensure_open()
        if self._processes is not None:
            self._processes.check()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close all envs and end the processes; a second call does nothing, or raises ClosedError with `raise_if_closed`."""
        if raise_if_closed:
            super().ensure_open()
        if self._processes is not None:
            self._processes.close()
        super().close()

    def another(self) -> EnvBase:
        """A new batch of envs from the same factories."""
        return self._build_again()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._build_again, ()

    def __repr__(self) -> str:
        known = "" if self._processes is None else f", {self._processes.facts[0]!r}"
        overlap = ", overlap=True" if self._overlap else ""
        return f"{type(self).__name__}({len(self._factories)}{known}, num_processes={self._num_processes}{overlap})"


def _joined(lists: Sequence[Sequence[Any]]) -> list[Any]:
    return [value for values in lists for value in values]


def _require_another(factories: Sequence[Any]) -> None:
    """Raise OptionError for one env that was given several times and cannot be built again."""
    for place, factory in enumerate(factories):
        if is_env(factory) and any(factory is other for other in factories[:place]):
            factory.another().close()


def _number_of_processes(asked: int | None, envs: int, *, least: int) -> int:
    if asked is not None and not is_count(asked):
        raise OptionError(f"num_processes: expected a positive number of processes or None, got {asked!r}")
    number = min(envs, max(least, usable_cores()) if asked is None else asked)
    if number < least:
        raise OptionError(
            f"overlap=True: expected at least two envs and two processes, one for each half, got num_workers={envs}, "
            f"num_processes={asked}"
        )
    return number
