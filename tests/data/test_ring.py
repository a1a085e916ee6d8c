"""`Ring`: which columns can be read while they are claimed, written, published, given up, or left behind by a dead writer."""

from __future__ import annotations

import copy
import os
import pickle
import re
import threading
from typing import Any

import numpy as np
import pytest

from reap.data.storages.ring.control import BIRTH, BUSY, CLAIMED, COUNT, PID, START, WRITERS, Control
from reap.data.storages.ring.ring import Ring
from tests.data.claims import claimed
from tests.machine import impatient
from tests.warned import on_warning


@pytest.fixture(params=["private", "shared"])
def ring(request: pytest.FixtureRequest) -> Ring:
    control = Control(20)
    return Ring(control.shared() if request.param == "shared" else control, capacity=10)


def window(ring: Ring) -> tuple[int, int, int]:
    return ring.oldest, ring.claimed, ring.readable


def write(ring: Ring, columns: int) -> None:
    ring.publish(claimed(ring, columns), columns)


def kill_writer(ring: Ring, entry: int) -> None:
    """Have the table say that an entry's process began at another time: its number is now another process's."""
    ring.control.writers[entry, BIRTH] -= 1


def test_columns_are_counted_forever(ring: Ring) -> None:
    assert window(ring) == (0, 0, 0)
    for written, expected in ((4, (0, 4, 4)), (6, (0, 10, 10)), (3, (3, 13, 10)), (10, (13, 23, 10))):
        write(ring, written)
        assert window(ring) == expected
    assert ring.written == 23


def test_what_is_claimed_hides_what_it_overwrites_and_is_read_when_published(ring: Ring) -> None:
    write(ring, 10)
    claim = claimed(ring, 4)
    assert (claim.start, claim.columns) == (10, 4)
    assert window(ring) == (4, 14, 6)
    assert ring.settled == 10
    ring.publish(claim, 4)
    assert window(ring) == (4, 14, 10)
    assert ring.settled == 14


def test_several_writers_publish_in_any_order(ring: Ring) -> None:
    first, second, third = claimed(ring, 2), claimed(ring, 3), claimed(ring, 1)
    assert [claim.start for claim in (first, second, third)] == [0, 2, 5]
    assert len({claim.entry for claim in (first, second, third)}) == 3
    ring.publish(second, 3)
    assert (ring.readable, ring.settled) == (3, 0)
    assert ring.filled(0, 6).tolist() == [False, False, True, True, True, False]
    ring.publish(first, 2)
    assert (ring.readable, ring.settled) == (5, 5)
    ring.publish(third, 1)
    assert (ring.readable, ring.settled, ring.written) == (6, 6, 6)
    assert ring.control.words[BUSY] == 0


def test_what_was_given_up_is_never_read_and_is_written_over(ring: Ring) -> None:
    write(ring, 2)
    ring.give_up(claimed(ring, 3))
    write(ring, 4)
    assert window(ring) == (0, 9, 6)
    assert (ring.settled, ring.written) == (9, 6)
    assert list(ring.under_way()) == [(2, 3)]
    write(ring, 4)  # over the first three columns: one of those that were given up is left over
    assert window(ring) == (3, 13, 8)
    write(ring, 2)
    assert window(ring) == (5, 15, 10)
    assert ring.control.words[BUSY] == 0
    assert list(ring.under_way()) == []


def test_a_writer_that_is_gone_counts_as_one_that_gave_up(ring: Ring) -> None:
    claim = claimed(ring, 3)
    kill_writer(ring, claim.entry)
    write(ring, 4)
    assert (window(ring), ring.settled) == ((0, 7, 4), 7)
    write(ring, 6)
    assert window(ring) == (3, 13, 10)


def test_a_process_that_does_not_exist_is_gone(ring: Ring) -> None:
    claim = claimed(ring, 3)
    ring.control.writers[claim.entry, PID] = 2**22 + 1
    assert ring.settled == 3


def test_a_writer_that_was_killed_while_it_claimed_leaves_its_columns_to_the_next(ring: Ring) -> None:
    write(ring, 2)
    ring.control.writers[5] = 1, 1, 2, 4
    ring.control.words[BUSY] += 1
    assert ring.control.words[CLAIMED] == 2
    write(ring, 3)
    assert window(ring) == (0, 5, 5)
    assert ring.control.words[BUSY] == 0


def test_a_claim_waits_for_a_slow_writer_in_whose_place_it_would_write(ring: Ring) -> None:
    slow = claimed(ring, 4)
    write(ring, 6)
    claims: list[int] = []
    waiting = threading.Thread(target=lambda: claims.append(claimed(ring, 1).start))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert claims == []
    ring.publish(slow, 4)
    waiting.join()
    assert claims == [10]


