"""What every group does, whatever carries its messages: each test runs with processes and with threads that share nothing."""

from __future__ import annotations

import operator
import os
import re
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from reap.errors import ClosedError, OptionError, WorkerDied, WorkerRaised
from reap.workers.group import Group
from reap.workers.processes.group import ProcessGroup
from reap.workers.progress import COLUMN, PHASE, PUBLISHED, STOP, Progress
from reap.workers.serve import Terminated
from tests.warned import on_warning
from tests.workers.handlers import Doer, Harmless, ask, descriptors, poll_until_it_fails
from tests.workers.threads import thread_group

MakeGroup = Callable[..., Group]

PHASES = ("thinking", "stepping")


@pytest.fixture(params=[ProcessGroup, thread_group], ids=["processes", "threads"])
def make_group(request: pytest.FixtureRequest) -> Iterator[MakeGroup]:
    made: list[Group] = []

    def make(*arguments: Any, **options: Any) -> Group:
        made.append(request.param(*arguments, **options))
        return made[-1]

    yield make
    for group in made:
        group.stop()


@pytest.fixture
def workers(make_group: MakeGroup) -> Group:
    return make_group([Doer] * 3, phases=PHASES)


class Gate:
    """Holds up commands until the test opens it; two named pipes, for a command knows their paths only."""

    def __init__(self, path: Path) -> None:
        paths = [f"{path} {word}" for word in ("opened", "entered")]
        for own in paths:
            os.mkfifo(own)
        self._opened, self._entered = (os.open(own, os.O_RDWR) for own in paths)
        self.passed = partial(passed, *paths)

    def open(self) -> None:
        os.write(self._opened, b".")

    def wait_for_entry(self) -> None:
        """Wait until a worker is before the gate; from then on it gets through once opened, whatever is closed."""
        assert os.read(self._entered, 1) == b"."

    def close(self) -> None:
        os.close(self._opened)
        os.close(self._entered)


def passed(opened: str, entered: str, doer: Doer) -> int:
    """Wait before the gate."""
    gate, told = os.open(opened, os.O_RDONLY), os.open(entered, os.O_WRONLY)
    os.write(told, b".")
    assert os.read(gate, 1) == b"."
    os.close(gate)
    os.close(told)
    return doer.worker


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[list[Gate]]:
    made = [Gate(tmp_path / str(number)) for number in range(3)]
    yield made
    for gate in made:
        gate.close()


def fail(doer: Doer) -> NoReturn:
    doer.control[PHASE] = 1
    raise ValueError("on purpose")


def request_until_it_fails(group: Group, worker: int) -> NoReturn:
    while True:
        group.request(worker, ("neg", 1))


def vanish(doer: Doer) -> NoReturn:
    raise Terminated


# Requests and replies


def test_a_reply_comes_from_the_worker_that_was_asked(workers: Group) -> None:
    assert workers.size == 3
    for worker in range(3):
        workers.request(worker, ("add", worker, 10))
    assert sorted(workers.ready(range(3)) for _ in range(3)) == [(0, 10), (1, 11), (2, 12)]


def test_replies_come_in_the_order_in_which_they_arrive(workers: Group, gates: list[Gate]) -> None:
    for worker in range(3):
        workers.request(worker, gates[worker].passed)
    for worker in (2, 0, 1):
        assert workers.poll(range(3)) is None
        gates[worker].open()
        assert workers.ready(range(3)) == (worker, worker)


def test_a_reply_of_another_worker_waits_until_it_is_asked_for(workers: Group) -> None:
    workers.request(0, ("add", 1, 1))
    assert ask(workers, 1, ("add", 2, 2)) == 4
    assert workers.ready({0}) == (0, 2)


def test_commands_are_carried_out_one_after_the_other(workers: Group) -> None:
    for number in range(20):
        workers.request(0, ("neg", number))
    assert [workers.ready({0})[1] for _ in range(20)] == [-number for number in range(20)]


def test_nobody_waits_for_a_worker_that_has_nothing_to_do(workers: Group) -> None:
    workers.request(0, ("neg", 1))
    with pytest.raises(RuntimeError, match=r"^no request is under way to workers \[1, 2\]$"):
        workers.ready({1, 2})
    assert workers.poll({1, 2}) is None
    assert workers.ready({0}) == (0, -1)


def test_what_is_local_travels(workers: Group) -> None:
    class Local:
        def __init__(self, number: int) -> None:
            self.number = number

    back = ask(workers, 0, lambda doer: Local(doer.worker + 5))
    assert type(back) is Local
    assert back.number == 5


