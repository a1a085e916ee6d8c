"""Exceptions on their way from a worker to its parent: written here by the one, read here by the other."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from reap.errors import WorkerRaised, guarded, headline, portable
from reap.workers.pickling import pickled
from reap.workers.progress import Progress

START = -1
"""The phase of a worker that has no handler yet."""

AT_START = Progress(START, -1, 0)


class Report(NamedTuple):
    """An exception in a worker.

    Args:
        progress: how far the worker had come; its phase is `START` where it had no handler.
        is_harmless: whether the worker goes on.
        error: the exception, pickled.
        stand_in: another for a parent that cannot load it, pickled.
        traceback: its text.
    """

    progress: Progress
    is_harmless: bool
    error: bytes
    stand_in: bytes
    traceback: str


def write(error: BaseException, progress: Progress, *, is_harmless: bool) -> bytes:
    """Write an exception down, in its `except` clause; the frame of that clause is left out of the traceback."""
    stand_in = pickle.dumps(RuntimeError(headline(error)))
    return pickle.dumps(tuple(Report(progress, is_harmless, _portable(error), stand_in, trace(error))))


def read(body: memoryview) -> Report:
    """What `write` wrote."""
    return Report(*pickle.loads(body))


def raised(worker: int, phases: Sequence[str], report: Report) -> WorkerRaised:
    """The error for the user."""
    error: Any = None
    with guarded():
        error = pickle.loads(report.error)
    if not issubclass(type(error), BaseException):
        error = pickle.loads(report.stand_in)
    return WorkerRaised(worker, phase_name(phases, report.progress.phase), error, report.traceback)


def phase_name(phases: Sequence[str], index: int) -> str:
    """What a worker is doing, in words."""
    if index == START:
        return "start"
    return phases[index] if 0 <= index < len(phases) else f"phase {index}"


def brief(failure: Exception) -> str:
    """A worker's failure in one line."""
    return " ".join(str(failure).partition("\nTraceback")[0].split("\n"))


def trace(error: BaseException) -> str:
    """The text of the traceback, but for the frame of the `except` clause that this is called in.

    Without the exception's notes and causes where they cannot be shown.
    """
    own = error.__traceback__
    below = own.tb_next if own else None
    with guarded():
        return "".join(traceback.format_exception(type(error), error, below))
    return "".join(("Traceback (most recent call last):\n", *traceback.format_tb(below), headline(error)))


def _portable(error: BaseException) -> bytes:
    """The exception by cloudpickle, which knows classes of the user's `__main__`; a stand-in if that fails."""
    with guarded():
        data = pickled(error)
        if type(pickle.loads(data)) is type(error):
            return data
    return pickle.dumps(portable(error))