def test_too_many_writers_are_refused() -> None:
    ring = Ring(Control(1000), 1000)
    for _ in range(WRITERS):
        claimed(ring, 1)
    with pytest.raises(RuntimeError, match=f"all {WRITERS} concurrent write slots are in use"):
        claimed(ring, 1)


def test_a_reader_is_told_what_was_touched(ring: Ring) -> None:
    write(ring, 10)
    places = np.arange(10)
    reading = ring.begin_reading()
    assert ring.is_untouched(reading)
    assert not ring.touched(places, reading).any()
    claim = claimed(ring, 3)
    assert not ring.is_untouched(reading)
    assert ring.touched(places, reading).nonzero()[0].tolist() == [0, 1, 2]
    during = ring.begin_reading()
    ring.publish(claim, 3)
    # What was being written when the reader began is not to be trusted, also if it is published by now.
    assert not ring.is_untouched(during)
    assert ring.touched(places, during).nonzero()[0].tolist() == [0, 1, 2]
    assert ring.is_untouched(ring.begin_reading())


@pytest.mark.parametrize("columns", [4, 10])
def test_touched_columns_may_lie_around_the_end(ring: Ring, columns: int) -> None:
    write(ring, 8)
    reading = ring.begin_reading()
    write(ring, columns)
    expected = sorted((8 + i) % 10 for i in range(columns))
    assert ring.touched(np.arange(10), reading).nonzero()[0].tolist() == expected


def test_after_a_whole_round_everything_is_touched(ring: Ring) -> None:
    write(ring, 8)
    reading = ring.begin_reading()
    write(ring, 7)
    write(ring, 7)
    assert ring.touched(np.arange(10), reading).all()


def test_edits_are_noticed(ring: Ring) -> None:
    write(ring, 5)
    reading = ring.begin_reading()
    with ring.editing():
        during = ring.begin_reading()
        assert ring.is_edited(reading)
        assert ring.is_edited(during)
    assert ring.is_edited(reading)
    assert ring.is_edited(during)
    assert not ring.is_edited(ring.begin_reading())


def test_an_edit_that_fails_ends(ring: Ring) -> None:
    write(ring, 5)
    with pytest.raises(KeyError), ring.editing():
        raise KeyError
    assert not ring.is_edited(ring.begin_reading())


def test_empty_begins_at_the_first_place(ring: Ring) -> None:
    write(ring, 7)
    write(ring, 6)
    reading = ring.begin_reading()
    ring.empty()
    assert window(ring) == (20, 20, 0)
    assert ring.written == 0
    write(ring, 3)
    assert window(ring) == (20, 23, 3)
    assert ring.touched(np.arange(10), reading).all()
    ring.empty(forget_written=False)
    assert (ring.oldest, ring.written) == (30, 3)


def test_a_window_is_of_one_moment(ring: Ring) -> None:
    """A writer that goes round the ring between two looks at it does not make the window negative."""
    write(ring, 7)
    words = ring.control.words

    class Moving:
        def __getitem__(self, place: int) -> int:
            found = words[place]
            if place == CLAIMED:
                words[CLAIMED] += 25
            return found

    control: Any = copy.copy(ring.control)
    control.words = Moving()
    reader = Ring(control, ring.capacity)
    assert reader.window == (0, 7)
    assert reader.window == (22, 32)


def test_streams_have_numbers_of_their_own(ring: Ring) -> None:
    assert [ring.new_streams(count) for count in (1, 3, 2)] == [0, 1, 4]


def test_a_shared_ring_is_one_ring() -> None:
    ring = Ring(Control(20).shared(), 10)
    write(ring, 4)
    other = Ring(pickle.loads(pickle.dumps(ring.control)), 10)
    write(other, 4)
    assert window(ring) == window(other) == (0, 8, 8)
    assert ring.control.writers is not other.control.writers


def test_a_private_ring_is_copied() -> None:
    ring = Ring(Control(20), 10)
    write(ring, 4)
    other = Ring(pickle.loads(pickle.dumps(ring.control)), 10)
    write(other, 4)
    assert (ring.claimed, other.claimed) == (4, 8)


def test_sharing_keeps_what_is_known() -> None:
    control = Control(20)
    ring = Ring(control, 10)
    write(ring, 4)
    control.note_schema({"a": 1})
    shared = control.shared()
    assert (Ring(shared, 10).claimed, shared.schema, shared.shared()) == (4, {"a": 1}, shared)
    assert np.array_equal(shared.writers[:, [PID, START, COUNT]], control.writers[:, [PID, START, COUNT]])


def test_a_schema_that_is_too_long_is_refused() -> None:
    with pytest.raises(MemoryError, match="expected at most 262144 bytes"):
        Control(1).note_schema("x" * 300_000)


