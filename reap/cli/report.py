"""The summary at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from reap.cli.folder import size
from reap.collectors.stats import CollectorStats
from reap.evaluation import Ended
from reap.words import counted

QUANTILES = (5, 25, 50, 75, 95)


@dataclass
class Episodes:
    """Episodes of a run, in the order in which they ended.

    Attributes:
        frames: frames of all envs when the episode ended.
        returns: sums of rewards.
        lengths: frames of the episode.
    """

    frames: list[int] = field(default_factory=list[int])
    returns: list[float] = field(default_factory=list[float])
    lengths: list[int] = field(default_factory=list[int])

    def add(self, ended: Iterable[tuple[int, Ended]], rows: int) -> None:
        """Add episodes, each with the column of the run in which it ended."""
        for column, episode in ended:
            self.frames.append((column + 1) * rows)
            self.returns.append(episode.reward)
            self.lengths.append(episode.length)


@dataclass(frozen=True)
class Stored:
    """What was stored.

    Attributes:
        envs: rows of it.
        columns: time steps of each.
        nbytes: bytes on the disk.
        keys: number of keys.
    """

    envs: int
    columns: int
    nbytes: int
    keys: int

    @property
    def frames(self) -> int:
        """Frames in all."""
        return self.envs * self.columns


def summary(data: Stored, path: Path, episodes: Episodes, stats: CollectorStats, *, is_resumed: bool) -> RenderableType:
    """The closing table.

    Args:
        data: the stored frames.
        path: where they are stored.
        episodes: the finished episodes.
        stats: the collector's counts.
        is_resumed: the episodes and the counts are those since the run was resumed.
    """
    since = " since the run was resumed" if is_resumed else ""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("frames", f"{data.frames:,}  ({counted(data.envs, 'env')} × {data.columns:,})")
    facts.add_row("speed", f"{stats.frames_per_second:,.0f} frames/s")
    facts.add_row("episodes", f"{len(episodes.returns):,} finished{since}")
    facts.add_row("data", Text(f"{path}  ({size(data.nbytes)}, {data.keys} keys)", overflow="fold"))
    quantiles = [_quantiles(episodes), Text()] if episodes.returns else []
    return Group(Text(), facts, Text(), *quantiles)


def _quantiles(episodes: Episodes) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        title="Finished episodes",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for quantile in QUANTILES:
        table.add_column("median" if quantile == 50 else f"{quantile} %", justify="right")
    table.add_column("mean", justify="right")
    rows: list[tuple[str, list[float]]] = [("return", episodes.returns), ("length", [float(n) for n in episodes.lengths])]
    for name, values in rows:
        # Values that occurred, not numbers between them.
        found = np.percentile(values, QUANTILES, method="inverted_cdf")
        table.add_row(name, *[_number(float(value)) for value in found], _number(float(np.mean(values))))
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}" if abs(value) < 100 else f"{value:,.1f}"
