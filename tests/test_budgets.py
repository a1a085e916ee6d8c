"""Budgets of the step loop, counted and not timed: Python calls per frame, copies of an observation, slots, descriptors."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.ceiling import CartPolePolicy, hand_loop
from reap import GymEnv, SerialEnv, SyncDataCollector
from reap.keys import Key
from reap.recording.buffers import SMALL, Slot, after
from tests.collectors.seams import pool_of, seam_of
from tests.pairwise import by_default

OBSERVATION: Key = ("observation",)

# ---------------------------------------------------------------------- Python calls per frame

COLUMNS = {1: 1000, 8: 125, 64: 50}
"""Time steps of a rollout for each number of envs."""

ROLLOUTS = 1


def calls_per_frame(rollout: Callable[[], int]) -> float:
    """Python functions called per frame, once the loop is warm."""
    rollout()
    calls = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    torch.manual_seed(0)
    before = sys.getprofile()
    gc.disable()  # finalizers are no part of it
    sys.setprofile(count)
    try:
        frames = sum(rollout() for _ in range(ROLLOUTS))
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls / frames


make_cartpole = partial(gym.make, "CartPole-v1")


def build_rows(envs: int, build: Callable[[], gym.Env[Any, Any]]) -> GymEnv | SerialEnv:
    """Envs made by the same call as in the hand-written loop, so that both have the same wrappers."""
    return GymEnv(build()) if envs == 1 else SerialEnv(envs, lambda: GymEnv(build()))


def calls_of_reap(envs: int, policy: Any, kind: str) -> float:
    with SyncDataCollector(build_rows(envs, make_cartpole), policy, frames_per_batch=envs * COLUMNS[envs]) as collector:
        assert f"({kind})" in repr(collector)
        collector.set_seed(0)
        return calls_per_frame(lambda: collector.next().numel())


def calls_by_hand(envs: int, policy: Callable[[torch.Tensor], torch.Tensor]) -> float:
    return calls_per_frame(hand_loop(envs, COLUMNS[envs], policy))


class OneHotCategorical(torch.distributions.OneHotCategorical):
    """With actions of the env's dtype."""

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        return super().sample(torch.Size(sample_shape)).long()


def tensordict_policy() -> TensorDictModule:
    return TensorDictModule(CartPolePolicy(), in_keys=["observation"], out_keys=["action"])


def probabilistic_policy() -> ProbabilisticTensorDictSequential:
    network = TensorDictModule(CartPolePolicy().net, in_keys=["observation"], out_keys=["logits"])
    draw = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=OneHotCategorical, return_log_prob=True)
    return ProbabilisticTensorDictSequential(network, draw)


def by_hand() -> Callable[[torch.Tensor], torch.Tensor]:
    """What the probabilistic policy computes."""
    network = CartPolePolicy().net

    def policy(observation: torch.Tensor) -> torch.Tensor:
        distribution = OneHotCategorical(logits=network(observation))
        action = distribution.sample()
        distribution.log_prob(action)
        return action

    return policy


# What reap may call beyond the hand-written loop; promised are 3 a frame for a plain module and 8 envs, 4 for an unwrapped
# policy. The calls of a column are shared by its rows; for one env they are the calls of a frame.
@pytest.mark.parametrize(("envs", "budget"), by_default([(1, 5.0), (8, 1.5), (64, 0.5)], (8, 1.5)))
def test_plain_module_python_calls(envs: int, budget: float) -> None:
    extra = calls_of_reap(envs, CartPolePolicy(), "plain") - calls_by_hand(envs, CartPolePolicy())
    assert extra <= budget


@pytest.mark.parametrize(("envs", "budget"), by_default([(1, 9.0), (8, 2.5), (64, 0.75)], (8, 2.5)))
@pytest.mark.parametrize(
    ("policy", "inner"),
    [(tensordict_policy, CartPolePolicy), (probabilistic_policy, by_hand)],
    ids=["TensorDictModule", "Probabilistic"],
)
def test_unwrapped_policy_python_calls(policy: Callable[[], Any], inner: Callable[[], Any], envs: int, budget: float) -> None:
    extra = calls_of_reap(envs, policy(), "unwrapped") - calls_by_hand(envs, inner())
    assert extra <= budget


# ---------------------------------------------------------------------- copies of an observation

PIXELS = (512, 512)
NBYTES = 512 * 512
ROWS = pytest.mark.parametrize("envs", [1, 3])
T = 4


class PixelEnv(gym.Env[Any, Any]):
    """Hands out the same image each time, so that it allocates nothing; its episodes have 6 steps."""

    observation_space = gym.spaces.Box(0, 255, PIXELS, np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, episode: int = 6) -> None:
        self._image = np.full(PIXELS, 7, np.uint8)
        self._episode = episode
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self._image, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._image, 1.0, self._steps == self._episode, False, {}


class Blind:
    """The same action each time; the pixels are not touched."""

    def __init__(self, envs: int) -> None:
        self._action = torch.tensor([1, 0]).expand(*(() if envs == 1 else (envs,)), 2).clone()

    def __call__(self, observation: torch.Tensor) -> torch.Tensor:
        return self._action


class Counting(np.ndarray):
    """An array that adds up the bytes written to it and to its views."""

    name = ""
    written: Counter[str]

    @classmethod
    def over(cls, array: np.ndarray, name: str, written: Counter[str]) -> Counting:
        view = array.view(cls)
        view.name, view.written = name, written
        return view

    def __array_finalize__(self, source: Any) -> None:
        if isinstance(source, Counting):
            self.name, self.written = source.name, source.written

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self.written[self.name] += np.asarray(self)[index].nbytes


