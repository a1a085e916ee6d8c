"""`Wait`: waits for another process, silently at first, and then with a warning that names it.

A wait does not keep a core busy: it polls with pauses that grow to `LONGEST`. An exception in it loses nothing.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

SHORTEST, LONGEST = 20e-6, 4e-3
"""Seconds between two polls, initially and at most."""

PATIENCE = 2.0
"""Seconds after which a wait is reported; doubled for each further report."""

_WORDS = 100
"""Number of characters of a command that are shown."""


class Wait:
    """One wait.

    Args:
        what: returns a text for the reason of the wait; called when the wait is reported.
    """

    def __init__(self, what: Callable[[], str]) -> None:
        self._what = what
        self._begun = time.monotonic()
        self._pause, self._patience = SHORTEST, PATIENCE

    def rest(self) -> None:
        """Pause before the next poll."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST)
        waited = time.monotonic() - self._begun
        if waited >= self._patience:
            self._patience *= 2
            message = f"waited for {waited:.0f} s: {self._what()}. The wait continues; Ctrl-C ends it"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


def described(pid: int) -> str:
    """A text for a process: its pid, its command, and, if known, the reason why it does not continue.

    Example:
        >>> described(os.getpid()) == f"this process ({os.getpid()})"
        True
    """
    if pid == os.getpid():
        return f"this process ({pid})"
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return f"process {pid}, which has ended"
    named = f"process {pid} ({' '.join(command.split())[:_WORDS]})"
    if state not in "Tt":
        return named
    remedy = f"kill -CONT {pid} lets it continue, kill -KILL {pid} ends it"
    return f"{named}, which is stopped (Ctrl-Z, SIGSTOP or a debugger; {remedy})"
