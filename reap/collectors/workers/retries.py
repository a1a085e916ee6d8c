"""`Retries`: how often a worker that fails again and again is replaced, and how soon."""

from __future__ import annotations

import warnings
from typing import Protocol

from reap.errors import WorkerDied, WorkerError
from reap.workers.reports import brief

LONGEST = 60.0
"""Maximum number of seconds between two tries."""


class Retries(Protocol):
    """Decides after each failure whether to try another worker."""

    def pause(self, failure: WorkerError, tries: int) -> float:
        """Seconds to wait before a successor is launched.

        Args:
            failure: what happened.
            tries: number of successors launched since a worker in this place last completed anything.

        Raises:
            WorkerError: the failure, if no other worker is to be tried.
        """
        ...


class OneTry:
    """One successor, at once; if it fails before it has completed anything, its failure is raised."""

    def pause(self, failure: WorkerError, tries: int) -> float:
        """See `Retries`."""
        if tries:
            raise failure
        return 0.0


class GrowingPauses:
    """Retry without limit, after 0, 1, 2, 4, ... seconds, as long as workers die; raise an exception that code raises twice.

    Each replacement is logged as a warning. On a cluster the cause, such as a machine that is down, may pass by itself.
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
