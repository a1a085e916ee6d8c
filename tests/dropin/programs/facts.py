"""What the programs of this folder print: facts that chance does not change, and the return of what they trained."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase


class Facts:
    """What one run of a program gathers."""

    def __init__(self) -> None:
        self._described: dict[str, dict[str, Any]] = {}
        self._frames: list[int] = []
        self._losses: set[str] = set()
        self._finite = True

    def describe(self, name: str, data: TensorDictBase) -> None:
        """Keep the form of the first data with this name."""
        if name not in self._described:
            self._described[name] = described(data)

    def collected(self, batch: TensorDictBase) -> None:
        """Count a batch; the form of the first one is kept."""
        self.describe("batch", batch)
        self._frames.append(batch.numel())

    def trained(self, losses: TensorDictBase) -> None:
        """Note the losses of an update."""
        for name, value in losses.items():
            if name.startswith("loss"):
                self._losses.add(name)
                self._finite &= bool(torch.isfinite(value).all())

    def result(self, mean_return: Any, **counts: int) -> dict[str, Any]:
        """All facts, for `run` to print."""
        return {
            "described": self._described,
            "frames": self._frames,
            "losses": sorted(self._losses),
            "finite": self._finite,
            "counts": counts,
            "return": float(mean_return),
        }


def described(data: TensorDictBase) -> dict[str, Any]:
    """Batch sizes, dtypes and shapes by key, and what `data` itself has."""
    found: dict[str, Any] = {"size": list(data.batch_size), "names": list(data.names), "device": str(data.device)}
    for key, value in data.items(include_nested=True):
        path = ".".join(["data", *key] if isinstance(key, tuple) else ["data", key])
        if isinstance(value, TensorDictBase):
            found[path] = list(value.batch_size)
        elif isinstance(value, torch.Tensor):
            found[path] = [str(value.dtype), list(value.shape)]
        else:
            found[path] = type(value).__name__
    return found


def run(main: Callable[[int], dict[str, Any]]) -> None:
    """Call a program once for each seed of the command line, and print the facts of all as a line of JSON."""
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    for seed in map(int, sys.argv[1:] or ["0"]):
        torch.manual_seed(seed)
        results.append(main(seed))
        assert math.isfinite(results[-1]["return"])
    print(json.dumps(results))
