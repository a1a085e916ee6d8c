"""Claim: a column of reap's loop takes no more machine instructions than one of a loop written by hand.

    python benchmarks/instructions.py              # needs valgrind; about 8 minutes
    python benchmarks/instructions.py --sizes 8

Instructions are counted by callgrind, while batches are collected and at no other time. Unlike seconds, they are the same on a
busy machine and in each run. Collectors get one seed, so that their counts differ by what their checks cost; the hand-written
loop has other episodes, and how many of these end is worth up to 2 %. Python's garbage collector is off: a full pass, which may
fall to any loop, is worth 5 %. Instructions say nothing of the time that a processor waits for memory: `make bench` measures
that.

One process for each number of envs, run by valgrind, holds all loops of `cartpole.py`:

    build, warm up          not counted
    for each loop           callgrind_control --instr=on, collect, --dump
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import gymnasium as gym
import torch
import tyro
from cartpole import ENV
from ceiling import CartPolePolicy, hand_loop
from pairs import SIZES, Loop, make_rows
from rich.console import Console
from rich.table import Table

from reap import SyncDataCollector
from reap.specs.fits import Check

HAND = "hand-written"
COLUMNS = 500
"""Fewest columns that are counted for each loop."""


@dataclass(frozen=True)
class Options:
    """Count the instructions of reap's loop and of a hand-written one."""

    sizes: tuple[int, ...] = tuple(envs for envs, _ in SIZES)
    """Numbers of envs."""


@contextmanager
def loops(envs: int, columns: int) -> Generator[dict[str, Loop]]:
    """The hand-written loop, and a collector for each kind of check."""
    with ExitStack() as stack:
        found: dict[str, Loop] = {HAND: hand_loop(envs, columns, CartPolePolicy())}
        for check in get_args(Check):
            env = make_rows(envs, partial(gym.make, ENV))
            collector = SyncDataCollector(env, CartPolePolicy(), frames_per_batch=envs * columns, check=check)
            stack.enter_context(collector).set_seed(0)
            found[f"reap, check={check}"] = lambda collector=collector: collector.next().numel()
        yield found


def control(*arguments: str) -> None:
    """Talk to the callgrind that runs this process."""
    subprocess.run(["callgrind_control", *arguments, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


def count(envs: int, columns: int) -> None:
    """Collect with each loop; the main function of a process that valgrind runs."""
    torch.set_num_threads(1)
    gc.disable()
    with loops(envs, columns) as found:
        for collect in found.values():
            torch.manual_seed(0)
            collect()
            collect()
        for name, collect in {"nothing": lambda: 0, **found}.items():
            counted(name, collect, repeats_of(columns))


def repeats_of(columns: int) -> int:
    """The number of batches that are counted."""
    return -(-COLUMNS // columns)


def counted(name: str, collect: Callable[[], int], repeats: int) -> None:
    """Count the instructions of some calls."""
    torch.manual_seed(0)
    control("--instr=on")
    for _ in range(repeats):
        collect()
    control(f"--dump={name}")
    control("--instr=off")


def measured(envs: int, columns: int) -> dict[str, float]:
    """Instructions per column of each loop."""
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
        child = [sys.executable, __file__, "--count", str(envs), str(columns)]
        fixed = {**os.environ, "PYTHONHASHSEED": "0"}
        result = subprocess.run([*valgrind, *child], env=fixed, capture_output=True, text=True, check=False)
        if result.returncode:
            sys.exit(result.stderr)
        totals = dict(dump for path in sorted(Path(folder).iterdir()) for dump in read(path.read_text()))
    around = totals.pop("nothing")
    steps = columns * repeats_of(columns)
    return {name: (total - around) / steps for name, total in totals.items()}


def read(dump: str) -> Iterator[tuple[str, int]]:
    """The name and the total of a dump that has one."""
    name = re.search(r"^desc: Trigger: dump (.*)$", dump, re.MULTILINE)
    total = re.search(r"^totals: (\d+)$", dump, re.MULTILINE)
    if name and total:
        yield name[1], int(total[1])


def main(options: Options) -> None:
    """Print the counts."""
    table = Table(title="Machine instructions per column, with CartPole")
    for header in ("envs", "loop", "instructions", "speed by instructions"):
        table.add_column(header, justify="left" if header == "loop" else "right")
    for envs, columns in SIZES:
        if envs not in options.sizes:
            continue
        found = measured(envs, columns)
        for name, instructions in found.items():
            table.add_row(str(envs), name, f"{instructions:,.0f}", f"{found[HAND] / instructions:.3f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        count(int(sys.argv[2]), int(sys.argv[3]))
    elif shutil.which("callgrind_control") is None:
        sys.exit("instructions.py: valgrind is not installed (Debian, Ubuntu: apt install valgrind)")
    else:
        main(tyro.cli(Options))