def test_a_command_that_cannot_be_sent_is_named_and_leaves_nothing_under_way(workers: Group) -> None:
    with pytest.raises(OptionError, match=r"^the command: cannot be sent to a worker: its item 1 is a _thread\.lock"):
        workers.request(0, ("neg", threading.Lock()))
    with pytest.raises(RuntimeError, match="no request is under way"):
        workers.ready({0})


def test_replies_that_are_abandoned_never_come(workers: Group, gates: list[Gate]) -> None:
    workers.request(0, ("neg", 1))
    workers.request(0, gates[0].passed)
    workers.request(1, ("neg", 2))
    workers.abandon([0])
    workers.request(0, ("neg", 3))
    gates[0].open()
    assert workers.ready({0}) == (0, -3)
    assert workers.ready({1}) == (1, -2)
    with pytest.raises(RuntimeError, match="no request is under way"):
        workers.ready({0, 1})


def test_its_descriptor_is_readable_when_there_is_a_reply(workers: Group, gates: list[Gate]) -> None:
    for worker in range(3):
        ask(workers, worker, ("neg", 1))
    workers.poll(())
    workers.request(0, gates[0].passed)
    assert select.select([workers], [], [], 0)[0] == []
    gates[0].open()
    assert select.select([workers], [], [], 10)[0] == [workers]
    assert workers.poll({0}) == (0, 0)
    workers.stop()
    with pytest.raises(ClosedError, match=r"^these workers are stopped$"):
        workers.fileno()


# Progress and early ends


def run_columns(doer: Doer) -> list[int]:
    """Go through columns until told to stop; the control ints as they were on the way in, and at the end."""
    before = list(doer.control)
    doer.control[PHASE], doer.control[COLUMN], doer.control[PUBLISHED] = 1, 7, 40
    while not doer.control[STOP]:
        os.sched_yield()
    return [*before, *doer.control]


def test_a_worker_that_is_told_to_stop_early_does_once(workers: Group) -> None:
    workers.clear(1)
    workers.request(1, run_columns)
    workers.stop_early(1)
    assert workers.ready({1})[1][4:] == [1, 7, 1, 40]
    workers.clear(1)
    assert ask(workers, 1, lambda doer: [doer.control[COLUMN], doer.control[STOP]]) == [-1, 0]
    assert ask(workers, 0, lambda doer: list(doer.control)) == [0, -1, 0, 0]


def test_progress_is_what_the_worker_wrote_or_unknown(workers: Group) -> None:
    assert workers.progress(1) == (None if unseen(workers) else Progress(0, -1, 0))
    workers.clear(1)
    workers.stop_early(1)
    ask(workers, 1, run_columns)
    assert workers.progress(1) == (None if unseen(workers) else Progress(1, 7, 40))
    workers.clear_published(1)
    assert workers.progress(1) == (None if unseen(workers) else Progress(1, 7, 0))
    assert workers.progress(0) == (None if unseen(workers) else Progress(0, -1, 0))
    workers.stop()
    assert workers.progress(1) == (None if unseen(workers) else Progress(1, 7, 0))


def unseen(group: Group) -> bool:
    """Whether the group's carrier cannot see how far workers have come."""
    return not isinstance(group, ProcessGroup)


def test_a_worker_is_described_by_its_phase_and_place(workers: Group) -> None:
    ask(workers, 2, lambda doer: operator.setitem(doer.control, PHASE, 1))
    expected = ("", "thread worker-2") if not isinstance(workers, ProcessGroup) else ("stepping", f"pid {workers.pids[2]}")
    assert workers.describe(2) == expected


def test_a_worker_that_does_not_move_is_named_while_it_is_waited_for(make_group: MakeGroup, gates: list[Gate]) -> None:
    group = make_group([Doer] * 2, phases=PHASES, stall_after=0.05)
    texts: list[str] = []

    def show(message: str, kind: type[Warning]) -> None:
        texts.append(message)
        gates[1].open()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may take longer to start
        ask(group, 1, lambda doer: operator.setitem(doer.control, PHASE, 1))
    with on_warning(show):
        group.request(1, gates[1].passed)
        assert group.ready({0, 1}) == (1, 1)
    doing = "at work" if unseen(group) else "in stepping"
    assert re.fullmatch(rf"worker 1 has been {doing} for [\d.]+ s \({group.describe(1)[1]}\)", texts[0])


# Failures


def test_an_exception_of_a_harmless_command_ends_nothing(workers: Group) -> None:
    workers.request(0, Harmless(0))
    workers.request(0, Harmless(4))
    with pytest.raises(WorkerRaised, match="^ZeroDivisionError: division by zero\nRaised in worker 0 during thinking") as info:
        workers.ready({0})
    assert type(info.value.__cause__) is ZeroDivisionError
    assert "handlers.py" in info.value.traceback
    assert workers.ready({0}) == (0, 0.25)
    assert workers.failures() == []


