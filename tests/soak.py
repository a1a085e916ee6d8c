"""The soak of `make soak`: collectors with processes for 10,000 batches each, and whether anything grows.

python -m tests.soak --batches 10000 --table docs/soak.md

The loop is that of a training script: a batch, an update of the weights, now and then a batch that is kept, stats, a state.
After the warm-up, and every thousand batches from then on, it counts open descriptors, mapped memory of collectors, and
resident memory, in the collector's process and in its workers. The exit code is 1 if the number of descriptors or mappings
changes, or memory grows by a megabyte in a thousand batches.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reap.collectors.exchange.slots import SLOTS
from tests.collectors.seams import pids_of, pools_of
from tests.collectors.worker_kinds import CLASSES, Pixels

STRETCH = 1_000
"""Batches between two looks, and of the warm-up."""
LIMIT = 1.0
"""Megabytes that a process may grow in a stretch, on average."""
PAGE = 4096
MEGABYTE = 1 << 20


class Brightness(nn.Module):
    """Acts by how bright a picture is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation.float().mean((-2, -1)).unsqueeze(-1) / 255 * self.scale


@dataclass(frozen=True)
class Look:
    """What a process holds.

    Attributes:
        memory: resident megabytes.
        descriptors: open descriptors.
        maps: memfds of collectors that are mapped.
    """

    memory: float
    descriptors: int
    maps: int

    @classmethod
    def at(cls, pid: int) -> Look:
        root = Path(f"/proc/{pid}")
        pages = int((root / "statm").read_text().split()[1])
        maps = sum("/memfd:reap" in line for line in (root / "maps").read_text().splitlines())
        return cls(pages * PAGE / MEGABYTE, len(list((root / "fd").iterdir())), maps)


@dataclass(frozen=True)
class Soak:
    """One collector's run.

    Attributes:
        name: its class.
        seconds: how long it took.
        batches: how many there were.
        looks: of each process, at the end of each stretch.
    """

    name: str
    seconds: float
    batches: int
    looks: list[list[Look]]

    def growth(self, process: int) -> float:
        """Megabytes in a stretch: the slope of the line through the looks after the warm-up."""
        sizes = [several[process].memory for several in self.looks]
        middle = (len(sizes) - 1) / 2
        return sum((n - middle) * size for n, size in enumerate(sizes)) / sum((n - middle) ** 2 for n in range(len(sizes)))

    @property
    def grows(self) -> bool:
        """Whether there is more of anything than there was."""
        counts = {tuple((one.descriptors, one.maps) for one in several) for several in self.looks}
        return len(counts) > 1 or any(self.growth(process) >= LIMIT for process in range(len(self.looks[0])))

    def rows(self) -> Iterator[str]:
        """Rows of the table, one for each process."""
        for process in range(len(self.looks[0])):
            seen = [several[process] for several in self.looks]
            descriptors = sorted({one.descriptors for one in seen})
            maps = sorted({one.maps for one in seen})
            title = "collector" if process == 0 else f"worker {process - 1}"
            yield (
                f"| {self.name} | {title} | {_range(descriptors)} | {_range(maps)} | {seen[0].memory:.1f} | "
                f"{seen[-1].memory:.1f} | {self.growth(process):+.3f} |"
            )


def _range(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def train(collector: Any, batches: int, kept: deque[Any]) -> None:
    """The loop of a training script."""
    for number in range(batches):
        batch = collector.next()
        collector.update_policy_weights_()
        if number % 7 == 0:
            kept.append(batch["next", "observation"][..., 1:, :])
        if number % 50 == 0:
            collector.stats()
            collector.state_dict()


def soak(name: str, batches: int) -> Soak:
    """One collector, for this number of batches after its warm-up."""
    started, looks = time.perf_counter(), []
    kept: deque[Any] = deque(maxlen=2)
    with CLASSES[name]([partial(Pixels, 7)] * 2, Brightness(), frames_per_batch=16) as collector:
        held: list[Any] = []
        while any(len(pool.slots) < SLOTS for pool in pools_of(collector)):
            held.append(collector.next())  # until all slots are made that there may be
        del held
        train(collector, STRETCH, kept)
        for _ in range(batches // STRETCH + 1):
            gc.collect()
            looks.append([Look.at(pid) for pid in (os.getpid(), *pids_of(collector))])
            train(collector, STRETCH if len(looks) <= batches // STRETCH else 0, kept)
    return Soak(name, time.perf_counter() - started, batches, looks)


PAGE_HEAD = """# Soak

Collectors with processes run for {batches:,} batches each: does anything grow? `make soak` writes this page, `tests/soak.py`
describes the loop, and `make soak ARGS="--batches 2000"` makes the run shorter.

In {minutes:.1f} minutes: {verdict}.
MB: resident memory after a warm-up of {stretch:,} batches and at the end. Growth: the slope of the line through all
measurements, one every {stretch:,} batches, in MB per {stretch:,} batches.

| class | process | descriptors | mapped memory | MB at first | MB at last | growth |
|---|---|--:|--:|--:|--:|--:|
"""


def page(soaks: list[Soak]) -> str:
    good = "the number of descriptors and mappings never changed, and no process grew by a megabyte in 1,000 batches"
    wrong = ", ".join(one.name for one in soaks if one.grows)
    head = PAGE_HEAD.format(
        batches=soaks[0].batches,
        minutes=sum(one.seconds for one in soaks) / 60,
        verdict=f"something grows in {wrong}" if wrong else good,
        stretch=STRETCH,
    )
    return head + "\n".join(row for one in soaks for row in one.rows()) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--classes", nargs="+", choices=CLASSES, default=["MultiSync", "MultiaSync"])
    parser.add_argument("--table", type=Path, help="where the results are written")
    options = parser.parse_args()
    soaks = []
    for name in options.classes:
        soaks.append(soak(name, options.batches))
        print(*soaks[-1].rows(), sep="\n", flush=True)
    if options.table:
        options.table.write_text(page(soaks), encoding="utf-8")
    return int(any(one.grows for one in soaks))


if __name__ == "__main__":
    sys.exit(main())
