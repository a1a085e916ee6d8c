"""What a collector does with the counts of a rollout: they go to its meter; numbers that left their bounds are told once."""

from __future__ import annotations

import warnings

from reap.collectors.stats import Meter
from reap.collectors.worker.commands import Done
from reap.errors import BoundsWarning, callers_level


def count_rollout(meter: Meter, done: Done, *, worker: int = 0, staleness: int = 0) -> None:
    """Count a rollout; warn of each key whose numbers lie outside of their bounds for the first time."""
    meter.add(done.frames, done.episodes, done.env_seconds, done.policy_seconds, worker=worker, staleness=staleness)
    for outside in meter.add_outside(done.outside, worker):
        warnings.warn(
            f"{outside.text}. It is recorded as it is, as are others under this key, which collector.stats() counts; "
            'check="all" makes them errors',
            BoundsWarning,
            stacklevel=callers_level(),
        )