def test_an_exit_in_a_harmless_command_is_not_harmless(workers: Group) -> None:
    class Leaving:
        harmless = True

        def __call__(self, doer: Doer) -> None:
            raise SystemExit(3)

    workers.request(0, Leaving())
    with pytest.raises(WorkerRaised, match="^SystemExit: 3"):
        workers.ready({0})
    with pytest.raises(ClosedError):
        workers.poll({0})


def test_an_exception_ends_the_group_while_another_worker_is_waited_for(workers: Group, gates: list[Gate]) -> None:
    workers.request(0, gates[0].passed)
    gates[0].wait_for_entry()
    workers.request(1, fail)
    with pytest.raises(WorkerRaised, match="^ValueError: on purpose\nRaised in worker 1 during stepping") as info:
        workers.ready({0})
    calls: list[Callable[[], Any]] = [
        lambda: workers.ready({0}),
        lambda: workers.poll({0}),
        lambda: workers.request(0, ("neg", 1)),
        lambda: workers.replace(1, Doer),
        workers.failures,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="^these workers were ended when one failed: ValueError: on purpose") as closed:
            call()
        assert closed.value.__cause__ is info.value
    gates[0].open()


def test_a_worker_that_vanishes_is_missed_after_its_last_reply(make_group: MakeGroup) -> None:
    group = make_group([Doer] * 2, on_failure="report")
    group.request(0, ("neg", 1))
    group.request(0, vanish)
    with pytest.raises(WorkerDied) as info:
        poll_until_it_fails(group, among=())
    assert (info.value.worker, info.value.exit_code) == (0, None if unseen(group) else -signal.SIGTERM)
    assert group.ready({0}) == (0, -1)
    for call in (lambda: group.ready({0}), lambda: group.request(0, ("neg", 1))):
        with pytest.raises(WorkerDied) as again:
            call()
        assert again.value is info.value


def test_an_exception_as_a_handler_is_made(make_group: MakeGroup) -> None:
    def make(worker: int, control: memoryview) -> Doer:
        raise ValueError("no handler")

    group = make_group([Doer, make])
    with pytest.raises(WorkerRaised, match="^ValueError: no handler\nRaised in worker 1 during start") as info:
        poll_until_it_fails(group)
    assert "in make" in info.value.traceback


def test_a_reply_that_cannot_be_pickled_is_an_exception_of_its_command(workers: Group) -> None:
    workers.request(0, lambda doer: (name for name in "abc"))
    with pytest.raises(WorkerRaised, match="^OptionError: the reply: cannot be sent to a worker: it is a generator"):
        workers.ready({0})


def test_an_unknown_way_of_failing_is_refused(make_group: MakeGroup) -> None:
    with pytest.raises(OptionError, match=r"^on_failure: expected 'terminate' or 'report', got 'ignore'$"):
        make_group([Doer], on_failure="ignore")


# Replacement


def test_the_others_live_on_after_a_reported_failure(make_group: MakeGroup) -> None:
    group = make_group([Doer] * 3, on_failure="report")
    with group.failures_only_of(1):  # a request raises what others have failed with meanwhile
        group.request(0, vanish)
        group.request(2, fail)
        group.request(1, ("neg", 1))
    kinds: dict[int, type] = {}
    for _ in range(2):
        with pytest.raises((WorkerDied, WorkerRaised)) as info:
            poll_until_it_fails(group, among=())
        kinds[info.value.worker] = type(info.value)
    assert kinds == {0: WorkerDied, 2: WorkerRaised}
    assert group.ready({1}) == (1, -1)
    assert sorted(failure.worker for failure in group.failures()) == [0, 2]
    group.stop_early(0)
    for worker in (0, 2):
        group.replace(worker, Doer)
    assert group.failures() == []
    assert [ask(group, worker, lambda doer: (doer.worker, *doer.control)) for worker in range(3)] == [
        (worker, 0, -1, 0, 0) for worker in range(3)
    ]


def test_failures_that_nobody_was_told_of_are_told_once(make_group: MakeGroup) -> None:
    group = make_group([Doer] * 2, on_failure="report")
    group.request(0, fail)
    while not (failures := group.failures()):
        select.select([group], [], [], 10)
    assert [(type(failure), failure.worker) for failure in failures] == [(WorkerRaised, 0)]
    assert ask(group, 1, ("neg", 1)) == -1
    with pytest.raises(WorkerRaised) as info:
        group.request(0, ("neg", 1))
    assert info.value is failures[0]


