"""The points of the charts: the whole run, in a bounded amount of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Point = list[float | None]

POINTS = 240
"""Maximum number of points: more would be less than two pixels apart on a phone."""


def point(numbers: Mapping[str, Any]) -> Point:
    """The values that are drawn: seconds, frames/s, return and length (mean, min, max each), shares of time, buffer."""
    has_begun = numbers["frames"] > 0
    rate = numbers["frames_per_second"] if has_begun else None
    summaries = [numbers[name][part] for name in ("return", "length") for part in ("mean", "min", "max")]
    shares = [numbers["time"][name] if has_begun else None for name in ("env", "policy", "training")]
    buffer = None if numbers["buffer"] is None else numbers["buffer"]["items"]
    return [numbers["seconds"], rate, *summaries, *shares, buffer]


class History:
    """Points in order of time.

    When there are too many, every second one is dropped, and from then on points are kept at half the rate.

    Args:
        most: maximum number of points.

    Attributes:
        points: those that are kept.
        thinned: how often points were dropped.
    """

    def __init__(self, most: int = POINTS) -> None:
        self.points: list[Point] = []
        self.thinned = 0
        self._most = most
        self._seen = 0

    def add(self, new: Point) -> None:
        """Keep a point, or skip it."""
        if self._seen % 2**self.thinned == 0:
            self.points.append(new)
        self._seen += 1
        if len(self.points) > self._most:
            self.points = self.points[::2]
            self.thinned += 1
