"""Registers: where the steps of a policy that was taken apart find their inputs and leave their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Registers = list[Any]
Step = Callable[[Registers], None]
"""Appends its results to the registers."""


class UnwrapError(Exception):
    """A policy is not taken apart; the text says why."""
