"""A group over gloo: messages of any size both ways, posts, wishes, and however a worker ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import struct
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reap.errors import ClosedError, OptionError, WorkerDied, WorkerRaised
from reap.workers.gloo.rendezvous import FileMeeting
from reap.workers.processes import fork_client
from reap.workers.progress import STOP
from reap.workers.remote.sockets import sockets
from tests.workers.gloo.groups import group_of, listening, pid_of, pids_of
from tests.workers.handlers import Doer, Dying, ask, descriptors, die, exists, have_ended, patience, poll_until_it_fails, watch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

LOOPBACK = "0100007F"


@dataclass
class Put:
    """A post: the latest of its type is kept."""

    array: Any


@dataclass
class Count:
    """How many posts were handled, and the first number of the last."""


class Keeper(Doer):
    """Keeps what is posted."""

    def __init__(self, worker: int, control: memoryview) -> None:
        super().__init__(worker, control)
        self.puts, self.last = 0, -1.0

    def handle(self, command: Any) -> Any:
        if isinstance(command, Put):
            self.puts, self.last = self.puts + 1, float(command.array[0])
            return None
        return (self.puts, self.last) if isinstance(command, Count) else super().handle(command)


def sized(size: int, number: int) -> Any:
    return lambda doer: np.full(size, number, np.uint8)


def raise_it(doer: Doer) -> None:
    die("raise")


@pytest.mark.parametrize("size", [0, 1, 5_000, 1 << 16, 30_000_001])
def test_arrays_of_any_size_travel_both_ways(size: int) -> None:
    group = group_of([Doer] * 2)
    sent = np.arange(size, dtype=np.uint32).astype(np.uint8)
    sent.flags.writeable = False
    for _ in range(2):
        back = ask(group, 1, ("concat", [sent], [sent]))
        assert all(np.array_equal(one, sent) for one in back)
    group.stop()


def test_a_message_of_many_parts() -> None:
    group = group_of([Doer])
    arrays = [np.full(number % 7, number, np.int16) for number in range(3_000)]
    back = ask(group, 0, ("concat", arrays, []))
    assert len(back) == 3_000
    assert all(np.array_equal(one, other) for one, other in zip(arrays, back, strict=True))
    group.stop()


def test_replies_that_are_kept_keep_their_memory() -> None:
    group = group_of([Doer])
    replies = [ask(group, 0, sized(2_000_000, number)) for number in range(6)]
    assert [int(reply.mean()) for reply in replies] == list(range(6))
    assert all((reply == reply[0]).all() for reply in replies)
    group.stop()


def test_memory_is_used_again() -> None:
    group = group_of([Doer])
    addresses = {ask(group, 0, sized(2_000_000 + number % 3, number)).ctypes.data for number in range(12)}
    assert len(addresses) <= 3
    group.stop()


def test_memory_is_that_of_the_replies_that_wait_whatever_the_number_of_workers() -> None:
    group = group_of([Doer] * 6)
    addresses = {ask(group, number % 6, sized(2_000_000, number)).ctypes.data for number in range(12)}
    assert len(addresses) <= 3
    group.stop()


def test_of_posts_to_a_busy_worker_the_latest_is_left_and_comes_before_later_commands() -> None:
    group = group_of([Keeper])
    assert ask(group, 0, Count()) == (0, -1.0)
    reader, writer = os.pipe()
    gate = Path(f"/proc/{os.getpid()}/fd/{reader}")

    def wait(doer: Doer) -> int:
        with gate.open("rb", buffering=0) as file:
            return len(file.read(1))

    group.request(0, wait)
    for number in range(50):
        group.post(0, Put(np.full(1_000_000, number, np.float32)))
    group.carrier.lines[0].outbox.flush()
    group.request(0, Count())
    os.write(writer, b"x")
    assert group.ready([0])[1] == 1
    puts, last = group.ready([0])[1]
    assert last == 49.0
    assert puts <= 2  # one may have been on its way when the next came
    group.stop()
    os.close(reader)
    os.close(writer)


def test_a_post_that_raises_ends_the_worker() -> None:
    group = group_of([Doer])
    group.post(0, raise_it)
    with pytest.raises(WorkerRaised, match="on purpose"):
        ask(group, 0, ("add", 1, 2))


def test_wishes_reach_a_busy_worker() -> None:
    group = group_of([Doer])

    def until_told(doer: Doer) -> int:
        while not doer.control[STOP]:
            time.sleep(0.001)
        return doer.control[STOP]

    group.clear(0)
    group.request(0, until_told)
    group.stop_early(0)
    assert group.ready([0])[1] == 1
    group.clear(0)
    assert ask(group, 0, lambda doer: doer.control[STOP]) == 0
    group.stop()


ENDS = {"raise": ValueError, "SystemExit": SystemExit, "os._exit": 3, "SIGKILL": -9, "SIGSEGV": -11}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("when", ["command", "start"])
def test_however_a_worker_ends(how: str, when: str) -> None:
    fork_client.server()
    before = descriptors()
    group = group_of([Doer, Dying(how) if when == "start" else Doer])
    if when == "command":
        group.request(1, lambda doer: die(how))
    group.request(0, lambda doer: time.sleep(60))
    with pytest.raises((WorkerDied, WorkerRaised)) as info:
        group.ready({0})
    expected = ENDS[how]
    if isinstance(expected, int):
        assert isinstance(info.value, WorkerDied)
        assert info.value.exit_code == expected
    else:
        assert type(info.value.__cause__) is expected
    assert info.value.worker == 1
    with pytest.raises(ClosedError):
        group.ready({0})
    assert descriptors() == before


def test_a_killed_worker_is_noticed_at_once_and_others_are_served_on() -> None:
    group = group_of([Doer] * 3, on_failure="report")
    for worker in range(3):
        ask(group, worker, ("add", worker, 1))
    os.kill(pid_of(group, 1), signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(WorkerDied, match="Worker 1 was killed by SIGKILL"):
        poll_until_it_fails(group, [0, 1, 2])
    assert time.monotonic() - begun < patience(1.0)  # milliseconds, as a rule
    assert ask(group, 2, ("add", 2, 2)) == 4
    group.replace(1, Doer)
    assert ask(group, 1, ("add", 3, 2)) == 5
    group.stop()


def test_a_worker_that_closes_its_connection_counts_as_dead() -> None:
    group = group_of([Doer])
    with pytest.raises(WorkerDied):
        ask(group, 0, lambda doer: [os.closerange(3, 200), time.sleep(60)])


def test_sigterm_lets_a_worker_deliver_and_go() -> None:
    group = group_of([Doer], on_failure="report")

    def work(doer: Doer) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return doer.control[STOP]

    group.request(0, work)
    assert group.ready([0])[1] == 2
    with pytest.raises(WorkerDied) as info:
        ask(group, 0, ("add", 1, 1))
    assert info.value.signal is signal.SIGTERM
    group.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_an_idle_worker_that_is_told_to_leave_goes_and_its_end_says_so(number: signal.Signals) -> None:
    group = group_of([Doer], on_failure="report")
    ask(group, 0, ("add", 1, 1))
    pid = pid_of(group, 0)
    os.kill(pid, number)
    with pytest.raises(WorkerDied, match=f"pid {pid}: told to leave, by {number.name}$") as info:
        poll_until_it_fails(group)
    assert "Likely cause: something outside asked it to stop" in str(info.value)
    assert (info.value.exit_code, info.value.signal) == (-number, number)
    group.stop()


def test_a_worker_that_ends_by_itself_was_not_told_to() -> None:
    group = group_of([Doer], on_failure="report")
    with pytest.raises(WorkerDied, match="ended with exit code 15 .*Likely cause: sys.exit") as info:
        ask(group, 0, lambda doer: os._exit(15))
    assert "told to leave" not in str(info.value)
    group.stop()


def test_the_last_words_of_a_worker_arrive_while_it_is_sent_much() -> None:
    for _ in range(5):
        group = group_of([Keeper])
        ask(group, 0, Count())
        group.request(0, lambda doer: die("raise"))
        for number in range(5):
            group.post(0, Put(np.full(3_000_000, number, np.float32)))
        with pytest.raises(WorkerRaised, match="on purpose"):
            group.ready([0])


@pytest.mark.parametrize("state", ["idle", "busy", "in C", "starting"])
def test_stopping_ends_workers_in_any_state_and_leaves_nothing(state: str) -> None:
    fork_client.server()
    before = descriptors()
    group = group_of([Doer] * 2)
    if state != "starting":
        ask(group, 0, ("add", 1, 1))
        ask(group, 1, ("add", 1, 1))
    if state == "busy":
        group.request(0, lambda doer: time.sleep(60))
    if state == "in C":
        group.request(0, lambda doer: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}) and time.sleep(60))
        group.request(1, lambda doer: [signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(60)])
    pids = pids_of(group)
    begun = time.monotonic()
    group.stop(1.0)
    assert time.monotonic() - begun < 30.0  # half of what a busy worker would take
    assert not any(map(exists, pids))
    assert descriptors() == before


def test_a_thread_that_ends_late_keeps_no_descriptors_of_its_process() -> None:
    fork_client.server()
    before = [one for one in descriptors() if "pidfd" in one]
    group = group_of([Doer])
    assert ask(group, 0, ("add", 1, 1)) == 2
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    line = group.carrier.lines[0]
    line.threads.append(thread)
    group.stop()
    assert [one for one in descriptors() if "pidfd" in one] == before
    ends.set()
    assert line.join(10.0)


def test_handlers_are_closed(tmp_path: Path) -> None:
    class Closing(Doer):
        def close(self) -> None:
            time.sleep(0.3)
            (tmp_path / str(self.worker)).touch()

    group = group_of([Closing] * 2)
    for worker in range(2):
        ask(group, worker, ("add", 1, 1))
    group.stop()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["0", "1"]


def test_nothing_listens_but_on_the_loopback_interface() -> None:
    group = group_of([Doer] * 2)
    for worker in range(2):
        ask(group, worker, ("add", 1, 1))
    assert set(listening()) == {LOOPBACK}
    group.stop()
    assert listening() == []


def test_processes_of_this_machine_meet_in_a_private_folder_that_is_gone_when_they_have() -> None:
    meeting = FileMeeting()
    folder = Path(meeting.invitation("worker").place).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    meeting.forget("worker")
    assert not folder.exists()


def test_a_default_process_group_is_neither_needed_nor_made() -> None:
    group = group_of([Doer])
    assert ask(group, 0, lambda doer: torch.distributed.is_initialized()) is False
    assert not torch.distributed.is_initialized()
    group.stop()


def test_descriptors_are_refused() -> None:
    group = group_of([Doer])
    with pytest.raises(OptionError, match="descriptors do not travel"):
        group.request(0, "x", [0])
    group.stop()


def test_a_reply_that_cannot_travel_is_an_error_that_names_it() -> None:
    group = group_of([Doer])
    with pytest.raises(WorkerRaised, match="the reply: cannot be sent"):
        ask(group, 0, lambda doer: threading.Lock())


def test_a_dropped_group_ends_its_workers() -> None:
    group = group_of([Doer] * 2)
    ended = watch(pids_of(group))
    del group
    assert have_ended(ended)


def test_many_workers_at_once() -> None:
    group = group_of([Doer] * 12)
    for worker in range(12):
        group.request(worker, ("add", worker, 1))
    assert sorted(group.ready(range(12))[1] for _ in range(12)) == list(range(1, 13))
    group.stop()


def test_what_is_known_of_a_worker() -> None:
    group = group_of([Doer], on_failure="report")
    ask(group, 0, sized(1_000_000, 1))
    facts = group.facts(0)
    assert (facts.host, facts.node) == (os.uname().nodename, "")
    assert 1_000_000 < facts.bytes < 1_100_000
    assert facts.transfer_seconds > 0
    os.kill(pid_of(group, 0), signal.SIGKILL)
    with pytest.raises(WorkerDied):
        ask(group, 0, ("add", 1, 1))
    group.replace(0, Doer)
    ask(group, 0, sized(1_000_000, 1))
    assert group.facts(0).bytes > 2_000_000
    group.stop()


def dies_in_the_middle(doer: Doer) -> Any:
    """Send a reply, and be killed when a part of it has left."""

    def unsent(one: str) -> int:
        return struct.unpack("i", fcntl.ioctl(int(one), termios.TIOCOUTQ, bytes(4)))[0]

    def watch_and_die() -> None:
        while True:
            for one in sockets():
                with contextlib.suppress(OSError):  # one that listens
                    if unsent(one) > 10_000:
                        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch_and_die, daemon=True).start()
    return np.ones(400_000_000, np.uint8)


def test_a_worker_that_dies_with_a_reply_half_sent_is_noticed_and_nothing_is_left() -> None:
    fork_client.server()
    before = descriptors()
    group = group_of([Doer] * 2)
    ask(group, 1, ("add", 1, 1))
    group.request(0, dies_in_the_middle)
    with pytest.raises(WorkerDied, match="Worker 0 was killed by SIGKILL"):
        group.ready([0])
    assert descriptors() == before


def test_a_worker_that_dies_with_a_command_half_sent_is_noticed_and_nothing_is_left() -> None:
    fork_client.server()
    before = descriptors()
    group = group_of([Doer])
    ask(group, 0, ("add", 1, 1))
    pid = pid_of(group, 0)
    group.post(0, Put(np.ones(100_000_000, np.float32)))
    while group.carrier.lines[0].outbox.waiting:
        time.sleep(0.0001)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        ask(group, 0, ("add", 1, 1))
    assert descriptors() == before


def test_a_worker_that_stands_still_loses_nothing() -> None:
    group = group_of([Keeper])
    ask(group, 0, Count())
    pid = pid_of(group, 0)
    os.kill(pid, signal.SIGSTOP)
    group.post(0, Put(np.ones(5_000_000, np.float32)))
    group.request(0, Count())
    time.sleep(0.5)
    assert group.poll([0]) is None
    os.kill(pid, signal.SIGCONT)
    assert group.ready([0])[1] == (1, 1.0)
    group.stop()
