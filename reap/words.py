"""Words in messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "env"), counted(2, "env"), counted(3, "process")
        ('1 env', '2 envs', '3 processes')
    """
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural}"
