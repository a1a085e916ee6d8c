"""Reads batches for `check_collector`: the frames of each env in their order, and comparisons that name a difference."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase

from reap.collectors.base import DataCollectorBase
from reap.recording.buffers import MASK

MakeCollector = Callable[..., DataCollectorBase]
Place = tuple[int, int, int]
Frame = dict[Any, Any]
"""The values of a frame by key; not a TensorDict, which takes three times as long to make and to read."""

FRAMES = 24
"""Frames of a batch."""

FLAG_NAMES = ("done", "terminated", "truncated")


@contextmanager
def collecting(make: MakeCollector, env: Any, policy: Any, **options: Any) -> Generator[DataCollectorBase]:
    """A collector that is shut down after the body."""
    collector = make(env, policy, frames_per_batch=FRAMES, **options)
    try:
        yield collector
    finally:
        collector.shutdown()


def take(collector: DataCollectorBase, count: int) -> list[TensorDictBase]:
    """The next batches."""
    return [collector.next() for _ in range(count)]


def raised(call: Callable[[], Any]) -> Exception | None:
    """The exception that a call raises; None if it returns."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  the exception is examined
        return error
    return None


def _valid(batch: TensorDictBase) -> TensorDictBase:
    flat, mask = batch.reshape(-1), batch.get(MASK, None)
    return flat if mask is None else flat[mask.reshape(-1)]


def frames_of(batches: Iterable[TensorDictBase]) -> Generator[tuple[Place, Frame]]:
    """Every valid frame, preceded by its env, episode and step."""
    for batch in batches:
        frames = _valid(batch)
        columns = {key: value.unbind(0) for key, value in frames.items(include_nested=True, leaves_only=True)}
        places = frames["observation"][:, :3].long().tolist()
        for place, *values in zip(places, *columns.values(), strict=True):
            number, episode, step = place
            yield (number, episode, step), dict(zip(columns, values, strict=True))


def by_env(batches: Iterable[TensorDictBase]) -> dict[int, list[Frame]]:
    """The frames of each env, in their order."""
    found: dict[int, list[Frame]] = {}
    for (number, _, _), frame in frames_of(batches):
        found.setdefault(number, []).append(frame)
    return found


def reaching(
    collector: DataCollectorBase, batches: Sequence[TensorDictBase], other: Mapping[int, Sequence[Frame]] | None
) -> dict[int, list[Frame]]:
    """The frames of each env in these batches, and in further ones until they share an env with another stream.

    Without another stream these batches are enough. Workers that deliver as they come need not all be in the first ones.
    """
    found = by_env(batches)
    while other is not None and not found.keys() & other.keys():
        batches = [*batches, *take(collector, 1)]
        found = by_env(batches)
    return found


def together(
    one: Mapping[int, Sequence[Frame]], other: Mapping[int, Sequence[Frame]], key: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The values of a key in the frames that two streams have in common: for each env, those that both have reached."""
    pairs = [pair for number in sorted({*one} & {*other}) for pair in zip(one[number], other[number], strict=False)]
    return torch.stack([a[key] for a, _ in pairs]), torch.stack([b[key] for _, b in pairs])


def layout_of(batch: TensorDictBase) -> dict[Any, Any]:
    """Shape and dtype of a batch under each key."""
    leaves = batch.items(include_nested=True, leaves_only=True)
    return {key: (tuple(value.shape), value.dtype) for key, value in sorted(leaves, key=lambda leaf: str(leaf[0]))}


def require_complete(batches: Sequence[TensorDictBase], length: Callable[[int, int], int]) -> None:
    """Require that each env's frames are the steps of one episode after the other."""
    expected: dict[int, tuple[int, int]] = {}
    for place, _ in frames_of(batches):
        number, episode, step = place
        require_same(f"a frame of env {number}", "(episode, step)", expected.get(number, (episode, 0)), (episode, step))
        expected[number] = (episode, step + 1) if step + 1 < length(number, episode) else (episode + 1, 0)


def require_equal(where: str, key: Any, expected: torch.Tensor, found: torch.Tensor) -> None:
    """Raise AssertionError unless two tensors are equal; the first difference is named."""
    if not torch.equal(expected, found):
        first = (expected != found).nonzero()[:1].flatten().tolist()
        raise AssertionError(f"{where}, {key!r}: expected {expected[tuple(first)]}, found {found[tuple(first)]} at {first}")


def require_same(where: Any, what: str, expected: Any, found: Any) -> None:
    """Raise AssertionError unless the found value equals the expected one; `where` describes the place."""
    if expected != found:
        place = "frame (env {}, episode {}, step {})".format(*where) if isinstance(where, tuple) else where
        raise AssertionError(f"{place}: {what}: expected {expected}, found {found}")