class LargeResults(TorchDispatchMode):
    """Notes torch operations that write as much as an observation, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_view = func.is_view or str(func).startswith(("aten.resize_", "aten.detach"))
        if isinstance(result, torch.Tensor) and result.nbytes >= NBYTES and not is_view:
            self.found.append(str(func))
        return result


def pixel_collector(envs: int, **options: Any) -> SyncDataCollector:
    return SyncDataCollector(build_rows(envs, PixelEnv), Blind(envs), frames_per_batch=envs * T, **options)


def slots_of(collector: SyncDataCollector) -> list[Slot]:
    return pool_of(collector).slots


def count_writes(collector: SyncDataCollector, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """From now on, the bytes of observations written to the stage, to `next` and to the root."""
    written: Counter[str] = Counter()
    stage = seam_of(collector).assembly.recorder.rollout.stage
    stage.arrays[OBSERVATION] = Counting.over(stage.arrays[OBSERVATION], "stage", written)
    names = {OBSERVATION: "root", after(OBSERVATION): "next"}
    by_column = Slot.by_column

    def counting(slot: Slot, key: Key) -> Any:
        array = by_column(slot, key)
        return Counting.over(array, names[key], written) if key in names else array

    monkeypatch.setattr(Slot, "by_column", counting)
    return written


@ROWS
def test_three_copies_of_an_observation(envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pixel_collector(envs) as collector:
        written = count_writes(collector, monkeypatch)
        once = envs * T * NBYTES
        collector.next()  # steps 0-3 of an episode
        assert written == {"next": once, "stage": once, "root": once}
        collector.next()  # steps 4-5, a reset, steps 0-1: the first observation goes straight to the stage
        assert written == {"next": 2 * once, "stage": 2 * once + envs * NBYTES, "root": 2 * once}


@ROWS
def test_no_copy_beside_the_three(envs: int) -> None:
    """Neither numpy nor torch makes another array of that size, in the loop or at delivery."""
    with pixel_collector(envs) as collector:
        collector.next()
        tracemalloc.start()
        try:
            collector.next()
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            with LargeResults() as large:
                batch = collector.next()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert batch["observation"].nbytes == envs * T * NBYTES
    assert large.found == []
    assert peak - held < NBYTES


def test_the_watches_see_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy and a postproc that copy pixels are found by each of the two watches."""

    def copying(observation: torch.Tensor) -> torch.Tensor:
        observation.clone()
        observation.numpy().copy()
        return torch.tensor([1, 0])

    with SyncDataCollector(PixelEnv(), copying, frames_per_batch=T) as collector:
        tracemalloc.start()
        try:
            held, _ = tracemalloc.get_traced_memory()
            with LargeResults() as large:
                collector.next()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert large.found == ["aten.clone.default"] * T
    assert peak - held >= NBYTES


# ---------------------------------------------------------------------- delivery, slots, descriptors


@ROWS
def test_large_leaves_lie_in_the_slot_and_small_ones_do_not(envs: int) -> None:
    with pixel_collector(envs) as collector:
        batch = collector.next()
        (slot,) = slots_of(collector)
        start, stop = slot.block.memory.ctypes.data, slot.block.memory.ctypes.data + slot.block.memory.nbytes
        leaves = batch.flatten_keys(".")
        lent = {key for key, leaf in leaves.items() if start <= leaf.data_ptr() < stop}
        assert lent == {"observation", "next.observation"}
        for key in lent:
            field = tuple(key.split("."))
            assert leaves[key].data_ptr() == slot.by_row(field).ctypes.data
        small = {".".join(key) for key, field in slot.fields.items() if field.nbytes <= SMALL}
        assert set(leaves.keys()) - lent == small


@contextmanager
def collector_of(envs: int, build: Callable[[], gym.Env[Any, Any]]) -> Iterator[SyncDataCollector]:
    with SyncDataCollector(build_rows(envs, build), Blind(envs), frames_per_batch=envs * T) as collector:
        yield collector


@ROWS
def test_without_large_fields_one_slot_is_used_forever(envs: int) -> None:
    with collector_of(envs, make_cartpole) as collector:
        kept = [collector.next() for _ in range(20)]
        assert len(slots_of(collector)) == 1
        assert len({leaf.data_ptr() for batch in kept for leaf in batch.values(True, True)}) == 20 * len(
            list(kept[0].keys(True, True))
        )


def test_with_large_fields_there_are_as_many_slots_as_batches_are_kept() -> None:
    with collector_of(3, PixelEnv) as collector:
        for _ in range(5):
            collector.next()
        assert len(slots_of(collector)) == 1
        kept = [collector.next() for _ in range(4)]
        assert len(slots_of(collector)) == 4
        kept.clear()
        for _ in range(10):
            collector.next()
        assert len(slots_of(collector)) == 4
        assert pool_of(collector).lent == 0


def test_a_loop_that_keeps_nothing_uses_two_slots() -> None:
    """The batch of the loop's variable is alive while the next one is collected."""
    with collector_of(3, PixelEnv) as collector:
        for _, _batch in zip(range(10), collector, strict=False):
            pass
        assert len(slots_of(collector)) == 2


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this machine has no /proc: descriptors cannot be counted")
@pytest.mark.parametrize("build", [make_cartpole, PixelEnv], ids=["small", "large"])
def test_descriptors_do_not_grow_with_batches(build: Callable[[], gym.Env[Any, Any]]) -> None:
    gc.collect()  # what earlier tests left in cycles closes its descriptors now, and not in the middle
    before = len(os.listdir("/proc/self/fd"))
    with collector_of(2, build) as collector:
        for _ in range(200):
            kept = collector.next()
            assert len(os.listdir("/proc/self/fd")) == before
    assert kept.numel() == 2 * T
