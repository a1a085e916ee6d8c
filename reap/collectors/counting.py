"""Counts a rollout in the collector's meter, and warns once of each key whose numbers leave their bounds."""

from __future__ import annotations

import warnings

from reap.collectors.stats import Meter
from reap.collectors.worker.commands import Done
from reap.errors import BoundsWarning, callers_level


def count_rollout(meter: Meter, done: Done, *, worker: int = 0, staleness: int = 0) -> None:
    """Count a rollout; warn the first time that the numbers of a key lie outside their bounds."""
    meter.add(done.frames, done.episodes, done.env_seconds, done.policy_seconds, worker=worker, staleness=staleness)
    for outside in meter.add_outside(done.outside, worker):
        warnings.warn(
            f"{outside.text}. It and later ones under this key are recorded as they are; collector.stats() counts them; "
            'check="all" makes them errors',
            BoundsWarning,
            stacklevel=callers_level(),
        )
