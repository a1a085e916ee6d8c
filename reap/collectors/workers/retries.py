"""`Retries`: how often a worker that fails again and again is replaced, and how soon."""

from __future__ import annotations

import warnings
from typing import Protocol

from reap.errors import WorkerDied, WorkerError
from reap.workers.reports import brief

LONGEST = 60.0
"""Seconds between two tries at the most."""


class Retries(Protocol):
    """Decides on each failure."""

    def pause(self, failure: WorkerError, tries: int) -> float:
        """Seconds until a successor is launched.

        Args:
            failure: what happened.
            tries: successors that were launched since a worker in this place last completed anything.

        Raises:
            WorkerError: the failure, where no other worker is to be tried.
        """
        ...


class OneTry:
    """One successor, at once: where it fails before it has completed anything, its failure is raised."""

    def pause(self, failure: WorkerError, tries: int) -> float:
        """See `Retries`."""
        if tries:
            raise failure
        return 0.0


class GrowingPauses:
    """Code that raises twice is raised; workers that die are replaced for as long as it takes, after 0, 1, 2, 4, ... seconds.

    Each successor is warned of: on a cluster the cause, a machine that is down for example, may pass by itself.
    """

    def pause(self, failure: WorkerError, tries: int) -> float:
        """See `Retries`."""
        if tries and not isinstance(failure, WorkerDied):
            raise failure
        seconds = min(2.0 ** (tries - 1), LONGEST) if tries else 0.0
        when = f"in {seconds:.0f} s" if seconds else "now"
        message = f"worker {failure.worker} is replaced {when} (try {tries + 1}): {brief(failure)}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return seconds
