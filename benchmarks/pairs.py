"""What a benchmark is made of: two loops that do the same work, and the ratio of their speeds.

    claim file      pairs() -> Pair(ours, baseline, target) ...
    run.py          measure(pair) -> Measurement -> table, JSON

Only ratios count: both loops run in one process, in turns, through `ceiling.ratio`. Rates are printed to give an idea.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from ceiling import ratio

from reap import GymEnv, SerialEnv, SyncDataCollector

Loop = Callable[[], int]
"""Collects one batch and returns its number of frames."""

OpenLoop = Callable[[], AbstractContextManager[Loop]]
"""Builds a loop, and closes what it holds afterwards."""

SIZES = ((1, 1000), (8, 125), (64, 50))
"""Envs and time steps of a batch, as in `ceiling.py`."""


@dataclass(frozen=True)
class Pair:
    """Two loops that are run in turns.

    Attributes:
        claim: what is claimed, in words.
        subject: whose loop is measured: "reap", or the name of a peer.
        envs: number of envs.
        ours: the subject's loop.
        baseline: the hand-written loop.
        target: the ratio that is promised; None where nothing is.
        needs: the package without which the pair is left out.
    """

    claim: str
    subject: str
    envs: int
    ours: OpenLoop
    baseline: OpenLoop
    target: float | None = None
    needs: str | None = None

    @property
    def is_installed(self) -> bool:
        """Whether this machine has what the pair needs."""
        return self.needs is None or find_spec(self.needs) is not None


@dataclass(frozen=True)
class Measurement:
    """Ratio of the frames per second of two loops: median, lowest and highest of the repeats.

    Attributes:
        rate: frames per second of the subject (median).
        baseline_rate: frames per second of the hand-written loop (median).
    """

    claim: str
    subject: str
    envs: int
    target: float | None
    ratio: float
    lowest: float
    highest: float
    rate: float
    baseline_rate: float

    @property
    def passed(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        return None if self.target is None else self.ratio >= self.target

    @property
    def column_us(self) -> tuple[float, float]:
        """Microseconds per column (one step of all envs) of the subject and of the hand-written loop."""
        return 1e6 * self.envs / self.rate, 1e6 * self.envs / self.baseline_rate


def measure(pair: Pair, seconds: float, repeats: int) -> Measurement:
    """Run the loops of a pair in turns.

    Args:
        pair: the loops.
        seconds: length of one turn.
        repeats: number of turns of each.
    """
    with pair.ours() as ours, pair.baseline() as baseline:
        # One repeat a call: `ratio` returns medians, and the spread is wanted too.
        ratios, rates, baseline_rates = zip(*(ratio(ours, baseline, seconds, 1) for _ in range(repeats)), strict=True)
    return Measurement(
        pair.claim,
        pair.subject,
        pair.envs,
        pair.target,
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        statistics.median(rates),
        statistics.median(baseline_rates),
    )


@contextmanager
def plain_loop(build: Callable[..., Loop], *arguments: Any, **keywords: Any) -> Iterator[Loop]:
    """A loop that holds nothing to be closed."""
    yield build(*arguments, **keywords)


@contextmanager
def reap_loop(build_env: Callable[[], Any], build_policy: Callable[[], Any], frames: int) -> Iterator[Loop]:
    """The loop of reap: the next batch of a `SyncDataCollector`, dropped at once, as the hand-written loops drop theirs."""
    with SyncDataCollector(build_env(), build_policy(), frames_per_batch=frames) as collector:
        yield lambda: collector.next().numel()


@contextmanager
def alone(collect: Loop, pids: Sequence[int]) -> Iterator[Loop]:
    """The loop; processes that work for it stand still outside of it, in the other loop's turns."""

    def send(number: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    def once() -> int:
        send(signal.SIGCONT)
        frames = collect()
        send(signal.SIGSTOP)
        return frames

    send(signal.SIGSTOP)
    yield once
    send(signal.SIGCONT)


def make_rows(envs: int, build: Callable[[], gym.Env[Any, Any]]) -> GymEnv | SerialEnv:
    """Gymnasium envs for reap, built by the same call as in the hand-written loop: the same wrappers around them."""

    def build_one() -> GymEnv:
        return GymEnv(build())

    return build_one() if envs == 1 else SerialEnv(envs, build_one)


def note(text: str) -> None:
    """A line for people, apart from the results."""
    print(text, file=sys.stderr)
