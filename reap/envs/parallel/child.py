"""The process of a `ParallelEnv`: runs some of the envs, which write to their rows of the caller's stage and slot.

caller                                            process
DescribeEnvs               ------ channel ------->    EnvFacts
Connect + board, bells ------ channel ------->    reads commands from the board
AttachStage, AttachSlot + fd -- channel ----->    maps the memory; its rows are a part of it
Serve                  ------ channel ------->    answers the board (`parallel_board`) until it says LEAVE
Ask(name, arguments)   ------ channel ------->    set_seed, call, state_dict, ...
Move(rows, t)          ------ channel ------->    a step or reset of envs with objects, which the reply carries
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar

import torch

from reap.envs.parallel.board import ASKED, COLUMN, LEAVE, SLOT, STAGE, Ints, Waiter, boards, boards_size, read_rows
from reap.envs.row_stepper import Rows
from reap.envs.serial import SerialEnv
from reap.errors import shown
from reap.keys import Key
from reap.recording.buffers import Slot, Stage, after, map_slot
from reap.recording.layout import Array, Block, Field
from reap.seeds import seed_generators
from reap.specs import Composite
from reap.system.bell import Bell
from reap.system.memory import shared_memory


class EnvPhase(IntEnum):
    """The activity of a process, for errors."""

    IDLE = 0
    RESET = 1
    STEP = 2
    CALL = 3


RESET, STEP = int(EnvPhase.RESET), int(EnvPhase.STEP)
"""Commands on a board."""


@dataclass(frozen=True)
class Share:
    """The envs of one process.

    Attributes:
        factories: one for each env.
        kwargs: keywords for each factory.
        first: the number of the first of them.
        total: total number of envs in all processes.
        seed: seeds torch's, numpy's and Python's generators.
    """

    factories: Sequence[Any]
    kwargs: Sequence[Mapping[str, Any] | None]
    first: int
    total: int
    seed: int


@dataclass(frozen=True)
class DescribeEnvs:
    """Reply with `EnvFacts`."""


@dataclass(frozen=True)
class EnvFacts:
    """Facts about the envs of a process that the caller needs; the specs are those of one env.

    Attributes:
        batch_shape: batch dimensions of one env.
        rows: rows of all envs of the process.
        name: a description of an env.
    """

    observation_spec: Composite
    full_action_spec: Composite
    full_reward_spec: Composite
    full_done_spec: Composite
    batch_shape: tuple[int, ...]
    rows: int
    resets_itself: bool
    resets_rows: bool
    steps_rows: bool
    checks_choices: bool
    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Connect:
    """Receive the descriptors of the boards, this process's bell, the caller's bell, and a pipe that ends with the caller.

    Attributes:
        rows: rows of each process.
        number: this process.
    """

    rows: Sequence[int]
    number: int


@dataclass(frozen=True)
class MapSlot:
    """Map a stage or a slot.

    Attributes:
        index: its number from now on.
        fields: one row's value under each key.
        rows: rows in the block.
        first_row: the first row of this process.
        columns: time steps of a slot; None for a stage.
    """

    index: int
    fields: Mapping[Key, Field]
    rows: int
    first_row: int
    columns: int | None


@dataclass(frozen=True)
class Detach:
    """Release stages and slots that are no longer used."""

    indices: Sequence[int]


@dataclass(frozen=True)
class Serve:
    """Carry out commands from the board until LEAVE."""


@dataclass(frozen=True)
class Ask:
    """Call a method of the batch of envs; the reply is its result. The process survives an exception."""

    harmless: ClassVar[bool] = True

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Move:
    """Step or reset rows; the reply is `Moved`."""

    command: int
    rows: Rows | None
    t: int
    stage: int
    slot: int


@dataclass(frozen=True)
class Moved:
    """Rows that ended, and the objects that the envs wrote for the rows that moved."""

    ended: Rows | None
    objects: Mapping[Key, Array]


class EnvGroup(SerialEnv):
    """The envs of one process, with their numbers in the whole batch."""

    def __init__(self, share: Share) -> None:
        self._first, self._total = share.first, share.total
        # One entry for each env; one mapping for all of them is no list.
        super().__init__(len(share.factories), share.factories, create_env_kwargs=share.kwargs)  # pyright: ignore[reportArgumentType]

    def _numbers(self, count: int) -> tuple[int, int]:
        return self._first, self._total

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed this process's generators, which envs may use, with the first env's seed, then the envs."""
        seed_generators(seed)
        return super().set_seed(seed, static_seed)


