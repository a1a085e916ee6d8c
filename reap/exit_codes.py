"""How a process ended, by its exit code in multiprocessing's form (`-n` for signal `n`, None if unknown), and likely causes."""

from __future__ import annotations

from signal import Signals

_SIGNAL_CAUSES = {
    "SIGKILL": (
        "Likely causes: the kernel's out-of-memory killer (see dmesg, or memory.events of the container; use fewer "
        "workers or smaller batches), or someone's kill -9."
    ),
    "SIGSEGV": (
        "Likely cause: a crash in native code of the env or the policy. Run the env alone under "
        "python -X faulthandler to see where."
    ),
    "SIGBUS": (
        "Likely cause: no memory left for shared pages (see the container's memory limit and df /dev/shm), or a "
        "memory-mapped file that was cut short."
    ),
    "SIGABRT": (
        "Likely cause: native code of the env or the policy called abort(), mostly after printing why to the "
        "worker's stderr (a failed assertion, a double free, no display for rendering)."
    ),
    "SIGTERM": "Likely cause: something outside asked it to stop, for example a scheduler at its time limit.",
    "SIGUSR2": "Likely cause: something outside asked it to stop, for example submitit shortly before a job's time limit.",
    "SIGINT": "Likely cause: something outside interrupted it, for example kill -INT.",
}
_EXIT_CAUSE = (
    "Likely cause: sys.exit or os._exit in the env or the policy, or in a library that they load, or code that closes file "
    "descriptors that are not its own (os.closerange)."
)
_LOST_CAUSE = "Its connection broke and no exit code is known: its machine or its network may be down."


def signal_of(exit_code: int | None) -> Signals | None:
    """The signal that killed the process; None if it was none, or is not known.

    Example:
        >>> signal_of(-9).name, signal_of(1)
        ('SIGKILL', None)
    """
    if exit_code is None or -exit_code not in {*Signals}:
        return None
    return Signals(-exit_code)


def ending(exit_code: int | None) -> str:
    """How the process ended, as a predicate.

    Example:
        >>> ending(3), ending(-9), ending(None)
        ('ended with exit code 3', 'was killed by SIGKILL (signal 9)', 'was lost')
    """
    if exit_code is None:
        return "was lost"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    signal = signal_of(exit_code)
    return f"was killed by {signal.name if signal else 'a signal'} (signal {-exit_code})"


def likely_cause(exit_code: int | None) -> str:
    """A sentence about the likely causes of this end."""
    if exit_code is None:
        return _LOST_CAUSE
    if exit_code >= 0:
        return _EXIT_CAUSE
    signal = signal_of(exit_code)
    return _SIGNAL_CAUSES.get(signal.name if signal else "", "No likely cause is known for this signal.")
