"""The exceptions of reap. Their texts say what was expected, what was found, where, and what to do.

    ReapError
    ├── OptionError (ValueError, TypeError)  an option or argument that cannot work, raised when it is given
    ├── SpecMismatch (ValueError, RuntimeError)  data that differs from its spec: key, shape, dtype, range
    ├── DiskFull (OSError)            no room on a disk for data to be written
    ├── ClosedError (RuntimeError)    a call on something that has been shut down
    ├── CallOrderError (RuntimeError) a call before or during another that excludes it
    └── WorkerError (RuntimeError)    a worker is the cause; `worker` is its number
        ├── WorkerRaised              its code raised: `__cause__` is the original exception
        └── WorkerDied                its process is gone: `exit_code`, `signal`

`except ReapError` catches them all. Each is also the built-in error that fits, so that code that does not know reap can catch
it too. All of them can be pickled with their attributes.
"""

from __future__ import annotations

import difflib
import errno
import inspect
import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reap.exit_codes import ending, likely_cause, signal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

__all__ = [
    "BoundsWarning",
    "CallOrderError",
    "ClosedError",
    "DiskFull",
    "OptionError",
    "ReapError",
    "SpecMismatch",
    "WorkerDied",
    "WorkerError",
    "WorkerRaised",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class ReapError(Exception):
    """Any error that reap raises on purpose."""


class OptionError(ReapError, ValueError, TypeError):
    """An option or argument that cannot work; raised where it is given, not when it is first used.

    It is a TypeError too, as Python raises one for an argument that a function does not take.
    """


class SpecMismatch(ReapError, ValueError, RuntimeError):  # noqa: N818  the usual name of the condition
    """Data that differs from its spec, or specs that should be equal and are not.

    It is a RuntimeError too, as torch and torchrl raise one for shapes and data that do not fit.
    """

    places: tuple[str, ...] = ()
    """Where the data came from, from the widest place to the narrowest; `at` adds to them."""

    def at(self, place: str) -> SpecMismatch:
        """Return the same error, with a place (the env, the row, the column) added to the end of its text."""
        text = str(self).removesuffix(_within(self.places))
        self.places = (place, *self.places)
        self.args = (text + _within(self.places), *self.args[1:])
        return self


def _within(places: tuple[str, ...]) -> str:
    return f" (in {', '.join(places)})" if places else ""


class BoundsWarning(UserWarning):
    """Numbers of an env are outside the bounds of its own spec, and are recorded as they are."""


class DiskFull(ReapError, OSError):  # noqa: N818  the usual name of the condition
    """A disk has no room for data to be written. Either nothing was written, or it was removed again.

    Args:
        message: how much was needed, how much was free, and where.
        number: the system's error number, `errno.ENOSPC`, `EDQUOT` or `EFBIG`.

    Example:
        >>> DiskFull("expected room for 8.0 MB, found 1.2 MB").errno == errno.ENOSPC
        True
    """

    def __init__(self, message: str, number: int = errno.ENOSPC) -> None:
        super().__init__(message)
        self.errno = number

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.errno), self.__dict__


class ClosedError(ReapError, RuntimeError):
    """A call on a collector, env, buffer or worker group that has been shut down."""


class CallOrderError(ReapError, RuntimeError):
    """A call that cannot be made now: another one has to come first."""


class WorkerError(ReapError, RuntimeError):
    """A worker failed.

    Args:
        worker: the worker's number, counted from 0.
        message: a description of the failure.
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
        phase: its activity, for example `"reset"` or `"step"`.
        error: the original exception, which becomes `__cause__`.
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
        super().__init__(worker, f"{headline(error)}\nRaised in worker {worker} during {phase}.{remote}")
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
        # The state holds the message, because a stand-in for the cause would change it.
        return type(self), arguments, {**self.__dict__, "args": self.args}


class WorkerDied(WorkerError):  # noqa: N818  the other thing that can happen to a worker
    """The process of a worker ended without being asked to.

    Args:
        worker: the worker's number, counted from 0.
        exit_code: in multiprocessing's form: `-n` for signal `n`, None if unknown.
        phase: the worker's activity, if that is known.
        report: where it was, and what those say who carried its messages, if that is known.

    Example:
        >>> death = WorkerDied(0, -9, "step")
        >>> death.signal.name
        'SIGKILL'
        >>> str(death).partition(". ")[0]
        'Worker 0 was killed by SIGKILL (signal 9) during step'
        >>> str(WorkerDied(1, 3)).partition(". ")[0]
        'Worker 1 ended with exit code 3'
    """

    def __init__(self, worker: int, exit_code: int | None = None, phase: str = "", report: str = "") -> None:
        self.exit_code = exit_code
        self.signal = signal_of(exit_code)
        self.phase = phase
        self.report = report
        during = f" during {phase}" if phase else ""
        also = f"\n{report}" if report else ""
        super().__init__(worker, f"Worker {worker} {ending(exit_code)}{during}. {likely_cause(exit_code)}{also}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.worker, self.exit_code, self.phase, self.report), self.__dict__


@contextmanager
def located(place: str) -> Generator[None]:
    """Add a place to a SpecMismatch that the body raises; see `SpecMismatch.at`."""
    try:
        yield
    except SpecMismatch as error:
        error.at(place)
        raise


@contextmanager
def in_own_words(*kinds: type[BaseException]) -> Generator[None]:
    """In place of a WorkerRaised, raise the worker's own exception if it is of these kinds, as it would be without a worker."""
    try:
        yield
    except WorkerRaised as failure:
        if isinstance(failure.error, kinds):
            raise failure.error from failure
        raise


