"""`Wait`: for another process, without a word at first, and then with the name of who is waited for.

It costs no core: who waits looks again after a pause that grows to `LONGEST`. Nothing is lost by an exception in it.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

SHORTEST, LONGEST = 20e-6, 4e-3
"""Seconds between two looks, the first and the last."""

PATIENCE = 2.0
"""Seconds after which a wait is reported; then after twice as many each time."""

_WORDS = 100
"""Characters of a command that are shown."""


class Wait:
    """One wait.

    Args:
        what: what is waited for, in words; called when the wait is reported.
    """

    def __init__(self, what: Callable[[], str]) -> None:
        self._what = what
        self._begun = time.monotonic()
        self._pause, self._patience = SHORTEST, PATIENCE

    def rest(self) -> None:
        """Let others work before the next look."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST)
        waited = time.monotonic() - self._begun
        if waited >= self._patience:
            self._patience *= 2
            message = f"waited for {waited:.0f} s: {self._what()}. The wait goes on; Ctrl-C ends it"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


def described(pid: int) -> str:
    """A process in words: its number, its command, and what keeps it from going on if that is known.

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
    remedy = f"kill -CONT {pid} lets it go on, kill -KILL {pid} ends it"
    return f"{named}, which is stopped (Ctrl-Z, SIGSTOP or a debugger; {remedy})"
