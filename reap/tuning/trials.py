"""`Trial`: a set-up that collects for a moment, and its rate; `race`, which gives more time to the best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from reap.tuning.parts import Parts, torch_threads
from reap.tuning.setups import Setup

HOPELESS = 0.6
"""A set-up whose bound is below this fraction of the best measured rate is not tried."""

KEPT = 3
"""One in this number reaches the next round."""

ROUNDS = 3
PATIENCE = 4
"""Untried set-ups are tried for up to this many times the seconds given: processes may start slowly."""

BATCH_SECONDS = 0.1
"""Approximate maximum duration of a worker's rollout, in seconds, so that a slow env has several."""


@dataclass
class Trial:
    """A set-up and its measurements.

    Attributes:
        setup: the set-up.
        bound: frames per second that its parts alone would allow.
        rates: frames per second of each run.
        error: the reason why it could not collect, if there is one.
    """

    setup: Setup
    bound: float
    rates: list[float] = field(default_factory=list[float])
    error: str = ""

    @property
    def rate(self) -> float:
        """Frames per second, the median; 0 if it was not tried."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def share(self) -> float:
        """The rate as a fraction of the estimate from the parts alone."""
        return self.rate / self.bound


@dataclass(frozen=True)
class Track:
    """What all trials of a race have in common.

    Attributes:
        create_env_fn: makes one env.
        make_policy: makes the policy.
        frames_per_batch: maximum number of frames in a batch.
    """

    create_env_fn: Any
    make_policy: Callable[[], Any]
    frames_per_batch: int

    def run(self, trial: Trial, seconds: float) -> None:
        """Collect for a time, after a rollout of each worker for warming up.

        Workers that deliver as they come may all do so at once, so whole rounds are counted.
        """
        batches = trial.setup.batches_of_all
        expected = int(trial.bound * BATCH_SECONDS / batches)
        frames = min(self.frames_per_batch, max(expected, trial.setup.columns_of))
        try:
            with (
                torch_threads(trial.setup.threads),
                trial.setup.build(self.create_env_fn, self.make_policy, frames) as collector,
            ):
                for _ in range(batches):  # each worker's first rollout is slower
                    collector.next()
                count, began = 0, time.perf_counter()
                while (lasted := time.perf_counter() - began) < seconds:
                    count += sum(collector.next().numel() for _ in range(batches))
        except MemoryError as error:
            trial.error = f"{type(error).__name__}: {error}"
            return
        trial.rates.append(count / lasted)


def race(track: Track, setups: Sequence[Setup], parts: Parts, seconds: float) -> Iterator[list[Trial]]:
    """Try all set-ups for a moment, then the best third for longer, and so on.

    Args:
        track: what to collect.
        setups: the competitors.
        parts: their measured parts.
        seconds: approximate time to spend, including the start of processes; up to four times as much where that is slow, so
            that every set-up that could win is tried once.

    Yields:
        All trials, best first, whenever one has been run.
    """
    trials = sorted((Trial(setup, parts.bound(setup)) for setup in setups), key=lambda trial: -trial.bound)
    start = time.perf_counter()
    running, deadline = list(trials), start + seconds
    for left in range(ROUNDS, 0, -1):
        began = time.perf_counter()
        share = (deadline - began) / left
        for number, trial in enumerate(running):
            if trial.error or (not trial.rates and trial.bound < HOPELESS * _best_bound(trials)):
                continue
            rest = (began + share - time.perf_counter()) / (len(running) - number)
            if rest <= 0 and (trial.rates or _is_enough(trials, start + PATIENCE * seconds)):
                break
            track.run(trial, max(0.1, 0.6 * rest))
            yield ranked(trials)
        running = [trial for trial in ranked(running) if trial.rates][: max(2, len(running) // KEPT)]


def _is_enough(trials: Sequence[Trial], latest: float) -> bool:
    """Whether it is late, and a synchronous set-up is among those that were tried."""
    return time.perf_counter() > latest and any(one.rates and one.setup.is_synchronous for one in trials)


def _best_bound(trials: Sequence[Trial]) -> float:
    """The best rate so far, on the scale of the bounds: the machine may have been slower when the parts were measured."""
    best, most = max(one.rate for one in trials), max(one.share for one in trials)
    return best / max(1.0, most)


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Best first."""
    return sorted(trials, key=lambda trial: (-trial.rate, -trial.bound))
