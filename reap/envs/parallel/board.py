"""The board: a few numbers in shared memory through which an env's process receives and answers commands.

    commander                                       process
    command, column, rows --> board
    asked = n ------------------------------------> sees that asked has changed, carries the command out
    bell of the process ------------------------>   (wakes it, if it waits in poll)
                                                    answer --> board
    sees that done == n <-------------------------- done = n
    (wakes it) <----------------------------------- bell of the commander

A waiter spins for a while, yielding its core in each turn, and only then waits in `poll` for its bell: two processes
wake each other in 2.5 µs this way, in 73 µs through bells alone. It spins for up to `LONG` as long as answers arrive
within that time: a policy takes 100 µs between two steps of small envs, so a spin of 50 would never suffice. If the other
side takes longer (large policies, slow envs, training between two batches), it spins for `SHORT` only.
The length of the last wait is kept for each process, because it is short for one that stepped during the wait for another.

Each process numbers its own commands, so some can receive one while others are still busy.

Bells are rung after every change of the numbers, whether the other side waits in `poll` or not, so that no change is missed.
On machines where another process may see writes in a different order (all but x86), there is no spinning.
"""

from __future__ import annotations

import array
import os
import platform
import select
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from reap.system.bell import Bell
from reap.system.memory import Bytes, shared_memory
from reap.workers.stall import StallWatch

SHORT, LONG = (50e-6, 400e-6) if platform.machine() in {"x86_64", "AMD64", "i686"} else (0.0, 0.0)
"""Seconds for which a waiter spins before it sleeps: if the last wait was longer than `LONG`, and if it was not."""

LAST = 1 << 30
"""The numbers of commands restart after this one."""

# Places on a board. The numbers of the commander and those of the process are in separate cache lines.
ASKED, COMMAND, COLUMN, STAGE, SLOT, COUNT = range(6)
DONE, ENDED = 16, 17
LISTS = 32
"""The index of the rows of a command; those of the answer follow."""

LEAVE = 0
"""The command to leave the board."""

ALL = -1
"""The number of rows in a command for all rows."""

Ints = memoryview