class EnvProcess:
    """Carries out the commands of a `ParallelEnv`.

    Args:
        share: its envs.
        control: receives its phase and, instead of a column, the number of the board's command, for errors and stall warnings.
    """

    def __init__(self, share: Share, control: memoryview) -> None:
        seed_generators(share.seed)
        torch.set_num_threads(1)
        self._env = EnvGroup(share)
        self._control = control
        self._stages: dict[int, Stage] = {}
        self._slots: dict[int, Slot] = {}
        self._bound: tuple[int, int] | None = None
        self._board: Ints
        self._waiter: Waiter
        self._bells: Sequence[Bell] = ()
        self._life = -1
        self._handlers: dict[type, Callable[[Any], Any]] = {
            DescribeEnvs: self._describe,
            Serve: self._serve,
            Ask: self._ask,
            Move: self._move,
            Detach: self._detach,
        }

    def handle(self, command: Any) -> Any:
        """Carry out a command."""
        return self._handlers[type(command)](command)

    def handle_with(self, command: Any, fds: Sequence[int]) -> None:
        """Carry out a command that came with descriptors, which now belong to this process."""
        if isinstance(command, Connect):
            self._connect(command, *fds)
        else:
            self._attach(command, *fds)

    def close(self) -> None:
        """Close the envs and the descriptors."""
        self._env.close()
        for bell in self._bells:
            bell.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1

    def _describe(self, command: DescribeEnvs) -> EnvFacts:
        env = self._env
        first = env.envs[0]
        return EnvFacts(
            first.observation_spec,
            first.full_action_spec,
            first.full_reward_spec,
            first.full_done_spec,
            tuple(first.batch_size),
            env.batch_size.numel(),
            env.resets_itself,
            env.resets_rows,
            env.steps_rows,
            env.checks_choices,
            shown(first),
        )

    def _connect(self, command: Connect, board: int, asked: int, done: int, life: int) -> None:
        own, commanders = self._bells = Bell(asked), Bell(done)
        self._life = life
        try:
            every = boards(shared_memory(boards_size(command.rows), board)[0], command.rows)
        finally:
            os.close(board)
        self._board = every[command.number]
        poll = select.poll()
        poll.register(asked, select.POLLIN)
        poll.register(life, 0)
        self._waiter = Waiter(self._board, own, commanders, poll, command.rows[command.number])

    def _attach(self, command: MapSlot, fd: int) -> None:
        shape = tuple(self._env.batch_size)
        start, fields, rows, columns = command.first_row, command.fields, command.rows, command.columns
        if columns is None:
            whole = Stage(fields, (rows,), partial(Block.shared, fd=fd))
            self._stages[command.index] = whole.part(start, start + self._env.batch_size.numel(), shape)
        else:
            self._slots[command.index] = map_slot(fd, fields, rows, columns, start, shape)

    def _detach(self, command: Detach) -> None:
        self._bound = None
        for index in command.indices:
            self._stages.pop(index, None)
            self._slots.pop(index, None)

    def _ask(self, command: Ask) -> Any:
        self._control[0] = EnvPhase.CALL
        reply = getattr(self._env, command.name)(*command.arguments)
        self._bound = None  # it may have other rows now
        self._control[0] = EnvPhase.IDLE
        return reply

    def _bind(self, stage: int, slot: int) -> None:
        if self._bound != (stage, slot):
            self._env.bind(self._stages[stage], self._slots[slot])
            self._bound = stage, slot

    def _serve(self, command: Serve) -> None:
        board, waiter, control = self._board, self._waiter, self._control
        face = self._env.row_stepper()
        while (asked := waiter.wait()) != LEAVE:
            control[0], control[1] = asked, board[ASKED]
            self._bind(board[STAGE], board[SLOT])
            ended = None
            if asked == STEP:
                ended = face.step_rows(read_rows(board), board[COLUMN])
            else:
                face.reset_rows(read_rows(board), board[COLUMN])
            control[0] = 0
            waiter.answer(ended)
        waiter.answer(None)

    def _move(self, command: Move) -> Moved:
        env, rows, t = self._env, command.rows, command.t
        self._control[0] = command.command
        self._bind(command.stage, command.slot)
        stage, slot = self._stages[command.stage], self._slots[command.slot]
        objects = [key for key, field in stage.fields.items() if field.is_object]
        chosen: Any = slice(None) if rows is None else list(rows)
        if command.command == RESET:
            env.reset_rows(rows, t)
            moved = Moved(None, {key: stage.arrays[key][chosen] for key in objects})
        else:
            ended = env.step_rows(rows, t)
            moved = Moved(ended, {key: slot.by_column(after(key))[t][chosen] for key in objects})
        self._control[0] = EnvPhase.IDLE
        return moved


def make_process(share: Share, number: int, control: memoryview) -> EnvProcess:  # noqa: ARG001  the share holds it
    """Build the envs of a process, in that process."""
    return EnvProcess(share, control)
