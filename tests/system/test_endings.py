"""What is done where an object ends runs no line of Python, into which Ctrl-C could come and be lost."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from weakref import ref

import pytest
import torch

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Block, Field
from reap.recording.pool import SlotPool
from reap.system import endings
from reap.system.endings import FEWEST, KeptReferences, WeakValues, at_end, numbered
from reap.system.forks import References
from reap.testing import Const, Count
from tests.interruptions import CtrlC, moments_of


class Thing:
    """Can be referred to."""


def lines_of(function: Callable[[], Any]) -> list[str]:
    """The functions written in Python that run in a call of one written in C."""
    called: list[str] = []

    def note(frame: Any, event: str, _argument: Any) -> None:
        if event == "call":
            called.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return called


def test_a_number_is_handed_over() -> None:
    ended: list[Any] = []
    things = [Thing()]
    kept = numbered(things[0], 5, ended.append)
    assert lines_of(things.clear) == []
    assert ended == [kept]
    assert kept.number == 5
    assert kept() is None


def test_descriptors_are_closed() -> None:
    things, descriptors = [Thing() for _ in range(200)], [os.eventfd(0) for _ in range(200)]
    for thing, descriptor in zip(things, descriptors, strict=True):
        at_end(thing, os.close, descriptor)
    del thing
    assert lines_of(things.clear) == []
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


FIELDS = {("pixels",): Field((400,), torch.uint8), ("reward",): Field((1,), torch.float32)}


def test_a_lent_slot_comes_back() -> None:
    pool = SlotPool(FIELDS, (2,), 3)
    for _ in range(3):
        index = pool.take()
        assert index == 0
        batches = [pool.deliver(index)]
        assert pool.lent == 1
        leaves = [batches[0]["pixels"][1, 2:]]
        batches.clear()
        assert pool.lent == 1, "a piece is kept"
        assert lines_of(leaves.clear) == []
        assert pool.lent == 0


def test_the_memory_of_a_shared_block_is_given_back() -> None:
    blocks = [Block.shared(SlotPool(FIELDS, (2,), 3).layout)]
    descriptor = blocks[0].fd
    assert descriptor is not None
    assert lines_of(blocks.clear) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.processes
def test_batches_of_a_collector_and_its_end() -> None:
    """The slots of a `SerialEnv` with envs of several kinds have parts, which end with them."""

    def make() -> SerialEnv:
        return SerialEnv(2, lambda: SerialEnv(1, lambda: GymEnv(Count(5))))

    def held() -> dict[int, Any]:
        gc.collect()
        return {id(one): one for one in gc.get_objects() if type(one) is Slot or type(one) is Stage}

    others = held()  # of tests before this one
    collector = [SyncDataCollector(make, Const(), frames_per_batch=1000)]
    batches = [collector[0].next()]
    assert lines_of(batches.clear) == []
    assert held().keys() - others.keys()
    collector[0].shutdown()
    collector.clear()
    assert not held().keys() - others.keys()


def test_values_that_are_gone_make_room() -> None:
    values: WeakValues[int, Thing] = WeakValues()
    kept = [values.setdefault(number, Thing()) for number in range(10)]
    for number in range(10, 500):
        values.setdefault(number, Thing())
    for number, one in enumerate(kept):
        assert values.setdefault(number, Thing()) is one
    other = Thing()
    assert values.setdefault(300, other) is other
    assert values.setdefault(300, Thing()) is other


def test_references_to_freed_objects_are_dropped() -> None:
    references: KeptReferences[ref[Thing]] = KeptReferences()
    things = [Thing() for _ in range(10)]
    for number in range(500):
        references.keep(number, ref(things[number] if number < 10 else Thing()))
        assert len(references) <= 2 * len(things) + FEWEST
    assert [references[number]() for number in range(10)] == things


def full() -> References[Thing]:
    """References of which the next to be added makes it drop those to freed objects."""
    references: References[Thing] = References()
    for _ in range(FEWEST):
        references.add(Thing())
    return references


def test_a_pass_that_ctrl_c_ends_leaves_less_to_the_next_one() -> None:
    thing = Thing()
    whole = moments_of(lambda: full().add(thing)) - moments_of(full)
    references = full()
    _, is_broken_off = CtrlC(whole // 2).call(lambda: references.add(thing))
    assert is_broken_off
    assert moments_of(lambda: references.add(thing)) < 0.6 * whole
    assert references.alive() == [thing, thing]


def test_what_another_thread_adds_while_freed_objects_are_dropped_is_kept() -> None:
    references = full()
    added: list[Thing] = []

    def add() -> None:
        added.append(Thing())
        references.add(added[-1])

    def at_each_moment(frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename == endings.__file__:
            frame.f_trace_opcodes = True
            sys.settrace(None)
            add()
            sys.settrace(at_each_moment)
        return at_each_moment

    first = Thing()
    earlier = sys.gettrace()
    sys.settrace(at_each_moment)
    references.add(first)
    sys.settrace(earlier)
    assert len(added) > 10, "there were moments for others to add"
    assert {id(one) for one in references.alive()} == {id(one) for one in (first, *added)}