def test_a_running_worker_can_be_replaced_and_its_replies_are_forgotten(workers: Group) -> None:
    ask(workers, 1, lambda doer: setattr(doer, "kept", 5))
    workers.request(1, ("neg", 1))
    workers.replace(1, lambda worker, control: Doer(worker + 10, control))
    assert ask(workers, 1, lambda doer: (doer.worker, doer.kept)) == (11, None)
    assert ask(workers, 0, ("neg", 2)) == -2


def test_failures_of_others_wait_until_a_replacement_is_complete(make_group: MakeGroup) -> None:
    group = make_group([Doer] * 3, on_failure="report")
    group.request(0, vanish)
    with pytest.raises(WorkerDied):
        poll_until_it_fails(group)
    with group.failures_only_of(0):
        group.replace(0, Doer)
        group.request(2, fail)
        with pytest.raises(WorkerRaised):
            request_until_it_fails(group, 2)
        assert ask(group, 0, ("neg", 1)) == -1
        assert ask(group, 1, ("neg", 2)) == -2
    with pytest.raises(WorkerRaised) as info:
        poll_until_it_fails(group)
    assert info.value.worker == 2


def test_a_replacement_that_is_withdrawn_leaves_the_failure(make_group: MakeGroup) -> None:
    group = make_group([Doer] * 2, on_failure="report")
    group.request(0, fail)
    with pytest.raises(WorkerRaised) as info:
        poll_until_it_fails(group)
    group.replace(0, Doer)
    group.withdraw(info.value)
    with pytest.raises(WorkerRaised) as again:
        group.poll(())
    assert again.value is info.value
    assert group.failures() == [info.value]
    group.replace(0, Doer)
    assert ask(group, 0, ("neg", 1)) == -1


# Ends


def test_stop_closes_the_handlers_and_a_second_call_does_nothing(make_group: MakeGroup, tmp_path: Path) -> None:
    class Telling(Doer):
        def close(self) -> None:
            (tmp_path / f"closed {self.worker}").touch(exist_ok=False)

    group = make_group([Telling] * 2)
    for worker in range(2):
        ask(group, worker, ("neg", 1))
    group.stop()
    group.stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["closed 0", "closed 1"]
    with pytest.raises(ClosedError, match=r"^these workers are stopped$"):
        group.request(0, ("neg", 1))


def test_stop_from_another_thread_frees_one_that_waits(workers: Group, gates: list[Gate]) -> None:
    workers.request(0, gates[0].passed)
    gates[0].wait_for_entry()
    raised: list[str] = []

    def wait() -> None:
        try:
            workers.ready({0})
        except ClosedError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    workers.stop(0.5)
    thread.join()
    gates[0].open()
    assert raised == ["these workers are stopped"]


def wait_and_be_interrupted(workers: Group) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)  # here: on a busy machine it may ring at once
    workers.ready({0})


def test_ctrl_c_leaves_the_reply_for_later(workers: Group, gates: list[Gate]) -> None:
    workers.request(0, gates[0].passed)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_and_be_interrupted(workers)
    finally:
        signal.signal(signal.SIGALRM, before)
    gates[0].open()
    assert workers.ready({0}) == (0, 0)


def test_a_fork_cannot_use_the_workers(workers: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.ensure_own()
    pid = os.getpid()
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: pid + 1)
        for call in (workers.ensure_own, lambda: workers.request(0, ("neg", 1))):
            with pytest.raises(ClosedError, match=f"^these workers belong to process {pid}: make a collector, or an env, in"):
                call()
        workers.stop()
    assert ask(workers, 0, ("neg", 1)) == -1


def test_a_group_that_is_stopped_leaves_no_descriptor(make_group: MakeGroup) -> None:
    ask(started := make_group([Doer]), 0, ("neg", 1))  # what is started once for all groups
    started.stop()
    before = descriptors()
    group = make_group([Doer] * 3)
    ask(group, 0, ("neg", 1))
    group.stop()
    assert descriptors() == before


class Leaves(Doer):
    """It ends after its reply, once it is let."""

    def close(self) -> None:
        assert LET_GO.wait(100)


LET_GO = threading.Event()


def test_the_end_of_a_worker_that_leaves_is_waited_for() -> None:
    """Between its last reply and its end nothing is under way."""
    LET_GO.clear()
    group = thread_group([Leaves], on_failure="report")
    assert ask(group, 0, ("neg", 1)) == -1
    group.carrier.leave(0)
    group.expect_end(0)
    waits = threading.Thread(target=LET_GO.set)
    waits.start()
    with pytest.raises(WorkerDied):
        group.ready({0})
    waits.join()
    with pytest.raises(WorkerDied):  # again, until it is replaced
        group.ready({0})
    group.replace(0, Doer)
    assert ask(group, 0, ("neg", 2)) == -2
    group.stop()
