"""What the workers of these tests do."""

from __future__ import annotations

import operator
from typing import Any


class Doer:
    """Does what a command says: the name of an operator and its arguments, or a function of the handler."""

    def __init__(self, worker: int, control: memoryview) -> None:
        self.worker = worker
        self.control = control

    def handle(self, command: Any) -> Any:
        if callable(command):
            return command(self)
        name, *arguments = command
        return getattr(operator, name)(*arguments)

    def close(self) -> None:
        """Nothing to release."""
