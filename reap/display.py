"""`progress`: a live view of a collector while the loop over its batches runs.

    for batch in progress(collector):
        ...

On a terminal a panel of three lines is redrawn in place; elsewhere (a log file, CI) plain lines are printed. Drawing
happens between two batches, in the caller's thread: nothing runs in the background.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import rich
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reap.collectors.base import DataCollectorBase
from reap.collectors.stats import RECENT_EPISODES, CollectorStats, Meter
from reap.errors import OptionError

SECONDS_BETWEEN_LINES = 10.0
"""If the output is not a terminal."""

RATE_WINDOW = 30
"""Number of views over which the rate is measured: a few seconds, so that a pause is soon forgotten."""

MOST_BAR_COLUMNS, LEAST_BAR_COLUMNS = 40, 10
TEXT_COLUMNS = 64
"""Columns kept free next to the bars if the terminal is wide enough."""

SHARE_STYLES = ("cyan", "magenta", "yellow")
"""Styles of the shares of time in the env, in the policy, and in training."""


def progress(
    collector: DataCollectorBase,
    *,
    total: int | None = None,
    title: str | None = None,
    console: Console | None = None,
    refresh_per_second: float = 5.0,
) -> Iterator[Any]:
    """The batches of a collector, with a live view of it: frames, rate, finished episodes, where the time goes.

    The view ends with the loop, whether at the last batch, by `break`, an exception or Ctrl-C. It does not affect the values
    that you read with `collector.stats()`.

    Args:
        collector: any collector.
        total: frames at which the bar is full; by default `collector.total_frames`, in whole batches.
        title: name of the run; by default that of the collector's class.
        console: where to draw; by default rich's, which writes to the standard output.
        refresh_per_second: how often a second the view is redrawn, at most. If the output is not a terminal, a line is printed
            every 10 seconds instead, and at the end.

    Returns:
        An iterator over the collector's batches.

    Raises:
        OptionError: `total` or `refresh_per_second` is not positive.

    Example:
        >>> from reap.collectors import SyncDataCollector
        >>> collector = SyncDataCollector("CartPole-v1", frames_per_batch=20, total_frames=100)
        >>> sum(batch.numel() for batch in progress(collector, title="demo"))
        demo: 100/100 frames (100%), ... frames/s, ...
        100
    """
    if refresh_per_second <= 0:
        raise OptionError(f"refresh_per_second: expected a positive number, got {refresh_per_second!r}")
    if total is not None and total <= 0:
        raise OptionError(f"total: expected a positive number of frames, or None for the collector's; got {total!r}")
    meter = collector._meter  # pyright: ignore[reportPrivateUsage]
    console = console or rich.get_console()
    is_live = console.is_terminal and not console.is_dumb_terminal
    interval = 1.0 / refresh_per_second if is_live else SECONDS_BETWEEN_LINES
    count = Count(meter, _whole_batches(collector) if total is None else total)
    display = (Panel if is_live else Lines)(count, title or type(collector).__name__, console)
    return _watch(collector, display, interval)


def _whole_batches(collector: DataCollectorBase) -> int | None:
    frames, batch = collector.total_frames, collector.frames_per_batch
    return None if frames < 0 else -(-frames // batch) * batch


def _watch(collector: DataCollectorBase, display: Display, interval: float) -> Iterator[Any]:
    try:
        display.begin()
        due = perf_counter() + interval
        for batch in collector:
            now = perf_counter()
            if now >= due:
                display.show()
                due = now + interval
            yield batch
    finally:
        display.end()


@dataclass(frozen=True)
class Counted:
    """The values that one drawing shows.

    Attributes:
        stats: the collector's counts.
        total: frames at which the loop is done; None for no end.
        rate: frames per second.
        seconds: time since the loop started.
        has_ended: whether the loop has ended.
    """

    stats: CollectorStats
    total: int | None
    rate: float
    seconds: float
    has_ended: bool = False

    @property
    def frames(self) -> str:
        """`1,000/5,000 frames` if there is an end, else `1,000 frames`."""
        return f"{self.stats.frames:,}{'' if self.total is None else f'/{self.total:,}'} frames"

    @property
    def part(self) -> str:
        """`20%`, or an empty string if there is no end."""
        return "" if self.total is None else f"{math.floor(min(1.0, self.stats.frames / self.total) * 100)}%"

    @property
    def time(self) -> str:
        """`0:12 left` if that is known, else `after 0:48`."""
        if self.has_ended or self.total is None or self.rate <= 0:
            return f"after {_clock(self.seconds)}"
        return f"{_clock(max(0, self.total - self.stats.frames) / self.rate)} left"

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """Names and values of the known facts about the episodes."""
        stats = self.stats
        if not stats.finished_episodes:
            return [("episodes", "0"), *self.workers]
        return [
            ("return", f"{stats.recent_returns.mean:,.1f}"),
            ("length", f"{stats.recent_lengths.mean:,.1f}"),
            ("last", f"{min(stats.finished_episodes, RECENT_EPISODES)} of {stats.finished_episodes:,} episodes"),
            *self.workers,
        ]

    @property
    def workers(self) -> list[tuple[str, str]]:
        """How many workers are there, and on how many machines, where these may be several; nothing elsewhere."""
        places = [one.place for one in self.stats.workers or [self.stats] if one.place is not None]
        if not places:
            return []
        joining, hosts = sum(place.is_joining for place in places), len({place.host for place in places} - {""})
        where = f" on {hosts} host{'' if hosts == 1 else 's'}" if hosts else ""
        return [("workers", f"{len(places) - joining} up{f', {joining} joining' if joining else ''}{where}")]

    @property
    def shares(self) -> tuple[tuple[str, float], ...]:
        """Names and shares of the time, 0 to 1."""
        stats = self.stats
        return ("env", stats.env_share), ("policy", stats.policy_share), ("training", stats.waiting_share)


class Count:
    """Reads the meter and measures its rate.

    Args:
        meter: the meter to read; its list of episodes is left to the user.
        total: frames at which the loop is done; None for no end.
    """

    def __init__(self, meter: Meter, total: int | None) -> None:
        self._meter = meter
        self._total = total
        self.begin()

    def begin(self) -> None:
        """Measure from here."""
        self._first = (perf_counter(), self._meter.frames)
        self._seen = deque([self._first], maxlen=RATE_WINDOW)

    def now(self) -> Counted:
        """The counts, and the rate over the last seconds."""
        self._seen.append((perf_counter(), self._meter.frames))
        return self._since(self._seen[0])

    def in_all(self) -> Counted:
        """The counts, and the rate over the whole loop."""
        self._seen.append((perf_counter(), self._meter.frames))
        return replace(self._since(self._first), has_ended=True)

    def _since(self, start: tuple[float, int]) -> Counted:
        now, frames = self._seen[-1]
        seconds = now - start[0]
        rate = (frames - start[1]) / seconds if seconds > 0 else 0.0
        return Counted(self._meter.peek(), self._total, rate, now - self._first[0])


class Display(ABC):
    """Shows counts.

    Args:
        count: provides the counts.
        title: name of the run.
        console: where to draw.
    """

    def __init__(self, count: Count, title: str, console: Console) -> None:
        self._count = count
        self._title = title
        self._console = console

    @abstractmethod
    def begin(self) -> None:
        """The loop starts."""

    @abstractmethod
    def show(self) -> None:
        """Show the counts as they are now."""

    @abstractmethod
    def end(self) -> None:
        """The loop has ended: show the counts one last time, and restore the console."""


class Lines(Display):
    """One plain line each time, without control codes."""

    def begin(self) -> None:
        """Start counting; there is nothing to show yet."""
        self._count.begin()

    def show(self) -> None:
        """Print a line."""
        self._print(self._count.now())

    def end(self) -> None:
        """Print the last line."""
        self._print(self._count.in_all())

    def _print(self, counted: Counted) -> None:
        part = f" ({counted.part})" if counted.part else ""
        parts = [f"{counted.frames}{part}", f"{counted.rate:,.0f} frames/s", counted.time]
        parts += [f"{name} {value}" for name, value in counted.numbers]
        parts += [f"{name} {share:.0%}" for name, share in counted.shares]
        line = Text(f"{self._title}: {', '.join(parts)}")
        self._console.print(line, soft_wrap=True, highlight=False)


class Panel(Display):
    """Three lines that are redrawn in place. Text that the loop prints meanwhile appears above them."""

    def __init__(self, count: Count, title: str, console: Console) -> None:
        super().__init__(count, title, console)
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),  # text for a file or a pipe is left alone
            redirect_stderr=sys.stderr.isatty(),
        )

    def begin(self) -> None:
        """Draw the panel and hide the cursor."""
        self._count.begin()
        self._live.start()
        self.show()

    def show(self) -> None:
        """Redraw it."""
        self._live.update(self._panel(self._count.now()), refresh=True)

    def end(self) -> None:
        """Draw it one last time; the cursor always returns below it."""
        try:
            self._live.update(self._panel(self._count.in_all()))
        finally:
            self._live.stop()  # draws once more

    def _panel(self, counted: Counted) -> Group:
        columns = min(MOST_BAR_COLUMNS, max(LEAST_BAR_COLUMNS, self._console.width - TEXT_COLUMNS))
        rows = Table.grid(padding=(0, 2))
        rows.add_column(width=columns)
        rows.add_column()  # shrinks if the terminal is too narrow
        rows.add_row(_frames_bar(counted, columns), _frames_text(counted))
        rows.add_row(self._time_bar(counted, columns), _time_text(counted, "*" if self._is_ascii else "■"))
        return Group(self._title_line(counted), rows)

    @property
    def _is_ascii(self) -> bool:
        return self._console.options.ascii_only

    def _title_line(self, counted: Counted) -> Text:
        line = Text(self._title, style="bold", no_wrap=True, overflow="crop")
        for name, value in counted.numbers:
            line.append(f"   {name} ", style="not bold dim").append(value, style="bold" if name == "return" else "not bold")
        return line

    def _time_bar(self, counted: Counted, columns: int) -> Text:
        bar = Text(no_wrap=True, overflow="crop")
        block, end, filled = "#" if self._is_ascii else "▄", 0.0, 0
        for (_, share), style in zip(counted.shares, SHARE_STYLES, strict=True):
            end = min(end + share * columns, columns)
            bar.append(block * (round(end) - filled), style=style)
            filled = round(end)
        return bar.append(block * (columns - filled), style="bright_black")


def _frames_bar(counted: Counted, columns: int) -> ProgressBar:
    done = counted.stats.frames if counted.total is None else min(counted.stats.frames, counted.total)
    return ProgressBar(
        total=counted.total,
        completed=done,
        width=columns,
        animation_time=counted.seconds,  # of the pulse, which replaces a bar that has no end
        complete_style="green",
        finished_style="green",
        pulse_style="green",
    )


def _frames_text(counted: Counted) -> Text:
    line = Text(f"{counted.part}  " if counted.part else "", no_wrap=True, overflow="crop").append(counted.frames)
    return line.append(f"   {counted.rate:,.0f} frames/s", style="bold").append(f"   {counted.time}", style="dim")


def _time_text(counted: Counted, mark: str) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for number, ((name, share), style) in enumerate(zip(counted.shares, SHARE_STYLES, strict=True)):
        line.append(f"{'   ' if number else ''}{mark} ", style=style).append(f"{name} {share:.0%}")
    return line


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
