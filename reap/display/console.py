"""The view in the terminal: a panel that is redrawn in place, or plain lines where there is no terminal."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reap.display.counts import Count, Counted

MOST_BAR_COLUMNS, LEAST_BAR_COLUMNS = 40, 10
TEXT_COLUMNS = 64
"""Columns kept free next to the bars if the terminal is wide enough."""

SHARE_STYLES = ("cyan", "magenta", "yellow")
"""Styles of the shares of time in the env, in the policy, and in training."""


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
        """Called when the loop starts."""

    @abstractmethod
    def show(self) -> None:
        """Show the counts as they are now."""

    @abstractmethod
    def end(self) -> None:
        """Called when the loop has ended: show the counts one last time, and restore the console."""


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
