"""A collector's counts as JSON: for the page, and for programs that read it."""

from __future__ import annotations

import math
from typing import Any

from reap.collectors.stats import RECENT_EPISODES, CollectorStats, Summary
from reap.data.buffers.replay import ReplayBuffer
from reap.display.counts import Counted
from reap.keys import plain


def report(title: str, counted: Counted, buffer: Any) -> dict[str, Any]:
    """The numbers of one moment; those that are not known are None.

    Args:
        title: name of the run.
        counted: the collector's counts.
        buffer: the replay buffer that the collector fills, or None.
    """
    stats = counted.stats
    return {
        "title": title,
        "ended": counted.has_ended,
        "seconds": counted.seconds,
        "frames": stats.frames,
        "total": counted.total,
        "frames_per_second": counted.rate,
        "batches": stats.batches,
        "episodes": stats.finished_episodes,
        "recent_episodes": min(stats.finished_episodes, RECENT_EPISODES),
        "return": _summary(stats.recent_returns),
        "length": _summary(stats.recent_lengths),
        "time": dict(counted.shares),
        "staleness": stats.staleness,
        "discarded_frames": stats.discarded_frames,
        "restarts": stats.restarts,
        "out_of_bounds": {str(plain(one.key)): one.frames for one in stats.outside},
        "workers": [_worker(worker) for worker in stats.workers or [stats] if worker.place is not None or stats.workers],
        "buffer": _fill(buffer),
    }


def _summary(summary: Summary) -> dict[str, float | None]:
    return {"mean": _known(summary.mean), "min": _known(summary.min), "max": _known(summary.max)}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _worker(stats: CollectorStats) -> dict[str, Any]:
    place = stats.place
    return {
        "state": "joining" if place is not None and place.is_joining else "up",
        "host": "" if place is None else place.host,
        "frames": stats.frames,
        "frames_per_second": stats.frames_per_second,
        "episodes": stats.finished_episodes,
        "return": _known(stats.recent_returns.mean),
        "time": {"env": stats.env_share, "policy": stats.policy_share, "waiting": stats.waiting_share},
        "restarts": stats.restarts,
    }


def _fill(buffer: Any) -> dict[str, int] | None:
    """The fill level of a buffer, read from its storage: the buffer itself raises errors of the background, once each."""
    if not isinstance(buffer, ReplayBuffer):
        return None
    return {"items": len(buffer.storage), "capacity": buffer.storage.max_size}
