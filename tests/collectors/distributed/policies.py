"""Policies of these tests."""

from __future__ import annotations

from threading import Lock
from typing import Any

from torch import nn


class Chooser(nn.Module):
    """For CartPole, with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 2)

    def forward(self, observation: Any) -> Any:
        return nn.functional.one_hot(self.scores(observation).argmax(-1), 2)


class Locked(Chooser):
    """Cannot be sent anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()
