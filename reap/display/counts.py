"""What a view of a running collector shows: its counts, and the rate since a moment ago."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from time import perf_counter

from reap.collectors.stats import RECENT_EPISODES, CollectorStats, Meter

RATE_WINDOW = 30
"""Number of views over which the rate is measured in the terminal: a few seconds, so that a pause is soon forgotten."""


@dataclass(frozen=True)
class Counted:
    """The values that one drawing shows.

    Attributes:
        stats: the collector's counts.
        total: frames at which the loop is done; None for no end.
        rate: frames per second.
        seconds: time since the loop started.
        has_ended: whether the loop has ended.
    """

    stats: CollectorStats
    total: int | None
    rate: float
    seconds: float
    has_ended: bool = False

    @property
    def frames(self) -> str:
        """`1,000/5,000 frames` if there is an end, else `1,000 frames`."""
        return f"{self.stats.frames:,}{'' if self.total is None else f'/{self.total:,}'} frames"

    @property
    def part(self) -> str:
        """`20%`, or an empty string if there is no end."""
        return "" if self.total is None else f"{math.floor(min(1.0, self.stats.frames / self.total) * 100)}%"

    @property
    def time(self) -> str:
        """`0:12 left` if that is known, else `after 0:48`."""
        if self.has_ended or self.total is None or self.rate <= 0:
            return f"after {_clock(self.seconds)}"
        return f"{_clock(max(0, self.total - self.stats.frames) / self.rate)} left"

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """Names and values of the known facts about the episodes."""
        stats = self.stats
        if not stats.finished_episodes:
            return [("episodes", "0"), *self.workers]
        return [
            ("return", f"{stats.recent_returns.mean:,.1f}"),
            ("length", f"{stats.recent_lengths.mean:,.1f}"),
            ("last", f"{min(stats.finished_episodes, RECENT_EPISODES)} of {stats.finished_episodes:,} episodes"),
            *self.workers,
        ]

    @property
    def workers(self) -> list[tuple[str, str]]:
        """The number of workers that are connected, and of machines if there may be several; otherwise empty."""
        places = [one.place for one in self.stats.workers or [self.stats] if one.place is not None]
        if not places:
            return []
        joining, hosts = sum(place.is_joining for place in places), len({place.host for place in places} - {""})
        where = f" on {hosts} host{'' if hosts == 1 else 's'}" if hosts else ""
        return [("workers", f"{len(places) - joining} up{f', {joining} joining' if joining else ''}{where}")]

    @property
    def shares(self) -> tuple[tuple[str, float], ...]:
        """Names and shares of the time, 0 to 1."""
        stats = self.stats
        return ("env", stats.env_share), ("policy", stats.policy_share), ("training", stats.waiting_share)


class Count:
    """Reads the meter and measures its rate.

    Args:
        meter: the meter to read; its list of episodes is left to the user.
        total: frames at which the loop is done; None for no end.
        window: number of views over which the rate is measured.
    """

    def __init__(self, meter: Meter, total: int | None, window: int = RATE_WINDOW) -> None:
        self._meter = meter
        self._total = total
        self._window = window
        self.begin()

    def begin(self) -> None:
        """Measure from here."""
        self._first = (perf_counter(), self._meter.frames)
        self._seen = deque([self._first], maxlen=self._window)

    def now(self) -> Counted:
        """The counts, and the rate over the last seconds."""
        self._seen.append((perf_counter(), self._meter.frames))
        return self._since(self._seen[0])

    def in_all(self) -> Counted:
        """The counts, and the rate over the whole loop."""
        self._seen.append((perf_counter(), self._meter.frames))
        return replace(self._since(self._first), has_ended=True)

    def _since(self, start: tuple[float, int]) -> Counted:
        now, frames = self._seen[-1]
        seconds = now - start[0]
        rate = (frames - start[1]) / seconds if seconds > 0 else 0.0
        return Counted(self._meter.glance(), self._total, rate, now - self._first[0])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
