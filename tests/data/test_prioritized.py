"""`PrioritizedSampler`: which frames it draws and how often, their weights, and what new frames and others' writes do to it."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.uniform import RandomSampler
from reap.data.storages import LazyTensorStorage
from reap.errors import CallOrderError, OptionError, ReapError
from tests.data.claims import claimed


def made(size: int, alpha: float = 1.0, beta: float = 1.0, *, ndim: int = 1, eps: float = 0.0, **options: Any) -> ReplayBuffer:
    sampler = PrioritizedSampler(size, alpha, beta, eps, **options)
    generator = torch.Generator().manual_seed(0)
    return ReplayBuffer(storage=LazyTensorStorage(size, ndim=ndim), sampler=sampler, generator=generator)


def holding(*priorities: float, **options: Any) -> ReplayBuffer:
    """A full buffer of the numbers 0, 1, ..., with these priorities."""
    buffer = made(len(priorities), **options)
    buffer.update_priority(buffer.extend(torch.arange(len(priorities))), torch.tensor(priorities, dtype=torch.float64))
    return buffer


def drawn(buffer: ReplayBuffer, count: int = 500) -> set[int]:
    return set(buffer.sample(count).tolist())


def powers(buffer: ReplayBuffer) -> list[float]:
    """(priority + eps) ** alpha by place, once all that was written is known."""
    buffer.update_priority(torch.empty(0, dtype=torch.int64), 1.0)
    return buffer.sampler.state_dict()["powers"].tolist()


# ---------------------------------------------------------------------- draws


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0])
def test_frames_come_in_proportion_to_their_priorities(alpha: float) -> None:
    priorities = [0.5, 4.0, 1.0, 0.1, 2.0, 9.0, 0.3, 7.0, 0.02, 1.0]
    buffer = holding(*priorities, alpha=alpha)
    counts = Counter(buffer.sample(50_000).tolist())
    total = sum(priority**alpha for priority in priorities)
    shares = [50_000 * priority**alpha / total for priority in priorities]
    # χ² with 9 degrees of freedom: above 27.9 once in a thousand.
    assert sum((counts[place] - share) ** 2 / share for place, share in enumerate(shares)) < 27.9


def test_frequencies_in_a_wrapped_ring_of_rows() -> None:
    buffer = made(12, ndim=2)
    for start in (0, 10):
        index = buffer.extend((torch.arange(10) + 100 * start).view(2, 5))
        buffer.update_priority(index, torch.arange(1.0, 11.0))
    assert buffer[:].tolist() == [[1001, 1002, 1003, 1004, 4, 1000], [1006, 1007, 1008, 1009, 9, 1005]]
    expected = {1000 + n: 1.0 + n for n in range(10)} | {4: 5.0, 9: 10.0}
    counts, total = Counter(buffer.sample(50_000).tolist()), sum(expected.values())
    shares = {number: 50_000 * priority / total for number, priority in expected.items()}
    # χ² with 11 degrees of freedom: above 31.3 once in a thousand.
    assert sum((counts[number] - share) ** 2 / share for number, share in shares.items()) < 31.3
    assert set(counts) == set(expected)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_weights(alpha: float, beta: float) -> None:
    """(N P(i)) ** -beta over the largest of the whole buffer, whatever is in the sample."""
    priorities = torch.tensor([0.25, 3.0, 1.0, 0.5, 8.0], dtype=torch.float64)
    buffer = holding(*priorities.tolist(), alpha=alpha, beta=beta)
    sample, info = buffer.sample(64, return_info=True)
    shares = priorities**alpha / (priorities**alpha).sum()
    weights = (5 * shares) ** -beta
    torch.testing.assert_close(info["priority_weight"], (weights / weights.max())[sample].float())
    assert info["priority_weight"].dtype == torch.float32
    assert info["_weight"].equal(info["priority_weight"])
    one = buffer.sample(1, return_info=True)
    torch.testing.assert_close(one[1]["priority_weight"], (weights / weights.max())[one[0]].float())


def test_the_exponent_is_applied_once() -> None:
    buffer = holding(4.0, 9.0, 0.25, alpha=0.5, eps=0.25)
    assert powers(buffer) == [4.25**0.5, 9.25**0.5, 0.5**0.5]


def test_beta_can_grow_meanwhile() -> None:
    buffer = holding(1.0, 4.0, beta=0.0)
    assert buffer.sample(9, return_info=True)[1]["priority_weight"].tolist() == [1.0] * 9
    buffer.sampler.beta = 0.5  # type: ignore[attr-defined]
    assert set(buffer.sample(50, return_info=True)[1]["priority_weight"].tolist()) == {1.0, 0.5}


def test_alpha_can_change_meanwhile() -> None:
    buffer = made(4, alpha=0.5)
    buffer.update_priority(buffer.extend(torch.arange(2)), torch.tensor([16.0, 4.0]))
    sampler = buffer.sampler
    assert isinstance(sampler, PrioritizedSampler)
    sampler.alpha = 1.0
    assert powers(buffer) == [16.0, 4.0, 0.0, 0.0]
    buffer.extend(torch.arange(1))
    assert powers(buffer) == [16.0, 4.0, 16.0, 0.0]
    sampler.alpha = 0.0
    assert powers(buffer) == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(OptionError, match="cannot be changed from 0"):
        sampler.alpha = 0.5
    fresh = PrioritizedSampler(4, 0.0, 0.0)
    fresh.alpha = 1.0
    assert (fresh.alpha, fresh.state_dict()["largest"]) == (1.0, 1.0 + 1e-8)


def test_a_frame_of_priority_0_is_never_drawn_without_eps() -> None:
    assert drawn(holding(0.0, 1.0, 0.0, 2.0, 0.0)) == {1, 3}
    assert drawn(holding(0.0, 1.0, 0.0, eps=1.0)) == {0, 1, 2}


def test_where_all_priorities_are_0() -> None:
    buffer = holding(0.0, 0.0)
    with pytest.raises(CallOrderError, match="a priority above 0, found 0 for all; give some another priority, or eps"):
        buffer.sample(2)
    buffer.update_priority(torch.tensor([1]), 2.0)
    assert drawn(buffer) == {1}
    assert drawn(holding(0.0, 0.0, eps=1e-8)) == {0, 1}
    assert drawn(holding(0.0, 0.0, alpha=0.0)) == {0, 1}


# ---------------------------------------------------------------------- new frames


def test_new_frames_get_the_largest_priority_so_far() -> None:
    buffer = made(6, alpha=0.5)
    index = buffer.extend(torch.arange(3))
    assert powers(buffer) == [1.0, 1.0, 1.0, 0, 0, 0]
    buffer.update_priority(index, torch.tensor([0.25, 4.0, 0.0625]))
    buffer.extend(torch.arange(1))
    assert powers(buffer) == [0.5, 2.0, 0.25, 2.0, 0, 0]
    buffer.update_priority(index, 0.01)  # what was the largest stays it
    buffer.extend(torch.arange(4))
    assert powers(buffer) == [2.0, 2.0, 0.1, 2.0, 2.0, 2.0]


def test_before_priorities_above_1_are_known_new_frames_get_1() -> None:
    buffer = made(3)
    buffer.update_priority(buffer.extend(torch.arange(2)), 0.5)
    buffer.extend(torch.arange(1))
    assert powers(buffer) == [0.5, 0.5, 1.0]


def test_the_largest_priority_within_the_buffer() -> None:
    buffer = made(3, max_priority_within_buffer=True)
    buffer.update_priority(buffer.extend(torch.arange(3)), torch.tensor([9.0, 0.5, 0.25]))
    buffer.extend(torch.arange(1))  # over the one that has 9
    assert powers(buffer) == [0.5, 0.5, 0.25]
    buffer.update_priority(torch.tensor([0]), 4.0)
    buffer.extend(torch.arange(1))
    assert powers(buffer) == [4.0, 4.0, 0.25]
    buffer.extend(torch.arange(3))  # no other frame is left
    assert powers(buffer) == [1.0, 1.0, 1.0]


def test_a_frame_that_overwrites_another_has_nothing_of_it() -> None:
    buffer = holding(100.0, 100.0, 1.0, 1.0)
    buffer.update_priority(torch.tensor([0, 1]), torch.tensor([0.0, 0.0]))
    buffer.extend(torch.arange(10, 13))
    assert powers(buffer) == [100.0, 100.0, 100.0, 1.0]


def test_frames_that_are_being_written_are_left_out_until_they_are() -> None:
    buffer = holding(1.0, 2.0, 3.0, 4.0, 5.0)
    ring = buffer.storage.ring
    claims = [claimed(ring, 2), claimed(ring, 1)]
    assert powers(buffer) == [0, 0, 0, 4.0, 5.0]
    assert drawn(buffer) == {3, 4}
    buffer.update_priority(torch.arange(5), 7.0)  # of frames that are gone by now, too
    assert powers(buffer) == [0, 0, 0, 7.0, 7.0]
    ring.publish(claims[0], 2)
    assert powers(buffer) == [7.0, 7.0, 0, 7.0, 7.0]
    ring.give_up(claims[1])
    assert powers(buffer) == [7.0, 7.0, 0, 7.0, 7.0]
    buffer.extend(torch.arange(10, 14))  # comes round to what was given up
    buffer.extend(torch.arange(14, 15))
    assert powers(buffer) == [7.0] * 5
    assert drawn(buffer) == set(range(10, 15))


def test_where_all_frames_are_being_written() -> None:
    buffer = holding(1.0, 2.0)
    claim = claimed(buffer.storage.ring, 2)
    with pytest.raises(CallOrderError, match="none whose writing has ended"):
        buffer.sample(1)
    buffer.storage.ring.publish(claim, 2)
    assert drawn(buffer) == {0, 1}


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("before", [3, 4, 9])
def test_an_emptied_buffer_starts_with_first_priorities(before: int, elsewhere: bool) -> None:
    buffer = made(4)
    buffer.extend(torch.arange(before))
    buffer.update_priority(torch.arange(3), 50.0)
    if elsewhere:
        buffer.storage.ring.empty()
    else:
        buffer.empty()
    with pytest.raises(CallOrderError):
        buffer.sample(1)
    buffer.extend(torch.arange(2))
    assert powers(buffer) == [1.0, 1.0, 0, 0]


def test_a_frame_overwritten_while_it_is_taken_is_drawn_again() -> None:
    """And with the weights of what is in the sample in the end."""
    buffer = holding(1.0, 1.0, 1.0, 1.0, beta=1.0)
    storage, real = buffer.storage, buffer.storage.take
    claims: list[Any] = []

    def slow(places: Any) -> Any:
        data = real(places)
        if not claims:
            claims.append(claimed(storage.ring, 3))
        return data

    storage.take = slow  # type: ignore[method-assign]
    sample, info = buffer.sample(40, return_info=True)
    assert set(sample.tolist()) == {3}
    assert info["priority_weight"].tolist() == [1.0] * 40


# ---------------------------------------------------------------------- updates


@pytest.mark.parametrize("form", ["pairs", "tuple", "list"])
def test_the_index_of_rows(form: str) -> None:
    buffer = made(8, ndim=2)
    index = buffer.extend(torch.arange(6).view(2, 3))
    given = {"pairs": index, "tuple": tuple(index.unbind(-1)), "list": index.tolist()}[form]
    buffer.update_priority(given, torch.arange(1.0, 7.0))
    assert powers(buffer) == [1.0, 2.0, 3.0, 0, 4.0, 5.0, 6.0, 0]


@pytest.mark.parametrize("index", [torch.tensor([1, 2]), [1, 2], (1, 2), torch.tensor([[1], [2]])])
@pytest.mark.parametrize("priority", [5.0, [5.0, 5.0], torch.full((2, 1), 5.0), torch.tensor(5.0, requires_grad=True)])
def test_the_index_of_one_dimension(index: Any, priority: Any) -> None:
    buffer = made(4)
    buffer.extend(torch.arange(4))
    buffer.update_priority(index, priority)
    assert powers(buffer) == [1.0, 5.0, 5.0, 1.0]


def test_the_last_of_several_priorities_for_a_frame_stays() -> None:
    buffer = made(4)
    buffer.extend(torch.arange(4))
    buffer.update_priority(torch.tensor([2, 1, 2, 2]), torch.tensor([9.0, 3.0, 8.0, 0.5]))
    assert powers(buffer) == [1.0, 3.0, 0.5, 1.0]


def test_a_frame_that_was_not_kept_is_left_out() -> None:
    buffer = made(4)
    buffer.extend(torch.arange(3))
    buffer.update_priority(torch.tensor([-1, 2, -1]), torch.tensor([9.0, 3.0, 8.0]))
    assert powers(buffer) == [1.0, 1.0, 3.0, 0]


def test_a_place_without_a_frame_is_left_out() -> None:
    buffer = made(4)
    buffer.extend(torch.arange(2))
    buffer.update_priority(torch.arange(4), 5.0)
    assert powers(buffer) == [5.0, 5.0, 0, 0]
    assert drawn(buffer) == {0, 1}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), -1e-9, 1e308])
def test_priorities_that_are_none_change_nothing(bad: float) -> None:
    buffer = holding(1.0, 2.0, 3.0)
    before = buffer.sampler.state_dict()
    with pytest.raises(OptionError, match=r"priority: expected finite numbers from 0 on, got .*; nothing was changed"):
        buffer.update_priority(torch.tensor([0, 1]), torch.tensor([5.0, bad], dtype=torch.float64))
    after = buffer.sampler.state_dict()
    assert after.pop("powers").equal(before.pop("powers"))
    assert after == before


@pytest.mark.parametrize(
    ("index", "priority", "error", "words"),
    [
        (torch.tensor([0, 3]), 1.0, OptionError, "expected places from 0 to 2, got 3"),
        (torch.tensor([-2]), 1.0, OptionError, "expected places from 0 to 2, got -2"),
        (torch.tensor([0, 1]), torch.ones(3), OptionError, "one for each of 2 frames, got 3"),
    ],
)
def test_updates_that_cannot_be(index: Any, priority: Any, error: type[ReapError], words: str) -> None:
    buffer = holding(1.0, 2.0, 3.0)
    with pytest.raises(error, match=words):
        buffer.update_priority(index, priority)
    assert powers(buffer) == [1.0, 2.0, 3.0]


def test_before_the_first_write() -> None:
    for call in (lambda: made(3).sample(1), lambda: made(3).update_priority(torch.tensor([0]), 1.0)):
        with pytest.raises(CallOrderError, match="found it empty; write to it first"):
            call()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_capacity": 0}, "max_capacity: expected a positive integer"),
        ({"alpha": -0.1}, "alpha: expected a finite number from 0 on, got -0.1"),
        ({"beta": float("nan")}, "beta: expected a finite number"),
        ({"beta": "1"}, "beta: expected a finite number"),
        ({"eps": -1}, "eps: expected a finite number"),
        ({"dtype": torch.int64}, "dtype: expected torch.float32 or torch.float64"),
        ({"reduction": "sum"}, "reduction: expected one of 'max', 'min', 'mean', 'median', got 'sum'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        PrioritizedSampler(**{"max_capacity": 4, "alpha": 1.0, "beta": 1.0, **options})


def test_too_little_room() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), sampler=PrioritizedSampler(5, 1.0, 1.0))
    buffer.extend(torch.arange(3))
    with pytest.raises(OptionError, match=r"max_capacity=5: .* holds 10; use PrioritizedSampler\(10, ...\)"):
        buffer.sample(1)


def test_the_sampler_of_another_buffer() -> None:
    one, other = holding(1.0, 2.0, 3.0), made(2)
    other.extend(torch.arange(2))
    one.sample(1)
    other.set_sampler(one.sampler)
    with pytest.raises(OptionError, match="has the priorities of another buffer"):
        other.sample(1)
    one.sampler.empty()
    assert drawn(other) == {0, 1}


def test_another_storage() -> None:
    buffer = holding(1.0, 2.0, 3.0)
    buffer.set_storage(LazyTensorStorage(2))
    buffer.extend(torch.arange(2))
    assert powers(buffer) == [1.0, 1.0]


def test_samplers_without_priorities_take_none() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=RandomSampler())
    buffer.update_priority(buffer.extend(torch.arange(2)), -1.0)


# ---------------------------------------------------------------------- threads, state


def test_prefetch_and_updates_at_the_same_time() -> None:
    """No draw of what has priority 0, no sum that differs from its values, whatever the threads do."""
    size = 50_000  # two levels of sums
    sampler = PrioritizedSampler(size, 1.0, 0.5, eps=0.0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(size), sampler=sampler, batch_size=64, prefetch=3)
    buffer.extend(torch.arange(size))
    failures: list[BaseException] = []

    def run(work: Any) -> None:
        try:
            for number in range(150):
                work(number)
        except BaseException as error:  # noqa: BLE001  shown below
            failures.append(error)

    def update(number: int) -> None:
        sample, info = buffer.sample(return_info=True)
        buffer.update_priority(info["index"], (sample % 7 != 0) * (1.0 + number))

    def write(number: int) -> None:
        buffer.extend(torch.arange(50))

    threads = [threading.Thread(target=run, args=(work,)) for work in (update, update, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    buffer.set_sampler(sampler)  # ends the thread that makes samples
    assert not failures
    buffer.sample(1)
    values = np.array(powers(buffer))
    assert values[values > 0].min() >= 1.0
    # The sums of a copy are those of its values: it draws the same, with the same weights.
    copy, draws = pickle.loads(pickle.dumps(sampler)), []
    for one in (sampler, copy):
        one.beta = 1.0
        draws.append(one.draw(buffer.storage, 5_000, torch.Generator().manual_seed(1)))
    assert torch.equal(draws[0].places, draws[1].places)
    assert torch.equal(draws[0].info["priority_weight"], draws[1].info["priority_weight"])


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_after_a_load_it_goes_on_as_if_it_had_never_stopped(beta: float) -> None:
    def step(of: ReplayBuffer, number: int) -> torch.Tensor:
        sample, info = of.sample(32, return_info=True)
        of.update_priority(info["index"], (sample % 11 + number % 5) / 3)
        of.extend(torch.arange(number, number + 7))
        return torch.cat([sample.double(), info["priority_weight"].double()])

    buffer = made(40_000, alpha=0.6, beta=beta)
    buffer.extend(torch.arange(45_000))
    for number in range(30):
        step(buffer, number)
    buffer.storage.ring.give_up(claimed(buffer.storage.ring, 3))
    step(buffer, 30)
    state = buffer.sampler.state_dict()
    assert all(isinstance(value, int | float | list | torch.Tensor) for value in state.values())
    twin = pickle.loads(pickle.dumps(buffer))
    twin.set_sampler(PrioritizedSampler(40_000, 1.0, 1.0))
    twin.sampler.load_state_dict(state)
    state["powers"].zero_()  # what was saved is no part of the sampler
    for number in range(100):
        assert step(twin, number).equal(step(buffer, number))


def test_a_state_before_the_first_write() -> None:
    sampler = PrioritizedSampler(3, 1.0, 1.0)
    sampler.load_state_dict(PrioritizedSampler(3, 0.5, 0.25, eps=0.0).state_dict())
    buffer = ReplayBuffer(storage=LazyTensorStorage(3), sampler=sampler)
    buffer.update_priority(buffer.extend(torch.arange(3)), torch.tensor([4.0, 9.0, 16.0]))
    assert powers(buffer) == [2.0, 3.0, 4.0]
    assert repr(sampler) == "PrioritizedSampler(alpha=0.5, beta=0.25, eps=0.0, reduction='max')"


def test_tensordicts_are_sampled_too() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), sampler=lambda: PrioritizedSampler(5, 1.0, 1.0))
    buffer.extend(TensorDict({"a": torch.arange(5)}, [5]))
    buffer.update_priority(torch.arange(5), torch.tensor([0.0, 0.0, 1e9, 0.0, 0.0]))
    assert buffer.sample(20)["a"].tolist() == [2] * 20


def test_a_frame_in_the_place_of_another_has_the_priority_of_a_new_one() -> None:
    buffer = holding(0.0, 1.0, 2.0)
    assert drawn(buffer) == {1, 2}
    buffer[0] = buffer[0].clone()
    assert powers(buffer) == [2.0, 1.0, 2.0]
    best = ReplayBuffer(
        storage=LazyTensorStorage(3), sampler=PrioritizedSampler(3, 1.0, 1.0, 0.0), writer=TensorDictMaxValueWriter("a")
    )
    best.extend(TensorDict({"a": torch.arange(3)}, [3]))
    best.update_priority(torch.arange(3), torch.tensor([0.0, 1.0, 1.0]))
    best.extend(TensorDict({"a": torch.tensor([100, -5])}, [2]))
    assert set(best.sample(200)["a"].tolist()) == {100, 1, 2}


def test_an_index_outside_of_a_dimension_is_no_other_frame() -> None:
    buffer = made(20, ndim=2)
    buffer.extend(TensorDict({"a": torch.arange(20).view(2, 10)}, [2, 10]))
    for index, dim in (([[0, 10]], 1), ([[2, 0]], 0), ([[0, -1]], 1)):
        text = rf"index: expected numbers from 0 to \d+ in dimension {dim}, got {index[0][dim]}"
        with pytest.raises(OptionError, match=text):
            buffer.update_priority(torch.tensor(index), torch.ones(1))


# ---------------------------------------------------------------------- the sampler by itself


@pytest.mark.parametrize("ndim", [1, 2])
def test_priorities_are_set_on_the_sampler_itself(ndim: int) -> None:
    buffer = made(8, ndim=ndim)
    index = buffer.extend(torch.arange(8).view(2, 4) if ndim == 2 else torch.arange(8))
    buffer.sampler.update_priority(index, torch.arange(8.0))
    assert powers(buffer) == list(range(8))
    buffer.sampler.update_priority(index[:2], 9.0)
    assert powers(buffer) == [9, 9, *range(2, 8)]
    buffer.sampler.update_priority(index[2:3], [7.0], storage=buffer.storage)
    assert powers(buffer) == [9, 9, 7, *range(3, 8)]
    with pytest.raises(OptionError, match="one for each of 8 frames, got 3"):
        buffer.sampler.update_priority(index, torch.ones(3))


def test_the_sampler_knows_the_storage_that_its_buffer_has_now() -> None:
    buffer = made(4)
    buffer.extend(torch.arange(4))
    buffer.set_storage(LazyTensorStorage(2))
    buffer.extend(torch.arange(2))
    buffer.sampler.update_priority([0, 1], [0.0, 2.0])
    assert drawn(buffer) == {1}
    buffer.set_sampler(PrioritizedSampler(2, 1.0, 1.0, 0.0))
    buffer.sampler.update_priority([0, 1], [3.0, 0.0])
    assert drawn(buffer) == {0}
    twin = pickle.loads(pickle.dumps(buffer))
    twin.sampler.update_priority([0, 1], [0.0, 3.0])
    assert (drawn(twin), drawn(buffer)) == ({1}, {0})


def test_a_sampler_of_no_buffer_takes_no_priorities() -> None:
    copied = pickle.loads(pickle.dumps(holding(1.0, 2.0).sampler))
    for sampler in (PrioritizedSampler(4, 1.0, 1.0), copied):
        with pytest.raises(CallOrderError, match="found none that samples with it"):
            sampler.update_priority(torch.arange(2), 1.0)


def test_priorities_of_another_buffer_of_the_same_size_are_refused() -> None:
    one, other = holding(1.0, 2.0, 3.0), made(3)
    other.extend(torch.arange(3))
    one.sample(1)
    other.set_sampler(one.sampler)
    with pytest.raises(OptionError, match="has the priorities of another buffer"):
        other.sample(1)
    loaded = made(3)
    loaded.load_state_dict(one.state_dict())
    assert powers(loaded) == [1.0, 2.0, 3.0]
    loaded.set_sampler(pickle.loads(pickle.dumps(loaded.sampler)))
    assert powers(loaded) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("number", [torch.tensor(0.5), torch.tensor([0.5], requires_grad=True), np.float32(0.5), np.array(0.5)])
def test_exponents_are_numbers_of_any_kind(number: Any) -> None:
    sampler = PrioritizedSampler(4, number, number, number)
    sampler.alpha, sampler.beta = number, number
    assert (sampler.alpha, sampler.beta, sampler.eps) == (0.5, 0.5, 0.5)
    assert {type(value) for value in (sampler.alpha, sampler.beta, sampler.eps)} == {float}


@pytest.mark.parametrize(
    "wrong", [torch.tensor([0.5, 0.5]), torch.tensor(True), np.bool_(True), torch.tensor(-1), np.nan, None]
)
def test_exponents_that_are_none(wrong: Any) -> None:
    sampler = PrioritizedSampler(4, 1.0, 1.0)
    for name in ("alpha", "beta"):
        with pytest.raises(OptionError, match=f"{name}: expected a finite number from 0 on"):
            setattr(sampler, name, wrong)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (torch.tensor([True, False, False]), r"torch.bool; write mask.nonzero\(\).squeeze\(-1\)"),
        (torch.tensor([0.5]), "torch.float32"),
        ([0.0, 1.0], "torch.float32"),
        ("a", "'a'"),
        (None, "None"),
    ],
)
@pytest.mark.parametrize("ndim", [1, 2])
def test_indices_of_priorities_are_whole_numbers(index: Any, text: str, ndim: int) -> None:
    """A mask would be read as frames 0 and 1, and a fraction would be cut."""
    buffer = made(8, ndim=ndim)
    buffer.extend(torch.arange(4.0).reshape((2,) * ndim if ndim == 2 else (4,)))
    before = buffer.sampler.state_dict()
    with pytest.raises(OptionError, match=f"index: expected whole numbers, as extend and sample give them, got {text}"):
        buffer.update_priority(index, 1.0)
    assert str(buffer.sampler.state_dict()) == str(before)


@pytest.mark.parametrize("priority", ["a", None, [1.0, "b"], {}, 1j, torch.tensor([1j, 1.0]), np.complex64(1)])
def test_priorities_are_numbers(priority: Any) -> None:
    buffer = made(8)
    buffer.extend(torch.arange(4.0))
    with pytest.raises(OptionError, match="priority: expected a number, or one for each frame, got"):
        buffer.update_priority(torch.tensor([0, 1]), priority)


def test_no_indices_are_none() -> None:
    buffer = made(8)
    buffer.extend(torch.arange(4.0))
    buffer.update_priority([], [])
    buffer.update_priority(torch.tensor([1], dtype=torch.uint8), 3.0)
