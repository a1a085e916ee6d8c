"""Statistics of a collector: `CollectorStats`, and the `Meter` that counts them.

Rollouts add to the meter; readers take a snapshot. `read` also returns the list of finished episodes and starts a new
one: the user's `collector.stats()` does this. `glance` leaves the list alone, for other readers such as a progress display.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from time import perf_counter

from reap.keys import Key, plain
from reap.recording.trajectories import Episode
from reap.specs.fits import Outside

KEPT_EPISODES = 10_000
"""Maximum number of episodes kept for the next reader, so that memory is bounded in a run that never reads them."""

RECENT_EPISODES = 100
"""Number of episodes in `recent_returns` and `recent_lengths`."""


@dataclass(frozen=True)
class Summary:
    """Mean, minimum and maximum of some numbers; NaN for no numbers.

    Example:
        >>> summary = Summary.of([9.0, 10.0, 500.0])
        >>> summary.max, str(summary)
        (500.0, '173.0 (9.0 to 500.0)')
    """

    mean: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """The summary of these numbers."""
        if not values:
            return cls(float("nan"), float("nan"), float("nan"))
        return cls(sum(values) / len(values), min(values), max(values))

    def __str__(self) -> str:
        return "–" if isnan(self.mean) else f"{self.mean:.1f} ({self.min:.1f} to {self.max:.1f})"


@dataclass(frozen=True)
class Place:
    """The location of a worker, and the data received from it.

    Attributes:
        host: the name of the machine; empty if not known yet.
        node: the engine's name for the machine; empty if the host name is enough.
        bytes: number of bytes received from the worker.
        transfer_seconds: time spent receiving.
        is_joining: the worker has been launched but does not record yet.
    """

    host: str
    node: str
    bytes: int
    transfer_seconds: float
    is_joining: bool = False

    def __str__(self) -> str:
        where = " ".join(filter(None, (self.host, f"({self.node})" if self.node else ""))) or "somewhere"
        state = "joining" if self.is_joining else "up"
        return f"{state} on {where}, {self.bytes / 1e6:,.1f} MB in {self.transfer_seconds:.1f} s"


@dataclass(frozen=True)
class CollectorStats:
    """Counts of a collector since it was built. `print(collector.stats())` shows them as a few lines of text.

    The three shares are fractions of the time since the first batch was requested. In a collector with several workers
    `env_share` and `policy_share` are means over the workers, which work at the same time as the training loop: the
    shares then add up to more than 1. In the stats of one worker `waiting_share` is its time in neither.

    Attributes:
        frames: valid frames delivered.
        batches: batches delivered; for a worker, its rollouts.
        frames_per_second: frames divided by the time since the first batch was requested, training included.
        finished_episodes: number of episodes that ended.
        episodes: the episodes that ended since stats were last read, the latest 10,000 at the most.
        recent_returns: sums of rewards of the last 100 episodes that ended, read or not.
        recent_lengths: frames of the last 100 episodes that ended.
        env_share: share of the time spent in the env, 0 to 1.
        policy_share: share of the time spent in the policy, 0 to 1.
        waiting_share: share of the time spent outside of the collector, in the training loop, 0 to 1.
        staleness: number of policy updates by which the last batch lagged.
        discarded_frames: frames collected but not delivered; for failed workers, as far as known.
        restarts: number of worker restarts.
        outside: numbers outside the bounds of the env's own specs, for each key: the number of frames, and a description of
            the first.
        workers: the same statistics for each worker, if there are several.
        place: the location of a worker that may be on another machine.
    """

    frames: int
    batches: int
    frames_per_second: float
    finished_episodes: int
    episodes: list[Episode] = field(repr=False)
    recent_returns: Summary
    recent_lengths: Summary
    env_share: float
    policy_share: float
    waiting_share: float
    staleness: int = 0
    discarded_frames: int = 0
    restarts: int = 0
    outside: list[Outside] = field(default_factory=list[Outside])
    workers: list[CollectorStats] = field(default_factory=list["CollectorStats"])
    place: Place | None = None

    @property
    def out_of_bounds(self) -> int:
        """Number of frames with numbers outside their bounds, summed over the keys."""
        return sum(one.frames for one in self.outside)

    @property
    def returns(self) -> Summary:
        """Sums of rewards of `episodes`."""
        return Summary.of([episode.reward for episode in self.episodes])

    @property
    def lengths(self) -> Summary:
        """Lengths of `episodes`, in frames."""
        return Summary.of([float(episode.length) for episode in self.episodes])

    def _recent(self) -> str:
        return f"return {self.recent_returns}, length {self.recent_lengths}"

    def __str__(self) -> str:
        number = min(self.finished_episodes, RECENT_EPISODES)
        lines = [
            f"{self.frames:,} frames in {self.batches:,} batches, {self.frames_per_second:,.0f} frames/s",
            f"{self.finished_episodes:,} episodes; last {number}: {self._recent()}",
            f"time: env {self.env_share:.0%}, policy {self.policy_share:.0%}, training {self.waiting_share:.0%}",
            f"staleness {self.staleness}, discarded frames {self.discarded_frames:,}, restarts {self.restarts}",
        ]
        lines += [f"out of bounds: {plain(one.key)!r} in {one.frames:,} frames" for one in self.outside]
        lines += [f"worker {number}: {worker.as_line()}" for number, worker in enumerate(self.workers)]
        return "\n".join(lines)

    def as_line(self) -> str:
        """The stats of one worker on one line."""
        return (
            f"{self.frames:,} frames, {self.frames_per_second:,.0f} frames/s, {self.finished_episodes:,} episodes, "
            f"return {self.recent_returns}; env {self.env_share:.0%}, policy {self.policy_share:.0%}, "
            f"waiting {self.waiting_share:.0%}; staleness {self.staleness}, discarded {self.discarded_frames:,}, "
            f"restarts {self.restarts}{'' if self.place is None else f'; {self.place}'}"
        )


COUNTERS = ("frames", "batches", "finished", "discarded", "restarts")
"""The counts that a resumed collector continues."""


class Meter:
    """Adds up the reports of rollouts, in a few µs per batch.

    Rollouts may be added in one thread and read in another.

    Args:
        workers: number of workers; with several, `workers` holds a meter for each.

    Attributes:
        place_of: returns the location of a worker that is not on this machine.

    Example:
        >>> meter = Meter()
        >>> meter.add(20, [Episode(9.0, 9), Episode(11.0, 11)], env_seconds=0.1, policy_seconds=0.2)
        >>> meter.read().returns
        Summary(mean=10.0, min=9.0, max=11.0)
        >>> stats = meter.read()
        >>> stats.episodes, stats.finished_episodes, stats.recent_returns.max
        ([], 2, 11.0)
    """

    def __init__(self, workers: int = 1) -> None:
        self.frames = self.batches = self.finished = self.discarded = self.restarts = self.staleness = 0
        self.workers = [Meter() for _ in range(workers)] if workers > 1 else []
        self.place_of: Callable[[int], Place] | None = None
        self._episodes: deque[Episode] = deque(maxlen=KEPT_EPISODES)
        self._recent: deque[Episode] = deque(maxlen=RECENT_EPISODES)
        self._env_seconds = self._policy_seconds = self._busy_seconds = 0.0
        self._started: float | None = None
        self._frames_at_start = 0
        self._entered: float | None = None
        self._outside: dict[Key, Outside] = {}

    def enter(self) -> None:
        """Note that the collector starts to work on a batch."""
        self._entered = perf_counter()
        if self._started is None:
            self._started = self._entered
            self._frames_at_start = self.frames
            for worker in self.workers:
                worker._frames_at_start = worker.frames

    def leave(self) -> None:
        """Note that the batch has been handed over, or has failed."""
        if self._entered is not None:
            self._busy_seconds += perf_counter() - self._entered
            self._entered = None

    def add(
        self,
        frames: int,
        episodes: Sequence[Episode],
        env_seconds: float,
        policy_seconds: float,
        *,
        worker: int = 0,
        staleness: int = 0,
    ) -> None:
        """Count a rollout.

        Args:
            frames: its valid frames.
            episodes: the episodes that ended in it.
            env_seconds: time spent in the env.
            policy_seconds: time spent in the policy.
            worker: the worker that recorded it.
            staleness: number of policy updates by which it lagged.
        """
        self.frames += frames
        self.finished += len(episodes)
        self.staleness = staleness
        self._episodes.extend(episodes)
        self._recent.extend(episodes)
        self._env_seconds += env_seconds
        self._policy_seconds += policy_seconds
        if self.workers:
            own = self.workers[worker]
            own.add(frames, episodes, env_seconds, policy_seconds, staleness=staleness)
            own.batches += 1

    def add_outside(self, outside: Sequence[Outside], worker: int = 0) -> list[Outside]:
        """Count numbers outside their bounds.

        Returns:
            Those under keys that had none before.
        """
        news = [one for one in outside if one.key not in self._outside]
        for one in outside:
            first = self._outside.get(one.key, replace(one, frames=0))
            self._outside[one.key] = replace(first, frames=first.frames + one.frames)
        if self.workers:
            self.workers[worker].add_outside(outside)
        return news

    def discard(self, frames: int, worker: int = 0) -> None:
        """Count frames that were collected but will not be delivered."""
        self.discarded += frames
        if self.workers:
            self.workers[worker].discarded += frames

    def take_back(self, frames: int, worker: int = 0) -> None:
        """Move frames that were added from delivered to discarded."""
        self.discard(frames, worker)
        self.frames -= frames

    def add_workers(self, count: int) -> None:
        """Count more workers; counts so far belong to the first worker if it was alone."""
        if not self.workers:
            self.workers.append(Meter())
            self.workers[0].restore(self.state())
        self.workers += [Meter() for _ in range(count)]

    def restart(self, worker: int = 0) -> None:
        """Count a worker restart."""
        self.restarts += 1
        if self.workers:
            self.workers[worker].restarts += 1

    def state(self) -> dict[str, int]:
        """The counts that continue after a resume."""
        return {name: getattr(self, name) for name in COUNTERS}

    def restore(self, state: Mapping[str, int]) -> None:
        """Load counts; rates are measured from now on."""
        for name in COUNTERS:
            setattr(self, name, state[name])
        self._started = self._entered = None

    def read(self) -> CollectorStats:
        """The statistics; empties the list of episodes."""
        # One by one: what another thread adds meanwhile stays for the next reader.
        whole, *each = [[m._episodes.popleft() for _ in range(len(m._episodes))] for m in (self, *self.workers)]
        return self._snapshot(whole, each)

    def glance(self) -> CollectorStats:
        """The statistics without the list of episodes, in constant time."""
        return self._snapshot([], [[] for _ in self.workers])

    def _snapshot(self, episodes: list[Episode], each: list[list[Episode]]) -> CollectorStats:
        now = perf_counter()
        elapsed = 0.0 if self._started is None else now - self._started
        busy = self._busy_seconds + (0.0 if self._entered is None else now - self._entered)
        stats = [m._stats(own, (), elapsed) for m, own in zip(self.workers, each, strict=True)]
        if self.place_of is not None:
            stats = [replace(one, place=self.place_of(worker)) for worker, one in enumerate(stats)]
        whole = self._stats(episodes, stats, elapsed, None if self._started is None else elapsed - busy)
        return whole if stats or self.place_of is None else replace(whole, place=self.place_of(0))

    def _stats(
        self,
        episodes: list[Episode],
        workers: Sequence[CollectorStats] = (),
        elapsed: float = 0.0,
        waiting: float | None = None,
    ) -> CollectorStats:
        """The statistics, with shares of `elapsed` seconds; a `waiting` of None means the rest after env and policy."""
        recent = self._recent.copy()
        worker_seconds = elapsed * max(1, len(workers))
        rest = elapsed - self._env_seconds - self._policy_seconds if waiting is None else waiting
        return CollectorStats(
            frames=self.frames,
            batches=self.batches,
            frames_per_second=_ratio(self.frames - self._frames_at_start, elapsed),
            finished_episodes=self.finished,
            episodes=episodes,
            recent_returns=Summary.of([episode.reward for episode in recent]),
            recent_lengths=Summary.of([float(episode.length) for episode in recent]),
            env_share=_ratio(self._env_seconds, worker_seconds),
            policy_share=_ratio(self._policy_seconds, worker_seconds),
            waiting_share=max(0.0, _ratio(rest, elapsed)),
            staleness=self.staleness,
            discarded_frames=self.discarded,
            restarts=self.restarts,
            outside=list(self._outside.values()),
            workers=list(workers),
        )


def _ratio(amount: float, whole: float) -> float:
    return amount / whole if whole > 0.0 else 0.0
