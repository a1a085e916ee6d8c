"""Ctrl-C at each moment of what a buffer does, caught: what it holds is whole, nothing is left taken, and it goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from reap.data.samplers.sum_tree import SumTree
from reap.data.storages.ring.control import COUNT
from tests.interruptions import CtrlC
from tests.pairwise import each_value

SIZE, EPISODE = 24, 4
END = ("next", "done")


def frames(first: int, count: int) -> TensorDict:
    """Numbered frames of episodes of four; `copy` is twice the number, so that a frame that is half written is seen."""
    number = torch.arange(first, first + count)
    done = (number % EPISODE == EPISODE - 1)[:, None]
    following = TensorDict({"done": done}, [count])
    ids = TensorDict({"traj_ids": number // EPISODE}, [count])
    return TensorDict({"number": number, "copy": 2.0 * number, "collector": ids, "next": following}, [count])


def in_memory(sampler: Any = None, **options: Any) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(SIZE), sampler=sampler, batch_size=8, **options)


KINDS: dict[str, Callable[[], Any]] = {
    "memory": in_memory,
    "files": lambda: TensorDictReplayBuffer(storage=LazyMemmapStorage(SIZE), batch_size=8),
    "list": lambda: ReplayBuffer(storage=ListStorage(SIZE), batch_size=8),
    "shared": lambda: in_memory(shared=True),
    "ahead": lambda: in_memory(prefetch=2),
    "once": lambda: in_memory(SamplerWithoutReplacement()),
    "slices by end": lambda: in_memory(SliceSampler(slice_len=2, end_key=END)),
    "slices by id": lambda: in_memory(SliceSampler(slice_len=2, traj_key=("collector", "traj_ids"))),
    "slices once": lambda: in_memory(SliceSamplerWithoutReplacement(slice_len=2, end_key=END)),
    "priorities": lambda: TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=LazyTensorStorage(SIZE), batch_size=8),
    "slices by priority": lambda: in_memory(PrioritizedSliceSampler(SIZE, 0.7, 0.5, slice_len=2, end_key=END)),
}


def filled(kind: str, count: int = 20) -> Any:
    buffer = KINDS[kind]()
    buffer.extend(frames(0, count))
    buffer.sample()
    return buffer


def other_state(kind: str) -> Any:
    """That of a buffer that has begun anew once."""
    buffer = filled(kind, SIZE)
    buffer.extend(frames(SIZE, EPISODE))
    return buffer.state_dict()


def prioritise(buffer: Any) -> None:
    buffer.update_priority(torch.tensor([1, 3, 5, 7]), torch.tensor([4.0, 5.0, 6.0, 7.0]))


ACTS: dict[str, Callable[[Any], Any]] = {
    "extend": lambda buffer: buffer.extend(frames(20, 8)),
    "add": lambda buffer: buffer.add(frames(20, 1)[0]),
    "sample": lambda buffer: buffer.sample(),
    "update_priority": prioritise,
    "set": lambda buffer: buffer.__setitem__(slice(4, 8), frames(4, 4)),
    "empty": lambda buffer: buffer.empty(),
    "state_dict": lambda buffer: buffer.state_dict(),
}


def check(buffer: Any) -> None:
    """Another thread writes and samples, then this one; all that is sampled is whole, and what comes next is there."""
    assert len(buffer) in (0, 16, 20, 21, SIZE)
    assert not buffer.storage.control.writers[:, COUNT].any(), "a write that was broken off counts as one under way"
    answers: list[Any] = []
    thread = Thread(target=lambda: (buffer.extend(frames(28, 4)), answers.append(buffer.sample())), daemon=True)
    thread.start()
    thread.join(100)
    assert answers, "another thread waits for ever, or failed"
    buffer.extend(frames(32, 4))
    check_priorities(buffer.sampler)
    seen: set[int] = set()
    for sample in (*answers, *(buffer.sample() for _ in range(10))):
        assert torch.equal(2.0 * sample["number"], sample["copy"])
        seen.update(sample["number"].tolist())
        if hasattr(buffer.sampler, "slice_len"):
            starts, following = sample["number"].view(-1, 2).unbind(1)
            assert torch.equal(starts + 1, following)
            assert (starts % EPISODE != EPISODE - 1).all()
    assert seen <= set(range(36))
    assert 35 in buffer[:]["number"]


def check_priorities(sampler: Any) -> None:
    """Each sum is that of what lies below it."""
    for tree in [value for value in vars(sampler).values() if isinstance(value, SumTree)]:
        for lower, upper in pairwise(tree.sums):
            whole = lower.numpy()
            width = len(whole) // len(upper)
            np.testing.assert_allclose(whole.reshape(len(upper), width).sum(1), upper.numpy(), rtol=1e-12)


def sweep(make: Callable[[], Any], act: Callable[[Any], Any], check: Callable[[Any], None], every: int) -> None:
    """Ctrl-C at each moment of an act, each time with a new buffer, until there are no more moments.

    An act has not as many of them each time: it waits for another thread, or drops objects that are gone.
    """
    for moment in count(0, every):
        buffer, interruption = make(), CtrlC(moment)
        _, is_broken_off = interruption.call(partial(act, buffer))
        if interruption.where is None:
            assert moment, "Ctrl-C could not come"
            return
        assert is_broken_off, f"Ctrl-C in {interruption.where}, moment {moment}, was dropped"
        try:
            check(buffer)
        except Exception as error:
            error.add_note(f"after Ctrl-C in {interruption.where}, moment {moment}")
            raise


EVERY = pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.soak)])
CASES = each_value([(kind, name) for kind in KINDS for name in ACTS if name != "update_priority" or "priorit" in kind])


@EVERY
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_ctrl_c(kind: str, name: str, every: int) -> None:
    sweep(partial(filled, kind), ACTS[name], check_list if kind == "list" else check, every)


@EVERY
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_in_a_load(kind: str, every: int) -> None:
    state = other_state(kind)
    load = lambda buffer: buffer.load_state_dict(state)  # noqa: E731
    sweep(partial(filled, kind), load, check_list if kind == "list" else check, every)


def check_list(buffer: Any) -> None:
    """The same of a buffer of separate items."""
    assert len(buffer) in (0, 16, 20, 21, SIZE)
    assert not buffer.storage.control.writers[:, COUNT].any(), "a write that was broken off counts as one under way"
    buffer.extend(frames(32, 4))
    for _ in range(10):
        sample = buffer.sample()
        assert torch.equal(2.0 * sample["number"], sample["copy"])
