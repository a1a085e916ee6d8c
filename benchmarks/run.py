"""Measures every claim of the README in one run, against hand-written loops and installed peers; `make bench` calls it.

    python benchmarks/run.py                               # everything but collectors beyond one machine, 15 minutes
    python benchmarks/run.py --only distributed            # these, 5 minutes
    python benchmarks/run.py --only cartpole pong --seconds 0.3 --repeats 3
    python benchmarks/run.py --json results.json --check   # exit status 1 if a target is missed

Figures are ratios to the hand-written loop of the same run, median with lowest and highest of the repeats.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Literal

import cartpole
import distributed
import overhead
import parallel
import pong
import prioritized
import processes
import recurrent
import replay
import tensordict_policies
import torch
import torchrl_envs
import tyro
import vector
from pairs import Measurement
from rich.console import Console
from rich.progress import track
from rich.table import Table

Name = Literal[
    "cartpole",
    "tensordict_policies",
    "pong",
    "recurrent",
    "vector",
    "torchrl_envs",
    "parallel",
    "processes",
    "distributed",
    "replay",
    "prioritized",
    "overhead",
]
FILES = {
    "cartpole": cartpole,
    "tensordict_policies": tensordict_policies,
    "pong": pong,
    "recurrent": recurrent,
    "vector": vector,
    "torchrl_envs": torchrl_envs,
    "parallel": parallel,
    "processes": processes,
    "distributed": distributed,
    "replay": replay,
    "prioritized": prioritized,
    "overhead": overhead,
}
PACKAGES = ("torch", "tensordict", "numpy", "gymnasium", "ale-py", "envpool", "stable-baselines3", "torchrl", "cpprb")

WIDTH = 120
"""Characters of a line where the output is no terminal."""


@dataclass(frozen=True)
class Options:
    """Measure reap against hand-written loops and installed peers."""

    only: tuple[Name, ...] = tuple(name for name in FILES if name != "distributed")
    """Files to run."""
    seconds: float = 1.0
    """Length of one turn of one loop."""
    repeats: int = 7
    """Turns of each loop."""
    json: Path | None = None
    """Write all figures to this file."""
    check: bool = False
    """Exit with status 1 if a target is missed."""


def run(options: Options, console: Console) -> dict[str, list[Measurement]]:
    """Measure all pairs; show how far it is, and each figure at once: whoever interrupts keeps what was measured."""
    pairs = [(name, pair) for name in options.only for pair in FILES[name].pairs()]
    found: dict[str, list[Measurement]] = {name: [] for name in options.only}
    for name, pair in track(pairs, "measuring", console=console, transient=True):
        measured = pair.measured(options.seconds, options.repeats)
        found[name] += measured
        for m in measured:
            console.print(f"{name}: {m.claim}, {m.subject}, {m.envs} envs: {m.ratio:.2f}", style="dim", highlight=False)
    return found


def claims_table(measurements: Sequence[Measurement]) -> Table:
    """Claims with target, ratio, rates and verdict."""
    table = Table(title="Frames per second, as a ratio to the hand-written loop of the same run")
    table.add_column("claim")
    table.add_column("whose loop")
    for header in ("envs", "target", "ratio", "lowest-highest", "frames/s", "hand-written", ""):
        table.add_column(header, justify="right", no_wrap=True)
    for claim, group in groupby(measurements, lambda m: m.claim):
        table.add_section()
        for m in group:
            verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[m.passed]
            target = "" if m.target is None else f"{m.target:.2f}"
            spread = f"{m.lowest:.2f}-{m.highest:.2f}"
            rates = (f"{m.rate:,.0f}", f"{m.baseline_rate:,.0f}")
            table.add_row(claim, m.subject, str(m.envs), target, f"{m.ratio:.2f}", spread, *rates, verdict)
    return table


def overhead_table(measurements: Sequence[Measurement]) -> Table:
    """Microseconds per column where env and policy cost nothing."""
    table = Table(title="The loop itself: microseconds per column, env and policy cost nothing")
    table.add_column("episodes")
    for header in ("envs", "reap", "hand-written"):
        table.add_column(header, justify="right")
    for m in measurements:
        ours, theirs = m.column_us
        table.add_row(m.claim, str(m.envs), f"{ours:.2f}", f"{theirs:.2f}")
    return table


def machine() -> dict[str, str | int | None]:
    """What the figures were measured on."""
    return {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count(), **dict(_versions())}


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def main(options: Options) -> int:
    """Run, print, and write what was asked for; return the exit status."""
    torch.set_num_threads(1)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    found = run(options, console)
    claims = [m for name, measurements in found.items() if name != "overhead" for m in measurements]
    if claims:
        console.print(claims_table(claims))
    if found.get("overhead"):
        console.print(overhead_table(found["overhead"]))
    console.print(", ".join(f"{name} {value}" for name, value in machine().items()))
    if options.json is not None:
        results = {name: [asdict(m) for m in measurements] for name, measurements in found.items()}
        options.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")
    missed = [m for m in claims if m.passed is False]
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    given = tyro.cli(Options)
    sys.exit(main(replace(given, only=tuple(dict.fromkeys(given.only)))))
