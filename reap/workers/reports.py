"""Reports of exceptions, written by workers and read by their parent."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from reap.errors import WorkerRaised, guarded, headline, portable
from reap.workers.pickling import pickled
from reap.workers.progress import Progress

START = -1
"""The phase of a worker before it has a handler."""

AT_START = Progress(START, -1, 0)


class Report(NamedTuple):
    """A report of an exception in a worker.

    Args:
        progress: the worker's progress; its phase is `START` before it has a handler.
        is_harmless: whether the worker continues.
        error: the exception, pickled.
        stand_in: a substitute, pickled, for a parent that cannot load the exception.
        traceback: the text of its traceback.
    """

    progress: Progress
    is_harmless: bool
    error: bytes
    stand_in: bytes
    traceback: str


def write(error: BaseException, progress: Progress, *, is_harmless: bool) -> bytes:
    """Write a report of an exception in its `except` clause, whose frame is left out of the traceback."""
    stand_in = pickle.dumps(RuntimeError(headline(error)))
    return pickle.dumps(tuple(Report(progress, is_harmless, _portable(error), stand_in, trace(error))))


def write_bare(error: BaseException, progress: Progress, *, is_harmless: bool) -> bytes:
    """Write a report of an exception without any of its own code: its type and the places in its traceback."""
    name = type.__dict__["__name__"].__get__(type(error))
    text = f"{name}: <code of its class failed while it was reported>"
    stand_in = pickle.dumps(RuntimeError(text))
    below = BaseException.__dict__["__traceback__"].__get__(error).tb_next
    lines = ("Traceback (most recent call last):\n", *traceback.format_tb(below), text)
    return pickle.dumps(tuple(Report(progress, is_harmless, stand_in, stand_in, "".join(lines))))


def read(body: memoryview) -> Report:
    """Read a report that `write` returned."""
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
    """A text for what a worker is doing."""
    if index == START:
        return "start"
    return phases[index] if 0 <= index < len(phases) else f"phase {index}"


def brief(failure: Exception) -> str:
    """A worker's failure in one line."""
    return " ".join(str(failure).partition("\nTraceback")[0].split("\n"))


def trace(error: BaseException) -> str:
    """The text of the traceback, without the frame of the calling `except` clause.

    Notes and causes of the exception are omitted if they cannot be formatted.
    """
    own = error.__traceback__
    below = own.tb_next if own else None
    with guarded():
        return "".join(traceback.format_exception(type(error), error, below))
    return "".join(("Traceback (most recent call last):\n", *traceback.format_tb(below), headline(error)))


def _portable(error: BaseException) -> bytes:
    """Pickle the exception by cloudpickle, which handles classes of the user's `__main__`; if that fails, a substitute."""
    with guarded():
        data = pickled(error)
        if type(pickle.loads(data)) is type(error):
            return data
    return pickle.dumps(portable(error))
