"""`RowsEnv`: an env whose array face is a separate object, which step loops call directly, to save a call per step."""

from __future__ import annotations

from typing import Any

from reap.envs.base import EnvBase
from reap.envs.row_stepper import Rows
from reap.recording.buffers import Slot, Stage


class RowsEnv(EnvBase):
    """An env that passes the calls of its array face on to `row`.

    Attributes:
        row: the object whose `bind`, `reset_rows` and `step_rows` step loops call.
    """

    row: Any

    def row_stepper(self) -> Any:
        """The rows, which step loops call directly."""
        self.ensure_open()
        return self.row

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write."""
        self.row.bind(stage, slot)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Start new episodes in these rows, or in all."""
        self.row.reset_rows(rows, t)

    def step_rows(self, rows: Rows | None, t: int) -> Rows | None:
        """Step rows with the actions of column `t`; return those whose episode ended."""
        return self.row.step_rows(rows, t)

    def send(self, rows: Rows | None, t: int) -> None:
        """Send the actions of column `t` to these rows."""
        self.row.send(rows, t)

    def receive(self) -> Rows | None:
        """Write the results of the rows; return those whose episode ended."""
        return self.row.receive()
