"""The interaction type of tensordict, one for all threads of a process, beside and after rollouts in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, current_thread, main_thread

import pytest
import torch
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from tensordict.nn.probabilistic import interaction_type

from reap.collectors.worker.exploration import BackgroundExploration
from reap.testing import Const
from tests.collectors.buffers import LIMIT, Buffer, collecting
from tests.collectors.seams import wait_for_end

RANDOM, MODE, MEAN = InteractionType.RANDOM, InteractionType.MODE, InteractionType.MEAN


@pytest.fixture(autouse=True)
def _none_is_set() -> Iterator[None]:
    assert interaction_type() is None, "a test before this one has left its own"
    with set_interaction_type(None):
        yield


# In one thread, step by step: what another one does comes between.


def test_what_was_found_is_put_back() -> None:
    exploration = BackgroundExploration(RANDOM)
    with set_interaction_type(MODE):
        with exploration:
            assert interaction_type() is RANDOM
        assert interaction_type() is MODE
    assert interaction_type() is None


def test_a_block_that_begins_in_a_rollout_and_ends_after_it_leaves_nothing() -> None:
    exploration, block = BackgroundExploration(RANDOM), set_interaction_type(MODE)
    with exploration:
        block.__enter__()
    assert interaction_type() is MODE, "the other thread's block keeps its own"
    block.__exit__(None, None, None)
    with exploration:
        assert interaction_type() is RANDOM
    assert interaction_type() is None


@pytest.mark.parametrize("second", [RANDOM, MEAN])
@pytest.mark.parametrize("is_made_in_a_rollout", [False, True])
def test_rollouts_of_two_threads_leave_nothing(second: InteractionType, is_made_in_a_rollout: bool) -> None:
    """And none of them takes the other's type away."""
    one = BackgroundExploration(RANDOM)
    other = BackgroundExploration(second)
    for _ in range(2):
        one.__enter__()
        if is_made_in_a_rollout:
            other = BackgroundExploration(second)
        other.__enter__()
        assert interaction_type() is second
        one.__exit__()
        assert interaction_type() is second
        one.end()
        assert interaction_type() is second
        other.__exit__()
        assert interaction_type() is None


def test_a_block_that_ends_in_a_rollout_leaves_nothing() -> None:
    exploration, block = BackgroundExploration(RANDOM), set_interaction_type(MODE)
    block.__enter__()
    with exploration:
        block.__exit__(None, None, None)
    for _ in range(2):
        with exploration:
            assert interaction_type() is RANDOM
        assert interaction_type() is None


def test_a_block_over_two_rollouts_leaves_nothing() -> None:
    exploration, block = BackgroundExploration(RANDOM), set_interaction_type(MODE)
    with exploration:
        block.__enter__()
    with exploration:
        block.__exit__(None, None, None)
    assert interaction_type() is None


@pytest.mark.parametrize("before", [None, MEAN])
def test_a_block_that_ends_after_the_last_rollout_leaves_nothing(before: InteractionType | None) -> None:
    with set_interaction_type(before):
        exploration, block = BackgroundExploration(RANDOM), set_interaction_type(MODE)
        with exploration:
            block.__enter__()
        block.__exit__(None, None, None)
        assert interaction_type() is RANDOM
        exploration.end()
        assert interaction_type() is before


def test_a_collector_in_the_background_leaves_nothing() -> None:
    """The block of the training loop begins in the collector's only rollout, and ends after it."""
    acts, may_go_on = Event(), Event()

    def policy(observation: torch.Tensor) -> torch.Tensor:
        if current_thread() is not main_thread():
            acts.set()
            assert may_go_on.wait(LIMIT)
        return Const(2.0)(observation)

    with collecting(Buffer(), policy=TensorDictModule(policy, ["observation"], ["action"]), total_frames=4) as collector:
        collector.start()
        assert acts.wait(LIMIT)
        with set_interaction_type(MODE):
            may_go_on.set()
            wait_for_end(collector)
            assert interaction_type() is MODE
        assert interaction_type() is RANDOM, "what the block has found is put back"
    assert interaction_type() is None
