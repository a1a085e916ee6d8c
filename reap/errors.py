"""The exceptions of reap: what was expected, what was found, where, and what to do.

    ReapError
    ├── OptionError (ValueError)      an option or argument that cannot work, noticed when it is given
    ├── SpecMismatch (ValueError)     data that differs from its spec: key, shape, dtype, range
    ├── ClosedError (RuntimeError)    a call on something that has been shut down
    ├── CallOrderError (RuntimeError) a call before or during another that excludes it
    └── WorkerError (RuntimeError)    a worker is the cause; `worker` is its number
        ├── WorkerRaised              its code raised: `__cause__` is the original exception
        └── WorkerDied                its process is gone: `exit_code`, `signal`

`except ReapError` catches them all; each is also the built-in error that fits, so that code which knows nothing of reap
can catch it too. Every one of them can be pickled with all that it carries.
"""

from __future__ import annotations

import difflib
import inspect
import pickle
import signal as signals
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

_SIGNAL_CAUSES = {
    "SIGKILL": (
        "Likely causes: the kernel's out-of-memory killer (see dmesg, or memory.events of the container; use fewer "
        "workers or smaller batches), or someone's kill -9."
    ),
    "SIGSEGV": (
        "Likely cause: a crash in native code of the env or the policy. Run the env alone under "
        "python -X faulthandler to see where."
    ),
    "SIGBUS": (
        "Likely cause: no memory left for shared pages (see the container's memory limit and df /dev/shm), or a "
        "memory-mapped file that was cut short."
    ),
    "SIGABRT": (
        "Likely cause: native code of the env or the policy called abort(), mostly after printing why to the "
        "worker's stderr (a failed assertion, a double free, no display for rendering)."
    ),
    "SIGTERM": "Likely cause: it was asked to stop from outside, for example by a scheduler at its time limit.",
    "SIGINT": "Likely cause: it was interrupted from outside, for example by kill -INT.",
}
_EXIT_CAUSE = (
    "Likely cause: sys.exit or os._exit in the env or the policy, or in a library that they load, or code that closes file "
    "descriptors which are not its own (os.closerange)."
)
_LOST_CAUSE = "Its connection broke and no exit code is known: its machine or its network may be down."


class ReapError(Exception):
    """Any error that reap raises on purpose."""


class OptionError(ReapError, ValueError):
    """An option or argument that cannot work; raised where it is given, not when it is first used."""


class SpecMismatch(ReapError, ValueError):  # noqa: N818  it is what the condition is called
    """Data that differs from its spec, or specs that should be equal and are not."""


class ClosedError(ReapError, RuntimeError):
    """A call on a collector, env, buffer or worker group that has been shut down."""


class CallOrderError(ReapError, RuntimeError):
    """A call that cannot be made now: another one has to come first."""


class WorkerError(ReapError, RuntimeError):
    """A worker failed.

    Args:
        worker: the worker's number, counted from 0.
        message: what happened.
    """

    def __init__(self, worker: int, message: str) -> None:
        super().__init__(message)
        self.worker = worker

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.worker, str(self)), self.__dict__


class WorkerRaised(WorkerError):  # noqa: N818  one of the two things that can happen to a worker
    """The code of a worker (its env, its policy) raised an exception.

    Args:
        worker: the worker's number, counted from 0.
        phase: what it was doing, for example `"reset"` or `"step"`.
        error: the exception as it was raised; becomes `__cause__`.
        traceback: the text of the traceback in the worker.

    Example:
        >>> failure = WorkerRaised(3, "step", ZeroDivisionError("division by zero"))
        >>> print(failure)
        ZeroDivisionError: division by zero
        Raised in worker 3 during step.
        >>> failure.__cause__
        ZeroDivisionError('division by zero')
    """

    def __init__(self, worker: int, phase: str, error: BaseException, traceback: str = "") -> None:
        remote = f"\nTraceback in the worker:\n{traceback.rstrip()}" if traceback else ""
        super().__init__(worker, f"{_headline(error)}\nRaised in worker {worker} during {phase}.{remote}")
        self.phase = phase
        self.traceback = traceback
        self.__cause__ = error

    @property
    def error(self) -> BaseException:
        """The original exception, also found as `__cause__`."""
        cause = self.__cause__
        assert cause is not None
        return cause

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.worker, self.phase, portable(self.error), self.traceback)
        # The message with the state, for a stand-in of the cause would change it.
        return type(self), arguments, {**self.__dict__, "args": self.args}


class WorkerDied(WorkerError):  # noqa: N818  the other thing that can happen to a worker
    """The process of a worker ended without being asked to.

    Args:
        worker: the worker's number, counted from 0.
        exit_code: as multiprocessing has it: `-n` for signal `n`, None if unknown.
        phase: what the worker was doing, if that is known.

    Example:
        >>> death = WorkerDied(0, -9, "step")
        >>> death.signal.name
        'SIGKILL'
        >>> str(death).partition(". ")[0]
        'Worker 0 was killed by SIGKILL (signal 9) during step'
        >>> str(WorkerDied(1, 3)).partition(". ")[0]
        'Worker 1 ended with exit code 3'
    """

    def __init__(self, worker: int, exit_code: int | None = None, phase: str = "") -> None:
        self.exit_code = exit_code
        self.signal = _signal(exit_code)
        self.phase = phase
        during = f" during {phase}" if phase else ""
        super().__init__(worker, f"Worker {worker} {_ending(exit_code)}{during}. {_causes(exit_code)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.worker, self.exit_code, self.phase), self.__dict__


@contextmanager
def in_own_words(*kinds: type[BaseException]) -> Generator[None]:
    """In the body, what a worker raised of these kinds is raised itself, as it would be without a worker."""
    try:
        yield
    except WorkerRaised as failure:
        if isinstance(failure.error, kinds):
            raise failure.error from failure
        raise


def portable(error: BaseException) -> BaseException:
    """The exception itself if it survives pickling, else a RuntimeError with its type, text and notes.

    Many exception classes pickle but cannot be loaded again, because their constructor wants more than the message.

    Example:
        >>> portable(KeyError("a"))
        KeyError('a')
        >>> class Local(Exception): ...
        >>> portable(Local("in a function"))
        RuntimeError('Local: in a function')
    """
    try:
        loaded = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  pickling runs the user's code, which may raise anything
        loaded = None
    if type(loaded) is type(error):
        return error
    stand_in = RuntimeError(_headline(error))
    for note in getattr(error, "__notes__", ()):
        stand_in.add_note(str(note))
    return stand_in


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the known name most like `name`, led by a space; empty if none is near.

    Example:
        >>> nearest("frame_per_batch", ["total_frames", "frames_per_batch"])
        " Did you mean 'frames_per_batch'?"
        >>> nearest("colour", ["total_frames", "frames_per_batch"])
        ''
    """
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def _headline(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _signal(exit_code: int | None) -> signals.Signals | None:
    if exit_code is None or -exit_code not in {*signals.Signals}:
        return None
    return signals.Signals(-exit_code)


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "was lost"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    signal = _signal(exit_code)
    return f"was killed by {signal.name if signal else 'a signal'} (signal {-exit_code})"


def _causes(exit_code: int | None) -> str:
    if exit_code is None:
        return _LOST_CAUSE
    if exit_code >= 0:
        return _EXIT_CAUSE
    signal = _signal(exit_code)
    return _SIGNAL_CAUSES.get(signal.name if signal else "", "No likely cause is known for this signal.")


def callers_level() -> int:
    """The `stacklevel` with which the function that calls this one warns of the line that called into this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "reap":
        frame, level = frame.f_back, level + 1
    return level
