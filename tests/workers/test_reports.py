"""Exceptions whose own code fails while they are reported: type, text as far as there is one, place and traceback arrive."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from reap.collectors import MultiSyncDataCollector, SyncDataCollector
from reap.data import LazyTensorStorage, ReplayBuffer
from reap.envs import GymEnv, ParallelEnv, SerialEnv
from reap.errors import OptionError, WorkerRaised, add_note, headline, portable
from reap.testing import Count
from reap.workers import reports
from reap.workers.processes.group import ProcessGroup
from reap.workers.progress import Progress
from tests.collectors.seams import wait_for_end
from tests.workers.handlers import Doer, ask


class MuteError(Exception):
    """Reads an attribute that only some constructors set, as classes of clients of web services do."""

    def __str__(self) -> str:
        return f"code {self.code}"  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


class ShyError(MuteError):
    def __repr__(self) -> str:
        return str(self)


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class ExitingStateError(Exception):
    def __reduce__(self) -> Any:
        sys.exit(4)


class LockedError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text, threading.Lock())

    def __str__(self) -> str:
        return str(self.args[0])


class InterruptingError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class InterruptingLoadError(Exception):
    def __reduce__(self) -> Any:
        return interrupt, ()


class ClosedError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def interrupt() -> None:
    raise KeyboardInterrupt


class TwoWordsError(Exception):
    def __init__(self, one: str, two: str = "") -> None:
        super().__init__(one + two)
        if not two:
            raise LookupError("the second word is missing")


class AtHomeError(Exception):
    """Loads only in the process that raised it."""

    def __init__(self, text: str, home: int = 0) -> None:
        super().__init__(text)
        if home and home != os.getpid():
            sys.exit(5)

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], os.getpid())


class AnnotatedError(Exception):
    __notes__ = 3  # pyright: ignore[reportAssignmentType]


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    text: str


class Cut(str):
    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise RuntimeError("no format")


class CutError(Exception):
    def __str__(self) -> str:
        return Cut("cut")


def noted(error: Exception, note: Any) -> Exception:
    vars(error)["__notes__"] = [note]
    return error


class Unwritten:
    def __str__(self) -> str:
        raise ValueError("no text")


ERRORS: dict[str, tuple[Callable[[], Exception], str, type[BaseException]]] = {
    # what is raised, its headline, the type of the cause
    "text": (MuteError, "MuteError: <MuteError.__str__ failed>", MuteError),
    "text and repr": (ShyError, "ShyError: <ShyError.__str__ failed>", ShyError),
    "text exits": (ExitingError, "ExitingError: <ExitingError.__str__ failed>", ExitingError),
    "reduce exits": (lambda: ExitingStateError("a"), "RuntimeError: ExitingStateError: a", RuntimeError),
    "arguments": (lambda: LockedError("a"), "RuntimeError: LockedError: a", RuntimeError),
    "constructor": (lambda: TwoWordsError("a", "b"), "RuntimeError: TwoWordsError: ab", RuntimeError),
    "loading": (lambda: AtHomeError("a"), "RuntimeError: AtHomeError: a", RuntimeError),
    "notes": (lambda: AnnotatedError("a"), "AnnotatedError: a", AnnotatedError),
    "a note": (lambda: noted(LockedError("a"), Unwritten()), "RuntimeError: LockedError: a", RuntimeError),
    "frozen": (lambda: FrozenError("a"), "RuntimeError: FrozenError: a", RuntimeError),
    "a subclass of str": (CutError, "CutError: cut", CutError),
}


BARE = {
    f"{kind.__name__} fails": (
        kind,
        f"RuntimeError: {kind.__name__}: <code of its class failed while it was reported>",
        RuntimeError,
    )
    for kind in (InterruptingError, InterruptingLoadError, ClosedError)
}
"""Exceptions of which only type and traceback can be reported: their own code raises KeyboardInterrupt, or always fails."""

IN_WORKERS = {**ERRORS, **BARE}


@pytest.mark.parametrize("name", IN_WORKERS)
def test_in_a_command(name: str) -> None:
    make, expected, kind = IN_WORKERS[name]

    def fail(doer: Doer) -> None:
        raise make()

    group = ProcessGroup([Doer])
    group.request(0, fail)
    with pytest.raises(WorkerRaised) as info:
        group.ready({0})
    assert str(info.value).startswith(f"{expected}\nRaised in worker 0 during working.\nTraceback in the worker:\n")
    assert "in fail" in info.value.traceback
    assert type(info.value.__cause__) is kind
    assert str(portable(info.value)) == str(info.value)  # it can travel on


@pytest.mark.parametrize("name", IN_WORKERS)
def test_as_a_handler_is_made(name: str) -> None:
    make, expected, kind = IN_WORKERS[name]

    def fail(worker: int, control: memoryview) -> Doer:
        raise make()

    group = ProcessGroup([fail])
    with pytest.raises(WorkerRaised) as info:
        ask(group, 0, ("neg", 1))
    assert str(info.value).startswith(f"{expected}\nRaised in worker 0 during start.\n")
    assert type(info.value.__cause__) is kind


class Failing(Count):
    """`Count` that raises in its third step."""

    def __init__(self, make: Callable[[], Exception]) -> None:
        super().__init__(9)
        self.make = make

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise self.make()
        return super().step(action)


def failing(name: str) -> Callable[[], GymEnv]:
    return lambda: GymEnv(Failing(IN_WORKERS[name][0]))


@pytest.mark.processes
@pytest.mark.parametrize("name", IN_WORKERS)
def test_in_the_env_of_a_worker(name: str) -> None:
    with (
        MultiSyncDataCollector([failing(name)], frames_per_batch=4) as collector,
        pytest.raises(WorkerRaised) as info,
    ):
        collector.next()
    assert str(info.value).startswith(f"{IN_WORKERS[name][1]}\nRaised in worker 0 during step.\n")
    assert type(info.value.__cause__) is IN_WORKERS[name][2]


@pytest.mark.processes
@pytest.mark.parametrize("name", ERRORS)
def test_in_a_process_of_a_parallel_env(name: str) -> None:
    with (
        SyncDataCollector(ParallelEnv(1, failing(name)), frames_per_batch=4) as collector,
        pytest.raises(WorkerRaised) as info,
    ):
        collector.next()
    assert str(info.value).startswith(f"{IN_WORKERS[name][1]}\nRaised in worker 0 during step.\n")
    assert type(info.value.__cause__) is IN_WORKERS[name][2]


@pytest.mark.parametrize("wrap", [lambda make: make, lambda make: lambda: SerialEnv(1, make)])
@pytest.mark.parametrize("name", ERRORS)
def test_in_this_process_it_is_raised_itself(name: str, wrap: Any) -> None:
    error = IN_WORKERS[name][0]()
    with SyncDataCollector(wrap(lambda: GymEnv(Failing(lambda: error))), frames_per_batch=4) as collector:
        with pytest.raises(type(error)) as info:
            collector.next()
        assert info.value is error


@pytest.mark.parametrize("name", ERRORS)
def test_in_a_background_thread_it_is_raised_itself(name: str) -> None:
    error = IN_WORKERS[name][0]()
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    make = lambda: GymEnv(Failing(lambda: error))  # noqa: E731
    with SyncDataCollector(make, frames_per_batch=4, replay_buffer=buffer) as collector:
        collector.start()
        wait_for_end(collector)
        with pytest.raises(type(error)) as info:
            collector.next()
        assert info.value is error


def test_what_a_worker_writes_is_read_whatever_the_exception() -> None:
    for make, expected, _ in ERRORS.values():
        try:
            raise make()
        except Exception as error:  # noqa: BLE001  any of them
            body = reports.write(error, Progress(0, -1, 0), is_harmless=True)
        failure = reports.raised(0, ["step"], reports.read(memoryview(body)))
        assert "test_what_a_worker_writes" not in failure.traceback
        assert type(failure).__name__ == "WorkerRaised"
        assert expected.rpartition(": ")[2] in str(failure)


def test_a_note_that_cannot_be_added_is_left_out() -> None:
    error = FrozenError("a")
    add_note(error, "more")
    assert headline(error) == "FrozenError: a"
    plain = ValueError("a")
    add_note(plain, "more")
    assert plain.__notes__ == ["more"]


class Hiding:
    """Neither travels nor shows itself."""

    def __reduce__(self) -> Any:
        raise TypeError("stays here")

    def __repr__(self) -> str:
        raise AttributeError("name")

    def __hash__(self) -> int:
        return 1


def test_the_search_for_what_cannot_travel_runs_into_code_that_fails() -> None:
    with pytest.raises(OptionError, match=r"argument 0, key <Hiding.__repr__ failed> is a .*Hiding \(TypeError: stays here\)"):
        ProcessGroup([Doer], setup=[partial(print, {Hiding(): 1})])


def test_a_factory_that_returns_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(OptionError, match=r"expected it to return an env, got Hiding: <Hiding.__repr__ failed>"):
        SyncDataCollector(Hiding, frames_per_batch=1)
