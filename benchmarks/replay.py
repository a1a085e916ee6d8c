"""Claims: a replay buffer costs little more than the copies it is made of, whatever it holds.

Ratios are of operations per second: "<= 1.3 x a bare copy" is a ratio of 1 / 1.3 or more. Small frames have six keys, 46 bytes
(observation, action, and under "next" observation, reward, done, terminated); large ones have 84x84x4 bytes.
Writers and the reader of the last claim are processes; the reader samples 200 times a second, as a learner does.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from pairs import Loop, OpenLoop, Pair, alone, note
from tensordict import TensorDict
from torch import multiprocessing

from reap.data import LazyTensorStorage, ReplayBuffer, SliceSampler

MILLION, EPISODE, WRITE = 1_000_000, 200, 1_000
SAMPLE, SLICES, LENGTH = 256, 8, 32
SLICE_SECONDS = 40e-6 / 1.5
"""With the gather, a time of which 1.5 x is 1.5 x the gather + 40 µs."""


def small(frames: int, start: int = 0) -> TensorDict:
    """Frames of six keys, in episodes of `EPISODE`."""
    place = torch.arange(start, start + frames)
    done = (place % EPISODE == EPISODE - 1).unsqueeze(-1)
    following = TensorDict(
        {"observation": torch.rand(frames, 4), "reward": torch.rand(frames, 1), "done": done, "terminated": done}, [frames]
    )
    return TensorDict({"observation": torch.rand(frames, 4), "action": torch.rand(frames, 2), "next": following}, [frames])


def with_ids(data: TensorDict, start: int) -> TensorDict:
    """The frames with the ids of their episodes."""
    data["collector", "traj_ids"] = torch.arange(start, start + len(data)) // EPISODE
    return data


def pixels() -> TensorDict:
    """1,000 frames of 28 kB."""
    return TensorDict({"pixels": torch.randint(0, 255, (WRITE, 4, 84, 84), dtype=torch.uint8)}, [WRITE])


def reap_buffer(size: int, **options: Any) -> ReplayBuffer:
    """A buffer of reap."""
    return ReplayBuffer(storage=LazyTensorStorage(size), **options)


def torchrl_buffer(size: int, slices: bool = False, **options: Any) -> Any:
    """The buffer of torchrl of the same kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler

        sampler = SliceSampler(num_slices=SLICES, traj_key=("collector", "traj_ids"), **options) if slices else None
        return ReplayBuffer(storage=LazyTensorStorage(size), sampler=sampler, batch_size=SLICES * LENGTH if slices else SAMPLE)


def slice_buffer(frames: int) -> ReplayBuffer:
    """A full buffer that samples slices."""
    sampler = SliceSampler(num_slices=SLICES, traj_key=("collector", "traj_ids"))
    return filled(reap_buffer(frames, sampler=sampler, batch_size=SLICES * LENGTH), frames)


def filled(buffer: Any, frames: int) -> Any:
    """The buffer, full of episodes."""
    for start in range(0, frames, 10_000):
        buffer.extend(with_ids(small(10_000, start), start))
    buffer.sample()
    return buffer


@contextmanager
def repeated(build: Callable[[], Callable[[], Any]]) -> Iterator[Loop]:
    """A loop whose batch is one call of what is built."""
    call = build()

    def once() -> int:
        call()
        return 1

    yield once


def loop(build: Callable[..., Callable[[], Any]], *arguments: Any) -> OpenLoop:
    """Opens a loop of one call."""
    return partial(repeated, partial(build, *arguments))


# ---------------------------------------------------------------------- what is timed


def extending(buffer: Callable[[], Any], data: Callable[[], TensorDict]) -> Callable[[], Any]:
    """Writes of the same frames, once round the ring before."""
    made, frames = buffer(), data()
    for _ in range(11):
        made.extend(frames)
    return partial(made.extend, frames)


def copying() -> Callable[[], Any]:
    """A bare copy of the large frames."""
    source, target = pixels()["pixels"], torch.zeros(10 * WRITE, 4, 84, 84, dtype=torch.uint8)
    return partial(target[:WRITE].copy_, source)


def sampling(buffer: Callable[[], Any]) -> Callable[[], Any]:
    """Samples of a full buffer."""
    return buffer().sample


def uniform_buffer(make: Callable[..., Any]) -> Any:
    """A buffer of a million frames with six keys."""
    buffer = make()
    for start in range(0, MILLION, 10_000):
        buffer.extend(small(10_000, start))
    buffer.sample()
    return buffer


def gathering(leaves: list[torch.Tensor], draw: Callable[[], torch.Tensor]) -> Callable[[], Any]:
    """A bare gather of every key."""

    def gather() -> None:
        index = draw()
        for leaf in leaves:
            leaf.index_select(0, index)

    return gather