def portable(error: BaseException) -> BaseException:
    """The exception itself if it survives pickling, else a RuntimeError with its type, text and notes.

    Many exception classes pickle but cannot be loaded again, because their constructor needs more than the message.

    Example:
        >>> portable(KeyError("a"))
        KeyError('a')
        >>> class Local(Exception): ...
        >>> portable(Local("in a function"))
        RuntimeError('Local: in a function')
    """
    with guarded():
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    stand_in = RuntimeError(headline(error))
    for note in notes_of(error):
        stand_in.add_note(note)
    return stand_in


class guarded:  # noqa: N801  a context manager
    """Drop any exception of the user's code in the body, except Ctrl-C, because a failure is already being reported.

    Example:
        >>> with guarded():
        ...     raise SystemExit(1)
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        return kind is not None and not issubclass(kind, KeyboardInterrupt)


class telling:  # noqa: N801  a context manager
    """Calls a function with the exception that the body raises; the exception continues unchanged.

    This is not a generator, because contextlib then sets an attribute of the exception, which a frozen dataclass refuses.
    """

    def __init__(self, tell: Callable[[BaseException], None]) -> None:
        self._tell = tell

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._tell(error)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception of the user's, unless its class does not allow attributes to be set."""
    with guarded():
        BaseException.add_note(error, note)


def text_of(error: BaseException) -> str:
    """The text of an exception, whatever its `__str__` does.

    Example:
        >>> class Mute(Exception):
        ...     def __str__(self):
        ...         raise AttributeError("code")
        >>> text_of(KeyError("a")), text_of(Mute())
        ("'a'", '<Mute.__str__ failed>')
    """
    with guarded():
        return str.__str__(str(error))  # a subclass of str would bring in more of the user's code
    return f"<{type(error).__name__}.__str__ failed>"


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception, if it has any and they can be shown."""
    with guarded():
        return [str.__str__(str(note)) for note in error.__notes__]
    return []


def shown(value: object) -> str:
    """The `repr` of a value of the user's in an error message, whatever its `__repr__` does.

    Example:
        >>> class Shy:
        ...     def __repr__(self):
        ...         raise AttributeError("name")
        >>> shown([1, 2]), shown(Shy())
        ('[1, 2]', '<Shy.__repr__ failed>')
    """
    with guarded():
        return str.__str__(repr(value))
    return f"<{type(value).__name__}.__repr__ failed>"


def headline(error: BaseException) -> str:
    """Type and text of an exception, as in the last line of a traceback.

    Example:
        >>> headline(ValueError("too long")), headline(ValueError())
        ('ValueError: too long', 'ValueError')
    """
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the known name most similar to `name`, led by a space; empty if none is similar.

    Example:
        >>> nearest("frame_per_batch", ["total_frames", "frames_per_batch"])
        " Did you mean 'frames_per_batch'?"
        >>> nearest("colour", ["total_frames", "frames_per_batch"])
        ''
    """
    found = nearest_name(name, known)
    return f" Did you mean {found!r}?" if found else ""


def nearest_name(name: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """The known name most similar to `name`; None if the similarity of all is below `least`, from 0 to 1."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=least)), None)


def callers_level() -> int:
    """The `stacklevel` with which the caller of this function points a warning at the line that called into this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "reap":
        frame, level = frame.f_back, level + 1
    return level
