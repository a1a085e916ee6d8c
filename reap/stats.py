"""What a collector counts: `CollectorStats`, and the `Meter` that keeps it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from reap.trajectories import Episode

KEPT_EPISODES = 10_000
"""Episodes kept for the next reader of the stats, so that a run that never reads them does not grow."""


@dataclass(frozen=True)
class Summary:
    """Mean, least and greatest of some numbers; NaN where there are none."""

    mean: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """The summary of these numbers."""
        if not values:
            return cls(float("nan"), float("nan"), float("nan"))
        return cls(sum(values) / len(values), min(values), max(values))


@dataclass(frozen=True)
class CollectorStats:
    """Counts of a collector since it was built.

    Attributes:
        frames: valid frames delivered.
        batches: batches delivered.
        frames_per_second: frames over the time since the first batch was asked for.
        finished_episodes: number of episodes that ended.
        episodes: the episodes that ended since stats were last read, the latest 10,000 at the most.
        returns: sums of rewards of these episodes.
        lengths: frames of these episodes.
        env_share: share of the time spent in the env, 0 to 1.
        policy_share: share of the time spent in the policy.
        waiting_share: share of the time spent outside of the collector, in the training loop.
        staleness: policy updates that the last batch was behind.
        discarded_frames: frames that were collected and not delivered.
        restarts: workers that were restarted.
        workers: the same for each worker, where there are several.
    """

    frames: int
    batches: int
    frames_per_second: float
    finished_episodes: int
    episodes: list[Episode] = field(repr=False)
    returns: Summary
    lengths: Summary
    env_share: float
    policy_share: float
    waiting_share: float
    staleness: int = 0
    discarded_frames: int = 0
    restarts: int = 0
    workers: list[CollectorStats] = field(default_factory=list["CollectorStats"])


class Meter:
    """Adds up what the rollouts report."""

    def __init__(self) -> None:
        self.frames = self.batches = self.finished = self.discarded = self.restarts = self.staleness = 0
        self._episodes: deque[Episode] = deque(maxlen=KEPT_EPISODES)
        self._env_seconds = self._policy_seconds = self._busy_seconds = 0.0
        self._started: float | None = None
        self._entered = 0.0

    def enter(self) -> None:
        """The collector begins to work on a batch."""
        self._entered = perf_counter()
        if self._started is None:
            self._started = self._entered

    def leave(self) -> None:
        """The batch is handed over, or failed."""
        self._busy_seconds += perf_counter() - self._entered

    def add(self, frames: int, episodes: Sequence[Episode], env_seconds: float, policy_seconds: float) -> None:
        """Count a rollout."""
        self.frames += frames
        self.finished += len(episodes)
        self._episodes.extend(episodes)
        self._env_seconds += env_seconds
        self._policy_seconds += policy_seconds

    def read(self) -> CollectorStats:
        """The counts; the list of episodes begins anew."""
        elapsed = perf_counter() - self._started if self._started is not None else 0.0
        whole = elapsed or 1.0
        episodes = list(self._episodes)
        self._episodes.clear()
        return CollectorStats(
            frames=self.frames,
            batches=self.batches,
            frames_per_second=self.frames / whole if elapsed else 0.0,
            finished_episodes=self.finished,
            episodes=episodes,
            returns=Summary.of([episode.reward for episode in episodes]),
            lengths=Summary.of([float(episode.length) for episode in episodes]),
            env_share=self._env_seconds / whole,
            policy_share=self._policy_seconds / whole,
            waiting_share=max(0.0, elapsed - self._busy_seconds) / whole if elapsed else 0.0,
            staleness=self.staleness,
            discarded_frames=self.discarded,
            restarts=self.restarts,
        )
