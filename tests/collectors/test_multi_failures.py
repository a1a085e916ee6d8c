"""However a worker fails or a collector ends: the cause is named, nothing is left behind, and the next collector works."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector
from reap.errors import ClosedError, WorkerDied, WorkerRaised
from reap.testing import Const, Count
from tests.collectors.seams import pids_of, seam_of
from tests.collectors.worker_kinds import (
    CLASSES,
    LIMIT,
    Failing,
    FailingPolicy,
    Gate,
    Gated,
    Pixels,
    Stuck,
    fail,
    nothing_left,
    steps,
    take_until_it_fails,
)

pytestmark = pytest.mark.processes

ENDS: dict[str, Any] = {"raise": ValueError, "os._exit": 3, "SIGKILL": -9, "SIGSEGV": -11}


def factories(how: str, phase: str) -> list[Any]:
    """The last of them fails."""
    if phase == "policy":
        return [partial(Count, 5), partial(Count, 5, 100)]
    if phase == "start":
        return [partial(Count, 5), lambda: fail(how)]
    return [partial(Count, 5), partial(Failing, how, phase)]


def check_cause(failure: Any, how: str, phase: str, worker: int) -> None:
    assert (failure.worker, failure.phase) == (worker, phase)
    if how == "raise":
        assert type(failure) is WorkerRaised
        assert type(failure.__cause__) is ValueError
        assert str(failure).startswith(f"ValueError: on purpose\nRaised in worker {worker} during {phase}.")
        assert 'raise ValueError("on purpose")' in failure.traceback
    else:
        assert type(failure) is WorkerDied
        assert failure.exit_code == ENDS[how]
        what = "ended with exit code 3" if how == "os._exit" else f"was killed by {how} (signal {-ENDS[how]})"
        assert str(failure).startswith(f"Worker {worker} {what} during {phase}.")


def check_next_collector() -> None:
    with MultiSyncDataCollector([partial(Count, 3)], Const(), frames_per_batch=4) as collector:
        assert steps(collector.next()) == [[0, 1, 2, 0]]


EVERY = [(how, phase) for how in ENDS for phase in ("reset", "step", "policy")]
SOME = [("raise", "step"), ("SIGKILL", "policy"), ("os._exit", "reset")]
CASES = [("MultiSync", *case) for case in EVERY] + [(name, *case) for name in ("MultiaSync", "aSync") for case in SOME]


@pytest.mark.parametrize(("name", "how", "phase"), CASES)
def test_a_failure_in_a_rollout(name: str, how: str, phase: str) -> None:
    with nothing_left() as pids:
        policy = FailingPolicy(how) if phase == "policy" else Const()
        collector = CLASSES[name](factories(how, phase), policy, frames_per_batch=8)
        pids.extend(pids_of(collector))
        worker = collector.num_workers - 1
        with pytest.raises((WorkerRaised, WorkerDied)) as caught:
            take_until_it_fails(collector)
        check_cause(caught.value, how, phase, worker)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "they are gone when the error arrives"
        with pytest.raises(ClosedError, match="these workers were ended when one failed") as closed:
            collector.next()
        assert closed.value.__cause__ is caught.value
        collector.shutdown()
        collector.shutdown()
        del collector, caught, closed
    check_next_collector()


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("name", ["MultiSync", "MultiaSync"])
def test_a_construction_that_fails_half_way(name: str, how: str) -> None:
    with nothing_left():
        with pytest.raises((WorkerRaised, WorkerDied)) as caught:
            CLASSES[name](factories(how, "start"), Const(), frames_per_batch=8)
        check_cause(caught.value, how, "start", 1)
        del caught
        with pytest.raises((WorkerRaised, WorkerDied)) as caught:
            CLASSES[name]([partial(Count, 5)] * 2, policy_factory=[Const, lambda: fail(how)], frames_per_batch=8)
        check_cause(caught.value, how, "start", 1)
        del caught
    check_next_collector()


@pytest.mark.parametrize("name", CLASSES)
def test_a_batch_that_does_not_fit_is_refused_at_construction(name: str) -> None:
    with nothing_left(), pytest.raises(MemoryError, match=r"shared memory are needed(?s:.*)Use fewer frames per batch"):
        CLASSES[name]([partial(Count, 5)] * 2, Const(), frames_per_batch=3_000_000_000_000)


def test_a_failure_while_the_others_work_on(tmp_path: Path) -> None:
    """C01: worker 0 would take for ever."""
    gate = Gate(tmp_path)
    with nothing_left() as pids:
        envs = [partial(Gated, gate.paths, [2]), partial(Failing, "raise", "step")]
        collector = MultiSyncDataCollector(envs, Const(), frames_per_batch=8)
        pids.extend(pids_of(collector))
        with pytest.raises(WorkerRaised, match="Raised in worker 1 during step") as caught:
            collector.next()
        del caught, collector
    gate.close()


def take_states(collector: Any) -> None:
    while True:
        collector.state_dict()


def test_a_failure_of_a_command() -> None:
    """No rollout is under way."""
    with nothing_left() as pids:
        collector = MultiSyncDataCollector([partial(Count, 3)] * 2, Const(), frames_per_batch=8)
        pids.extend(pids_of(collector))
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="Worker 1 was killed by SIGKILL"):
            take_states(collector)
        with pytest.raises(ClosedError):
            collector.set_seed(3)
        collector.shutdown()
        del collector
    check_next_collector()


# ---------------------------------------------------------------------- the end


@pytest.mark.parametrize("name", CLASSES)
def test_a_dropped_collector(name: str) -> None:
    """C02: nobody shuts it down; an iterator and a batch of it are there a while longer."""
    with nothing_left() as pids:
        collector = CLASSES[name]([partial(Pixels, 5)] * 2, frames_per_batch=8)
        pids.extend(pids_of(collector))
        batches = iter(collector)
        batch = next(batches)
        kept = batch["observation"].clone()
        del collector
        gc.collect()
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        batches.close()
        del batches
        gc.collect()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert (batch["observation"] == kept).all()
        del batch


def test_an_exception_in_the_loops_body() -> None:
    def train() -> None:
        with MultiaSyncDataCollector([partial(Count, 5)] * 2, frames_per_batch=8) as collector:
            pids.extend(pids_of(collector))
            for _ in collector:
                raise KeyError("in the user's code")

    with nothing_left() as pids:
        with pytest.raises(KeyError, match="in the user's code"):
            train()
        gc.collect()
    check_next_collector()


def test_an_end_while_batches_wait(tmp_path: Path) -> None:
    with nothing_left() as pids:
        collector = MultiaSyncDataCollector([partial(Pixels, 5)] * 2, frames_per_batch=8)
        pids.extend(pids_of(collector))
        batch = collector.next()
        collector.state_dict()  # all workers have a result that waits
        kept = batch["observation"].clone()
        collector.shutdown()
        assert (batch["observation"] == kept).all()
        del collector, batch


def collect_until_closed(collector: Any, raised: list[str]) -> None:
    try:
        while collector.next() is not None:  # the worker that is not stuck may deliver any number before the end
            pass
    except ClosedError as error:
        raised.append(str(error))


@pytest.mark.parametrize("name", CLASSES)
def test_an_end_from_another_thread_while_a_worker_is_stuck_in_c(name: str, tmp_path: Path) -> None:
    told = str(tmp_path / "told")
    os.mkfifo(told)
    end = os.open(told, os.O_RDWR)
    with nothing_left() as pids:
        collector = CLASSES[name]([partial(Count, 5), partial(Stuck, told, 3)], Const(), frames_per_batch=8)
        pids.extend(pids_of(collector))
        raised: list[str] = []

        waits = Thread(target=collect_until_closed, args=(collector, raised))
        waits.start()
        assert os.read(end, 1) == b"."
        ends = [Thread(target=partial(collector.shutdown, 0.3)) for _ in range(2)]
        for one in ends:
            one.start()
        for one in (*ends, waits):
            one.join(LIMIT)
            assert not one.is_alive()
        assert len(raised) == 1
        # The other worker of a MultiaSync delivers meanwhile: the end may come between two batches.
        assert raised[0] == "these workers are stopped" or (name == "MultiaSync" and "shut down" in raised[0])
        del collector, waits, ends, one
    os.close(end)


def test_many_collectors_one_after_the_other() -> None:
    with nothing_left():
        check_next_collector()
    with nothing_left():
        for _ in range(10):
            check_next_collector()


@pytest.fixture
def interrupts_allowed() -> Iterator[None]:
    """Ctrl-C raises, as it does not in what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts_allowed")
