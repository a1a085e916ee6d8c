"""`RowStepper`: the array face of an env, which the step loop calls once per column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from reap.recording.buffers import Slot, Stage
from reap.specs import Composite

Rows = Sequence[int]
StepRows = Callable[[Rows | None, int], Rows | None]


class RowStepper(Protocol):
    """Reads and writes bound arrays; `EnvBase` explains each method."""

    step_rows: StepRows

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Use these arrays in later calls."""
        ...

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Start new episodes."""
        ...

    def send(self, rows: Rows | None, t: int) -> None:
        """Pass on the actions of a column."""
        ...

    def receive(self) -> Rows | None:
        """Write the results of `send`."""
        ...


class StepperHalf(NamedTuple):
    """One half of an env's rows, which a loop steps while the policy computes actions for the other half.

    Attributes:
        face: steps these rows, which keep their numbers in the whole env.
        rows: the rows.
        batch_shape: their batch dimensions.
        actions: the specs of their actions.
    """

    face: RowStepper
    rows: range
    batch_shape: tuple[int, ...]
    actions: Composite