def leaves_of(data: TensorDict) -> list[torch.Tensor]:
    """A million frames of these keys, without a buffer."""
    return [value.repeat(MILLION // len(data), *[1] * (value.ndim - 1)) for value in data.values(True, True)]


def bare_uniform() -> Callable[[], Any]:
    """A gather of frames at random."""
    return gathering(leaves_of(small(10_000)), partial(torch.randint, MILLION, (SAMPLE,)))


def bare_slices() -> Callable[[], Any]:
    """A gather of slices at random, and a while of waiting."""
    steps = torch.arange(LENGTH)
    draw = lambda: (torch.randint(MILLION - LENGTH, (SLICES, 1)) + steps).view(-1)  # noqa: E731
    gather = gathering(leaves_of(with_ids(small(10_000), 0)), draw)

    def gather_and_wait() -> None:
        gather()
        until = time.perf_counter() + SLICE_SECONDS
        while time.perf_counter() < until:
            pass

    return gather_and_wait


def choosing(frames: int) -> Callable[[], Any]:
    """The choice of the frames of slices."""
    buffer = slice_buffer(frames)
    return partial(buffer.sampler.draw, buffer.storage, SLICES * LENGTH, None)


def writing_and_sampling(buffer: Callable[[], Any]) -> Callable[[], Any]:
    """A write of 200 frames and a sample of slices."""
    made, frames = buffer(), with_ids(small(EPISODE), 0)
    ids = frames["collector", "traj_ids"]

    def once() -> None:
        ids.add_(1)
        made.extend(frames)
        made.sample()

    return once


# ---------------------------------------------------------------------- several processes


def write_for_ever(buffer: ReplayBuffer, first: int) -> None:
    """What a writer process does."""
    torch.set_num_threads(1)
    frames = small(WRITE, first)
    while True:
        buffer.extend(frames)


def sample_for_ever(buffer: ReplayBuffer) -> None:
    """What a reader process does."""
    torch.set_num_threads(1)
    while True:
        buffer.sample(SAMPLE)
        time.sleep(0.005)


@contextmanager
def writers(*, reads: bool) -> Iterator[Loop]:
    """Two writers of one buffer, with a reader or without; a batch is what they write in 0.2 s."""
    buffer = reap_buffer(100 * WRITE, shared=True)
    buffer.extend(small(WRITE))
    context = multiprocessing.get_context("spawn")
    targets: list[tuple[Any, tuple[Any, ...]]] = [(write_for_ever, (buffer, first)) for first in (0, WRITE)]
    targets += [(sample_for_ever, (buffer,))] * reads
    processes = [context.Process(target=target, args=arguments, daemon=True) for target, arguments in targets]
    for process in processes:
        process.start()
    while buffer.write_count < 100 * WRITE:
        time.sleep(0.05)

    def collect() -> int:
        before = buffer.write_count
        time.sleep(0.2)
        return buffer.write_count - before

    with alone(collect, [process.pid for process in processes]) as loop:
        yield loop
    for process in processes:
        process.kill()
        process.join()


def pairs() -> Iterator[Pair]:
    """Writes, samples, slices, and writers with a reader."""
    million, torchrl_million = partial(reap_buffer, MILLION, batch_size=SAMPLE), partial(torchrl_buffer, MILLION)
    full, torchrl_full = partial(slice_buffer, MILLION), partial(_torchrl_slices, cache_values=False)
    cached = partial(_torchrl_slices, cache_values=True)
    large, torchrl_large = partial(reap_buffer, 10 * WRITE), partial(torchrl_buffer, 10 * WRITE)
    of_pixels, of_small = partial(loop, extending), partial(small, WRITE)
    note("replay: buffers of a million frames are filled first")
    yield Pair("extend 1,000 pixel frames, a copy", "reap", 1, of_pixels(large, pixels), loop(copying), 1 / 1.3)
    yield Pair(
        "extend 1,000 pixel frames, a copy", "torchrl", 1, of_pixels(torchrl_large, pixels), loop(copying), None, "torchrl"
    )
    yield _against("extend 1,000 small frames, torchrl", of_pixels(large, of_small), of_pixels(torchrl_large, of_small), 3.0)
    uniform = loop(sampling, partial(uniform_buffer, million))
    yield Pair("sample 256 of 1 M, a gather", "reap", 1, uniform, loop(bare_uniform), 1 / 1.7)
    yield _against("sample 256 of 1 M, torchrl", uniform, loop(sampling, partial(uniform_buffer, torchrl_million)), 1.7)
    yield Pair("choose 8 x 32 of 1 M, of 10,000", "reap", 1, loop(choosing, MILLION), loop(choosing, 10_000), 1 / 1.2)
    slices = loop(sampling, full)
    yield Pair("sample 8 x 32 of 1 M, a gather + 40 µs", "reap", 1, slices, loop(bare_slices), 1 / 1.5)
    after_write = loop(writing_and_sampling, full)
    yield _against("sample 8 x 32 after a write, torchrl", after_write, loop(writing_and_sampling, torchrl_full), 15.0)
    yield _against("sample 8 x 32, torchrl's cached index", slices, loop(sampling, cached), 2.5)
    yield Pair("two writers, without the reader", "reap", 1, partial(writers, reads=True), partial(writers, reads=False), 0.9)


def _torchrl_slices(**options: Any) -> Any:
    return filled(torchrl_buffer(MILLION, slices=True, **options), MILLION)


def _against(claim: str, ours: OpenLoop, theirs: OpenLoop, target: float) -> Pair:
    return Pair(claim, "reap", 1, ours, theirs, target, "torchrl")