@pytest.mark.parametrize("name", CLASSES)
def test_ctrl_c_in_the_middle_of_a_batch_that_is_asked_for_again(name: str, tmp_path: Path) -> None:
    """As in a notebook: a cell is interrupted while it waits for a worker, and run again."""
    gate = Gate(tmp_path)
    with CLASSES[name]([partial(Gated, gate.paths, [3])], Const(), frames_per_batch=5) as collector:
        main = threading.get_ident()
        interrupts = Thread(target=lambda: (gate.wait_for_entry(), signal.pthread_kill(main, signal.SIGINT)))
        interrupts.start()
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        interrupts.join()
        gate.open()
        assert [collector.next()["observation"].flatten().tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        assert collector.stats().frames == 10
        assert collector.getattr_env("length") == [1000]
    gate.close()


@pytest.mark.usefixtures("interrupts_allowed")
@pytest.mark.parametrize("name", CLASSES)
def test_ctrl_c_while_commands_are_sent(name: str) -> None:
    """It comes when all workers know what they are to do."""
    with CLASSES[name]([partial(Count, 50)], Const(), frames_per_batch=5) as collector:
        slots: Any = seam_of(collector).slots_of(0)
        take_slot, sent = slots.take, []

        def take_and_interrupt() -> int:
            sent.append(1)
            if len(sent) == 2:
                signal.raise_signal(signal.SIGINT)
            return take_slot()

        slots.take = take_and_interrupt
        found = []
        interrupts = 0
        while len(found) < 4:
            try:
                found.append(collector.next()["observation"].flatten().tolist())
            except KeyboardInterrupt:
                interrupts += 1
        assert interrupts == 1
        assert found == [[5 * n + step for step in range(5)] for n in range(4)]
