"""The trees of torchrl's samplers of priorities, where its own do not load.

torchrl has them in C++, compiled against one version of torch; with another one its classes `PrioritizedSampler` and
`PrioritizedSliceSampler` refuse to be made. All that they do beside is Python, and runs on these.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

MODULES = "torchrl.data.replay_buffers.samplers.prioritized", "torchrl.data.replay_buffers.samplers"


class Tree:
    """Numbers at places, and what they make together."""

    neutral = 0.0

    def __init__(self, capacity: int) -> None:
        self.values = np.full(capacity, self.neutral)

    def __getitem__(self, index: Any) -> Any:
        found = torch.from_numpy(np.atleast_1d(self.values[np.asarray(index)])).float()
        return found if getattr(index, "ndim", 0) else float(found[0])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.values[np.asarray(index)] = np.asarray(value)


class SumTree(Tree):
    def query(self, start: int, end: int) -> float:
        return float(self.values[start:end].sum())

    def scan_lower_bound(self, mass: Any) -> torch.Tensor:
        return torch.from_numpy(np.atleast_1d(np.searchsorted(self.values.cumsum(), np.asarray(mass))))


class MinTree(Tree):
    neutral = float("inf")

    def query(self, start: int, end: int) -> float:
        return float(self.values[start:end].min())


def provide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put these in the place of those that did not load."""
    for module in filter(None, map(sys.modules.get, MODULES)):
        for width in ("Fp32", "Fp64"):
            for kind, tree in (("Sum", SumTree), ("Min", MinTree)):
                if getattr(module, f"{kind}SegmentTree{width}", tree) is None:
                    monkeypatch.setattr(module, f"{kind}SegmentTree{width}", tree)