def test_a_write_that_was_broken_off_between_two_lines_is_given_up_by_its_thread(ring: Ring) -> None:
    write(ring, 4)
    ring.claim(3)  # and then Ctrl-C
    assert ring.readable == 4
    assert not ring.is_being_written
    for _ in range(4):
        write(ring, 5)
    assert (ring.readable, list(ring.under_way())) == (10, [])


def test_what_is_whole_is_said_by_place(ring: Ring) -> None:
    assert ring.whole() == slice(0, 0)
    write(ring, 4)
    assert ring.whole() == slice(0, 4)
    last = claimed(ring, 3)
    assert ring.whole() == slice(0, 4)
    write(ring, 1)
    whole = ring.whole()
    assert isinstance(whole, np.ndarray)
    assert whole.tolist() == [0, 1, 2, 3, 7]
    ring.publish(last, 3)
    assert ring.whole() == slice(0, 8)
    ring.give_up(claimed(ring, 4))  # at 8, 9, 0, 1
    assert ring.whole() == slice(2, 8)
    write(ring, 1)
    write(ring, 5)
    assert ring.whole() == slice(2, 8)  # 8, 9, 0 and 1 are holes still: what was written lies at 2 to 8
    write(ring, 4)
    assert ring.whole() == slice(0, 10)


def test_any_number_of_writes_may_be_broken_off_and_no_frame_is_lost() -> None:
    ring = Ring(Control(3 * 2 * WRITERS).shared(), 3 * 2 * WRITERS)
    for _ in range(2 * WRITERS):
        write(ring, 2)
        ring.give_up(claimed(ring, 1))
    assert (ring.readable, ring.written, len(list(ring.under_way()))) == (4 * WRITERS, 4 * WRITERS, 2 * WRITERS)
    filled = ring.filled(0, ring.claimed)
    assert filled.tolist() == [True, True, False] * 2 * WRITERS
    assert ring.touched(np.arange(ring.capacity), ring.begin_reading()).tolist() == (~filled).tolist()
    twin = Ring(pickle.loads(pickle.dumps(ring.control)), ring.capacity)
    assert twin.filled(0, twin.claimed).tolist() == filled.tolist()
    write(ring, 7)
    assert [*ring.filled(ring.oldest, ring.claimed)] == [*filled[7:], *[True] * 7]
    write(twin, ring.capacity - 7)
    assert (ring.readable, twin.readable, list(ring.under_way())) == (ring.capacity, ring.capacity, [])


def test_killed_writers_make_room_for_others_when_the_table_is_full() -> None:
    ring = Ring(Control(10 * WRITERS).shared(), 10 * WRITERS)
    for _ in range(3 * WRITERS):
        kill_writer(ring, claimed(ring, 1).entry)
    write(ring, 2)
    assert (ring.readable, ring.written, ring.settled) == (2, 2, 3 * WRITERS + 2)
    assert ring.filled(0, ring.claimed).tolist() == [False] * 3 * WRITERS + [True] * 2


def test_holes_are_kept_with_a_state() -> None:
    ring = Ring(Control(10), 10)
    write(ring, 2)
    ring.give_up(claimed(ring, 3))
    write(ring, 2)
    other = Ring(Control(10).shared(), 10)
    other.control.restore(ring.control.state(10))
    for held in (ring, other):
        assert held.filled(0, 7).tolist() == [True, True, False, False, False, True, True]
        assert held.readable == 4
    other.empty()
    write(other, 3)
    assert (other.readable, other.whole()) == (3, slice(0, 3))


def test_room_is_made_before_anything_is_claimed(ring: Ring) -> None:
    asked: list[int] = []
    for columns in (4, 4, 5, 10):
        ring.publish(ring.claim(columns, asked.append), columns)
    assert asked == [4, 8, 10, 10]  # places: the third write goes round

    def refuse(columns: int) -> None:
        raise MemoryError(columns)

    before = window(ring)
    with pytest.raises(MemoryError, match="8"):
        ring.claim(5, refuse)  # from 3 on
    assert (window(ring), list(ring.under_way())) == (before, [])


def test_a_wait_for_a_writer_says_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, 0.01)
    ring = Ring(Control(20).shared(), 10)
    slow = claimed(ring, 4)
    warned: list[str] = []

    def warn(message: str, kind: type[Warning]) -> None:
        warned.append(message)
        ring.publish(slow, 4)

    with on_warning(warn):
        write(ring, 8)
    [message] = warned
    assert re.fullmatch(
        rf"waited for \d+ s: this process \({os.getpid()}\): it is in a write of 4 columns to a "
        "replay buffer, which has come round to it. The wait continues; Ctrl-C ends it",
        message,
    )
    assert window(ring) == (2, 12, 10)
