"""What a benchmark is made of: two loops that do the same work, and the ratio of their speeds.

    claim file      pairs() -> Pair(ours, baseline, target), Rivals(baseline, subjects) ...
    run.py          measured() -> Measurement -> table, JSON

Only ratios count: both loops run in one process, in turns, through `ceiling.ratio`. Rates are printed to give an idea.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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

SHARE = 0.5
"""Pairs without a target are measured with this share of the seconds and of the repeats."""

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

    def measured(self, seconds: float, repeats: int) -> list[Measurement]:
        """The ratio, or nothing where this machine lacks what the pair needs; see `measure`."""
        if self.needs is not None and find_spec(self.needs) is None:
            note(f"{self.claim}, {self.subject}, {self.envs} envs: left out, {self.needs} is not installed")
            return []
        if self.target is None:
            seconds, repeats = SHARE * seconds, max(1, round(SHARE * repeats))
        return [measure(self, seconds, repeats)]


class Unavailable(Exception):  # noqa: N818  no error: it is left out
    """A loop that cannot be opened on this machine; the text says why."""


@dataclass(frozen=True)
class Subject:
    """A loop among others that are measured with one baseline.

    Attributes:
        name: whose loop it is.
        open_loop: builds it; may raise `Unavailable`.
        target: the ratio to the baseline that is promised; None where nothing is.
    """

    name: str
    open_loop: OpenLoop
    target: float | None = None


@dataclass(frozen=True)
class Rivals:
    """Loops that are run in turns, in rounds, each compared with the baseline of its round.

    All are open at the same time, and the baseline is run once for all of them: that takes half as long as pairs do.

    Attributes:
        claim: what is claimed, in words.
        envs: number of envs.
        baseline: the loop on the other side; may raise `Unavailable`.
        subjects: the loops.
        against: `(subject, other subject, target)` for ratios between subjects.
        share: of the seconds and of the repeats that are asked for.
    """

    claim: str
    envs: int
    baseline: OpenLoop
    subjects: Sequence[Subject]
    against: Sequence[tuple[str, str, float]] = ()
    share: float = 0.6

    def measured(self, seconds: float, repeats: int) -> list[Measurement]:
        """The ratios of all loops that could be opened."""
        rates: dict[str, list[float]] = {}
        with ExitStack() as stack:
            loops: dict[str, Loop] = {}
            for name, open_loop in [("", self.baseline), *((one.name, one.open_loop) for one in self.subjects)]:
                try:
                    loops[name] = stack.enter_context(open_loop())
                except Unavailable as reason:
                    note(f"{self.claim}, {name or 'the other side'}: left out, {reason}")
                    if not name:
                        return []
            try:
                for loop in loops.values():
                    loop()
                    loop()
                for _ in range(max(1, round(self.share * repeats))):
                    for name, loop in loops.items():
                        rates.setdefault(name, []).append(_rate(loop, self.share * seconds))
            except Unavailable as reason:
                note(f"{self.claim}: left out, {reason}")
                return []
        wanted = [(self.claim, one.name, "", one.target) for one in self.subjects]
        wanted += [(f"{other}, {self.claim}", name, other, target) for name, other, target in self.against]
        return [
            measurement_of(claim, name, self.envs, target, rates[name], rates[other])
            for claim, name, other, target in wanted
            if name in rates and other in rates
        ]


def _rate(loop: Loop, seconds: float) -> float:
    frames, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds or not frames:
        frames += loop()
    return frames / spent


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
        _, rates, baseline_rates = zip(*(ratio(ours, baseline, seconds, 1) for _ in range(repeats)), strict=True)
    return measurement_of(pair.claim, pair.subject, pair.envs, pair.target, rates, baseline_rates)


def measurement_of(
    claim: str, subject: str, envs: int, target: float | None, rates: Sequence[float], baseline_rates: Sequence[float]
) -> Measurement:
    """The ratios of rates, one of each round."""
    ratios = [ours / theirs for ours, theirs in zip(rates, baseline_rates, strict=True)]
    middle, other = statistics.median(rates), statistics.median(baseline_rates)
    return Measurement(claim, subject, envs, target, statistics.median(ratios), min(ratios), max(ratios), middle, other)


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
