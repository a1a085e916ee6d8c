"""What every sampler keeps, whatever is done to its buffer: frames that are there, slices of one episode, and their marks."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.prioritized_slices import PrioritizedSliceSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.samplers.uniform import RandomSampler, SamplerWithoutReplacement
from reap.data.storages import LazyTensorStorage
from tests.pairwise import pairwise

SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": RandomSampler,
    "once": SamplerWithoutReplacement,
    "priorities": lambda: PrioritizedSampler(60, 0.7, 0.5),
    "slices": lambda: SliceSampler(slice_len=3),
    "slices of frames": lambda: SliceSampler(slice_len=3, uniform_over="frames"),
    "slices once": lambda: SliceSamplerWithoutReplacement(slice_len=3),
    "slices by priority": lambda: PrioritizedSliceSampler(60, 0.7, 0.5, slice_len=3),
}


class Changed:
    """A buffer to which something is done, again and again."""

    def __init__(self, sampler: str, prefetch: int) -> None:
        self._name, self._prefetch = sampler, prefetch
        self._written = 0
        self.buffer = self._new()
        self.write()

    def _new(self) -> ReplayBuffer:
        sampler = SAMPLERS[self._name]()
        return ReplayBuffer(storage=LazyTensorStorage(60), sampler=sampler, batch_size=6, prefetch=self._prefetch)

    def write(self) -> None:
        """Four episodes of five frames, none of which says that it ends."""
        number = torch.arange(self._written, self._written + 20)
        flags = {name: torch.zeros(20, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self._written += 20
        self.buffer.extend(TensorDict({"number": number, "episode": number // 5, "next": flags}, [20]))

    def empty(self) -> None:
        self.buffer.empty()
        self.write()

    def empty_elsewhere(self) -> None:
        here = self.buffer.share()
        self.buffer = pickle.loads(pickle.dumps(here))
        self.empty()
        self.buffer = here
        here.set_sampler(here.sampler)  # samples made ahead are of frames that are gone

    def load(self) -> None:
        loaded = self._new()
        loaded.load_state_dict(self.buffer.state_dict())
        self.buffer = loaded

    def copy(self) -> None:
        self.buffer = pickle.loads(pickle.dumps(self.buffer))

    def copy_sampler(self) -> None:
        self.buffer.set_sampler(pickle.loads(pickle.dumps(self.buffer.sampler)))

    def renew_sampler(self) -> None:
        self.buffer.set_sampler(SAMPLERS[self._name]())

    def renew_storage(self) -> None:
        self.buffer.set_storage(LazyTensorStorage(60))
        self.write()

    def edit(self) -> None:
        self.buffer[7] = self.buffer[7].clone()

    def prioritise(self) -> None:
        self.buffer.update_priority(torch.arange(5), torch.rand(5))
        self.buffer.sampler.update_priority(torch.arange(5, 10), torch.rand(5))

    def require_right(self) -> None:
        """A sample is what lies at its indices; slices are of one episode, and marked."""
        sample, info = self.buffer.sample(return_info=True)
        numbers = sample["number"].tolist()
        assert set(numbers) <= set(range(self._written))
        if not self._prefetch:
            assert self.buffer[:]["number"][info["index"]].tolist() == numbers
        if "slices" not in self._name:
            return
        assert (sample["number"].view(-1, 3).diff() == 1).all()
        assert (sample["episode"].view(-1, 3).diff() == 0).all()
        for flag in ("done", "truncated"):
            assert sample["next", flag].flatten().tolist() == [False, False, True] * (len(numbers) // 3)


CHANGES = [name for name in vars(Changed) if not name.startswith("_") and name != "require_right"]


@pytest.mark.parametrize(("sampler", "prefetch", "seed"), pairwise(list(SAMPLERS), [0, 2], range(3)))
def test_samples_are_right_whatever_is_done(sampler: str, prefetch: int, seed: int) -> None:
    chance, changed = random.Random(seed), Changed(sampler, prefetch)
    for _ in range(30):
        what = chance.choice(CHANGES)
        getattr(changed, what)()
        for _ in range(2):
            changed.require_right()
    changed.renew_sampler()  # which ends the thread that makes samples ahead
