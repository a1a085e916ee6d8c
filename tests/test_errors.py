"""The exception tree, its messages, and pickling."""

import copy
import pickle
import signal

import pytest

import reap.errors
from reap.errors import (
    ClosedError,
    DiskFull,
    OptionError,
    ReapError,
    SpecMismatch,
    WorkerDied,
    WorkerError,
    WorkerRaised,
    nearest,
    portable,
)


class DemandingError(Exception):
    """Pickles, but cannot be loaded: its constructor wants two arguments."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (ReapError, (Exception,)),
        (OptionError, (ReapError, ValueError, TypeError)),
        (SpecMismatch, (ReapError, ValueError, RuntimeError)),
        (DiskFull, (ReapError, OSError)),
        (ClosedError, (ReapError, RuntimeError)),
        (WorkerError, (ReapError, RuntimeError)),
        (WorkerRaised, (WorkerError,)),
        (WorkerDied, (WorkerError,)),
    ],
)
def test_tree(kind, bases):
    assert kind.__bases__ == bases
    assert kind.__name__ in reap.errors.__doc__


@pytest.mark.parametrize("kind", [ReapError, OptionError, SpecMismatch, DiskFull, ClosedError])
def test_plain_errors_pickle(kind):
    loaded = pickle.loads(pickle.dumps(kind("expected 1, found 2")))
    assert type(loaded) is kind
    assert str(loaded) == "expected 1, found 2"


def test_worker_raised_says_type_text_worker_phase_and_traceback():
    error = WorkerRaised(2, "step", ValueError("bad action"), "Traceback ...\n  line 3\n")
    assert str(error) == (
        "ValueError: bad action\nRaised in worker 2 during step.\nTraceback in the worker:\nTraceback ...\n  line 3"
    )
    assert (error.worker, error.phase, error.traceback) == (2, "step", "Traceback ...\n  line 3\n")
    assert error.error is error.__cause__
    assert repr(error.__cause__) == "ValueError('bad action')"


def test_worker_raised_without_text_names_the_type():
    assert str(WorkerRaised(0, "reset", RuntimeError())) == "RuntimeError\nRaised in worker 0 during reset."


def test_worker_raised_keeps_its_cause_when_raised():
    cause = ValueError("bad action")
    with pytest.raises(WorkerRaised, match="^ValueError: bad action") as caught:
        raise WorkerRaised(2, "step", cause)
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("through", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_worker_raised_survives_a_round_trip(through):
    error = WorkerRaised(2, "step", KeyError("a"), "Traceback")
    error.add_note("env 3")
    error.__cause__.add_note("inner")
    result = through(through(error))
    assert type(result) is WorkerRaised
    assert str(result) == str(error)
    assert (result.worker, result.phase, result.traceback, result.__notes__) == (2, "step", "Traceback", ["env 3"])
    assert repr(result.__cause__) == "KeyError('a')"
    assert result.__cause__.__notes__ == ["inner"]


def test_worker_raised_survives_a_cause_that_cannot_be_loaded():
    error = WorkerRaised(1, "reset", DemandingError(7, "no licence"))
    result = pickle.loads(pickle.dumps(error))
    assert str(result) == "DemandingError: 7: no licence\nRaised in worker 1 during reset."
    assert repr(result.__cause__) == "RuntimeError('DemandingError: 7: no licence')"
    again = pickle.loads(pickle.dumps(result))
    assert str(again).splitlines()[1] == "Raised in worker 1 during reset."


@pytest.mark.parametrize(
    ("exit_code", "start", "hint"),
    [
        (-9, "Worker 0 was killed by SIGKILL (signal 9)", "out-of-memory killer"),
        (-11, "Worker 0 was killed by SIGSEGV (signal 11)", "faulthandler"),
        (-7, "Worker 0 was killed by SIGBUS (signal 7)", "/dev/shm"),
        (-6, "Worker 0 was killed by SIGABRT (signal 6)", "abort()"),
        (-15, "Worker 0 was killed by SIGTERM (signal 15)", "time limit"),
        (-2, "Worker 0 was killed by SIGINT (signal 2)", "interrupted"),
        (-10, "Worker 0 was killed by SIGUSR1 (signal 10)", "No likely cause"),
        (-250, "Worker 0 was killed by a signal (signal 250)", "No likely cause"),
        (0, "Worker 0 ended with exit code 0", "sys.exit"),
        (3, "Worker 0 ended with exit code 3", "os._exit"),
        (None, "Worker 0 was lost", "network"),
    ],
)
def test_worker_died_names_signal_or_code_and_causes(exit_code, start, hint):
    error = WorkerDied(0, exit_code)
    assert str(error).startswith(f"{start}. ")
    assert hint in str(error)
    assert error.exit_code == exit_code


def test_worker_died_attributes_and_phase():
    error = WorkerDied(5, -9, "step")
    assert (error.worker, error.exit_code, error.signal, error.phase) == (5, -9, signal.SIGKILL, "step")
    assert str(error).startswith("Worker 5 was killed by SIGKILL (signal 9) during step. ")
    assert WorkerDied(5, 1).signal is None
    assert WorkerDied(5).signal is None


def test_worker_died_survives_a_round_trip():
    error = WorkerDied(5, -9, "step")
    error.add_note("env 3")
    result = pickle.loads(pickle.dumps(error))
    assert type(result) is WorkerDied
    assert str(result) == str(error)
    assert (result.worker, result.exit_code, result.signal, result.phase) == (5, -9, signal.SIGKILL, "step")
    assert result.__notes__ == ["env 3"]


def test_worker_error_survives_a_round_trip():
    result = pickle.loads(pickle.dumps(WorkerError(4, "no reply")))
    assert (type(result), result.worker, str(result)) == (WorkerError, 4, "no reply")


def test_portable_keeps_what_pickles():
    error = KeyError("a")
    assert portable(error) is error


@pytest.mark.parametrize("error", [DemandingError(7, "x"), type("Local", (Exception,), {})("7: x")])
def test_portable_replaces_what_does_not(error):
    error.add_note("env 3")
    result = portable(error)
    assert type(result) is RuntimeError
    assert str(result) == f"{type(error).__name__}: 7: x"
    assert result.__notes__ == ["env 3"]


def test_nearest():
    known = ["frames_per_batch", "total_frames"]
    assert nearest("frame_per_batch", known) == " Did you mean 'frames_per_batch'?"
    assert not nearest("xyz", known)
    assert not nearest("xyz", [])