def board_size(rows: int) -> int:
    """Number of ints of a board for this number of rows, rounded up to cache lines."""
    return -(-(LISTS + 2 * rows) // 16) * 16


def boards_size(rows: Sequence[int]) -> int:
    """Number of bytes of the boards of processes with these numbers of rows."""
    return 4 * sum(map(board_size, rows))


def boards(memory: Bytes, rows: Sequence[int]) -> list[Ints]:
    """The boards of processes with these numbers of rows, next to each other in one piece of memory."""
    whole: Any = memory
    ints = memoryview(whole).cast("i")
    found: list[Ints] = []
    start = 0
    for count in rows:
        found.append(ints[start : start + board_size(count)])
        start += board_size(count)
    return found


def read_rows(board: Ints) -> list[int] | None:
    """The rows of a command; None for all."""
    count = board[COUNT]
    return None if count == ALL else board[LISTS : LISTS + count].tolist()


class Link:
    """The commander's end: the boards and bells of all processes.

    Args:
        rows: rows of each process.
        watched: another descriptor to wait on, which is readable when a process has failed.
        check: called when that is readable; raises if one did.
        stall: warns of awaited processes that make no progress.
        describe: returns the activity of a process, and its location.

    Attributes:
        boards: one for each process.
        is_open: whether commands can be given.
    """

    def __init__(
        self,
        rows: Sequence[int],
        watched: int,
        check: Callable[[], Any],
        stall: StallWatch,
        describe: Callable[[int], tuple[str, str]],
    ) -> None:
        self._opened: list[int] = []
        self._owner = os.getpid()
        self._sleeping = threading.Lock()
        self.is_open = True
        try:
            memory, self._memory = shared_memory(boards_size(rows))
            self._opened.append(self._memory)
            self._asked = [Bell() for _ in rows]
            self._done = Bell()
            self._end, life = os.pipe2(os.O_CLOEXEC)
            self._opened += [self._end, life]
        except BaseException:
            self._close()
            raise
        self.boards = boards(memory, rows)
        self._life = life
        self._check, self._poll = check, select.poll()
        for descriptor in (self._done.fileno(), watched):
            self._poll.register(descriptor, select.POLLIN)
        self._stall, self._describe = stall, describe
        self._timeout = None if stall.timeout < 0 else 1000 * stall.timeout
        self._patience = [SHORT] * len(rows)

    def descriptors_for(self, process: int) -> list[int]:
        """Descriptors for a process: the boards, its bell, the commander's bell, and a pipe that ends with the commander."""
        return [self._memory, self._asked[process].fileno(), self._done.fileno(), self._end]

    def keep_own(self) -> None:
        """Close the descriptors that only the processes need, once they have them."""
        for descriptor in (self._memory, self._end):
            self._opened.remove(descriptor)
            os.close(descriptor)

    def ask(self, process: int, command: int, column: int = 0, rows: Sequence[int] | None = None) -> None:
        """Send a command to a process; first wait for it if it is still busy because Ctrl-C interrupted an earlier wait."""
        self.finish(process)
        board = self.boards[process]
        board[COLUMN] = column
        if rows is None:
            board[COUNT] = ALL
        else:
            board[COUNT] = len(rows)
            board[LISTS : LISTS + len(rows)] = memoryview(array.array("i", rows))
        board[COMMAND] = command
        board[ASKED] = board[ASKED] % LAST + 1
        self._asked[process].ring()

    def finish(self, process: int) -> None:
        """Make sure that the last command, whose wait may have been interrupted, is finished."""
        board = self.boards[process]
        if board[DONE] != board[ASKED]:
            self._asked[process].ring()
            self.wait(process)

    def wait(self, process: int) -> None:
        """Wait until a process has carried out its command.

        Raises:
            WorkerRaised: an exception in any of the processes.
            WorkerDied: any of them ended.
        """
        board = self.boards[process]
        number = board[ASKED]
        start = now = perf_counter()
        deadline = start + self._patience[process]
        while board[DONE] != number:
            if now < deadline:
                os.sched_yield()
            else:
                self._sleep()
            now = perf_counter()
        self._patience[process] = LONG if now - start < LONG else SHORT

    def _sleep(self) -> None:
        ready = self._woken_by()
        if ready == [self._done.fileno()]:
            return
        if not ready and self.is_open:
            at_work = [process for process, board in enumerate(self.boards) if board[DONE] != board[ASKED]]
            self._stall.check(at_work, self._describe)
            return
        try:
            self._check()
        except Exception:
            self.release()
            raise

    def _woken_by(self) -> list[int]:
        """Wait for a readable descriptor, at most until the next stall check; returns immediately once this end is closed."""
        with self._sleeping:
            if not self.is_open:
                return []
            ready = [descriptor for descriptor, _ in self._poll.poll(self._timeout)]
            self._done.clear()
            return ready

    def release(self) -> None:
        """Tell the processes to leave their boards, and close the descriptors.

        While another thread is waiting they stay open; that thread closes them when it sees the end of the processes.
        """
        if self.is_open and os.getpid() == self._owner:
            for process, board in enumerate(self.boards):
                if board[DONE] == board[ASKED]:
                    self.ask(process, LEAVE)
        self.is_open = False
        if self._sleeping.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._sleeping.release()

    def _close(self) -> None:
        while self._opened:
            os.close(self._opened.pop())


class Waiter:
    """A process's end, which waits for commands.

    Args:
        board: its board.
        asked: its bell.
        done: the commander's.
        poll: waits for its bell, and for the commander's end.
        rows: number of its rows.
    """

    def __init__(self, board: Ints, asked: Bell, done: Bell, poll: Any, rows: int) -> None:
        self._board = board
        self._asked, self._done, self._poll = asked, done, poll
        self._answers = LISTS + rows
        self._last = board[ASKED]
        self._patience = SHORT

    def wait(self) -> int:
        """The next command.

        Raises:
            EOFError: the commander is gone.
        """
        board, last = self._board, self._last
        start = now = perf_counter()
        deadline = start + self._patience
        while board[ASKED] == last:
            if now < deadline:
                os.sched_yield()
            else:
                self._sleep()
            now = perf_counter()
        self._patience = LONG if now - start < LONG else SHORT
        self._last = board[ASKED]
        return board[COMMAND]

    def _sleep(self) -> None:
        ready = [descriptor for descriptor, _ in self._poll.poll()]
        self._asked.clear()
        if ready != [self._asked.fileno()]:
            raise EOFError("the process that the env belongs to is gone")

    def answer(self, ended: Sequence[int] | None) -> None:
        """Report that the command is finished, and which rows ended."""
        board = self._board
        count = board[ENDED] = len(ended) if ended else 0
        if count:
            board[self._answers : self._answers + count] = memoryview(array.array("i", ended or ()))
        board[DONE] = self._last
        self._done.ring()
