"""The view of a running collector: what it shows exactly, and that it leaves the loop and the terminal alone."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from reap.collectors import SyncDataCollector
from reap.collectors.stats import Meter, Place
from reap.errors import OptionError
from reap.recording.trajectories import Episode
from tests.clocks import Clock, set_clock

MODULE = importlib.import_module("reap.display.loop")
progress = MODULE.progress

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return set_clock(monkeypatch, "reap.collectors.stats", "reap.display.counts", "reap.display.loop")


class FakeCollector:
    """Batches of 100 frames, each of which takes a second: half in the env, a quarter in the policy; one episode in each."""

    def __init__(self, clock: Clock, batches: int, total_frames: int | None = None, meter: Meter | None = None) -> None:
        self.meter = self._meter = meter or Meter()
        self._clock, self._batches = clock, batches
        self.frames_per_batch = 100
        self.total_frames = batches * 100 if total_frames is None else total_frames

    def __iter__(self) -> Iterator[int]:
        for number in range(self._batches):
            self.meter.enter()
            self._clock.now += 1.0
            self.meter.add(100, [Episode(reward=number + 0.5, length=100)], 0.5, 0.25)
            self.meter.leave()
            self.meter.batches += 1
            yield number


def terminal(width: int = 100) -> Console:
    """A terminal that keeps all that is written to it, the control codes too."""
    return Console(file=StringIO(), force_terminal=True, width=width, height=20, color_system=None, legacy_windows=False)


def log() -> Console:
    """A file: narrow, as rich takes it to be; lines are not to be wrapped."""
    return Console(file=StringIO(), force_terminal=False, width=40, color_system=None)


def written(console: Console) -> str:
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def panels(console: Console) -> list[list[str]]:
    """The panels as they were drawn, one after the other, as lines without control codes."""
    lines = [line.rstrip() for line in CONTROL.sub("", written(console)).replace("\r", "\n").split("\n")]
    starts = [number for number, line in enumerate(lines) if line.startswith("demo")]
    return [lines[start : start + 3] for start in starts]


def bar(lines: list[str]) -> str:
    return lines[1].split()[0]


# On a terminal


def test_display_shows_frames_rate_episodes_and_shares(clock: Clock) -> None:
    console, collector = terminal(), FakeCollector(clock, 4)
    for _ in progress(collector, title="demo", console=console):
        clock.now += 1.0  # training
    first, _, third, *_, last = panels(console)
    assert first[0] == "demo   episodes 0"
    assert first[1].split("  ", 1)[1].strip() == "0%  0/400 frames   0 frames/s   after 0:00"
    assert third[0] == "demo   return 1.0   length 100.0   last 2 of 2 episodes"
    assert third[1] == "━" * 18 + " " * 20 + "50%  200/400 frames   67 frames/s   0:03 left"
    assert third[2] == "▄" * 36 + "  ■ env 33%   ■ policy 17%   ■ training 33%"
    assert last[0] == "demo   return 2.0   length 100.0   last 4 of 4 episodes"
    assert last[1] == "━" * 36 + "  100%  400/400 frames   50 frames/s   after 0:08"


def test_frames_bar_grows_and_stays_within_its_columns(clock: Clock) -> None:
    console, collector = terminal(), FakeCollector(clock, 3)
    for _ in progress(collector, title="demo", console=console, total=200):
        pass
    last = panels(console)[-1]
    assert last[1].startswith("━" * 36 + "  100%  300/200 frames")


def test_without_an_end_there_is_a_count_alone(clock: Clock) -> None:
    console, collector = terminal(), FakeCollector(clock, 3, total_frames=-1)
    for _ in progress(collector, title="demo", console=console):
        pass
    last = panels(console)[-1]
    assert last[1].endswith("300 frames   100 frames/s   after 0:03")
    assert "%" not in last[1]


def test_total_frames_is_rounded_up_to_whole_batches(clock: Clock) -> None:
    console, collector = terminal(), FakeCollector(clock, 3, total_frames=250)
    for _ in progress(collector, title="demo", console=console):
        pass
    assert "100%  300/300 frames" in panels(console)[-1][1]


def test_shares_of_several_workers_do_not_widen_the_bar(clock: Clock) -> None:
    console, collector = terminal(), FakeCollector(clock, 1)
    for _ in progress(collector, title="demo", console=console):
        collector.meter.add(0, [], 100.0, 100.0)
    assert panels(console)[-1][2].split()[0] == "▄" * 36


def test_refreshes_no_more_often_than_asked(clock: Clock) -> None:
    console, collector = terminal(), FakeCollector(clock, 10)
    for _ in progress(collector, title="demo", console=console, refresh_per_second=0.25):
        pass
    frames = [lines[1].split("/")[0].split()[-1] for lines in panels(console)]
    assert frames == ["0", "400", "800", "1,000"]


def test_the_rate_forgets_what_was_long_ago(clock: Clock) -> None:
    console, collector = terminal(), FakeCollector(clock, 100)
    for number in progress(collector, title="demo", console=console):
        clock.now += 1000.0 if number == 3 else 0.0
    *_, before, last = panels(console)
    assert "100 frames/s   0:00 left" in before[1]
    assert "9 frames/s   after 18:20" in last[1]


def test_a_narrow_terminal_crops_and_does_not_wrap(clock: Clock) -> None:
    console, collector = terminal(width=30), FakeCollector(clock, 1)
    for _ in progress(collector, title="demo", console=console):
        pass
    lines = CONTROL.sub("", written(console)).replace("\r", "\n").split("\n")
    assert max(map(len, lines)) <= 30
    assert panels(console)[-1][2].startswith("▄" * 10)


def test_a_terminal_that_knows_only_ascii(clock: Clock) -> None:
    class AsciiFile(StringIO):
        encoding = "ascii"  # type: ignore[assignment]

    console, collector = Console(file=AsciiFile(), force_terminal=True, width=100, color_system=None), FakeCollector(clock, 2)
    for _ in progress(collector, title="demo", console=console):
        pass
    assert written(console).isascii()
    assert panels(console)[-1][2] == "#" * 36 + "  * env 50%   * policy 25%   * training 0%"


def test_what_the_loop_prints_appears_above_the_display(clock: Clock) -> None:
    console, collector = terminal(), FakeCollector(clock, 1)
    for _ in progress(collector, title="demo", console=console):
        console.print("from the loop")
    text = written(console)
    assert text.count("from the loop\n") == 1
    assert text.rindex("demo") > text.index("from the loop")


# Where there is no terminal


def test_lines_every_ten_seconds_and_at_the_end(clock: Clock) -> None:
    console, collector = log(), FakeCollector(clock, 6)
    for _ in progress(collector, title="demo", console=console):
        clock.now += 3.0
    assert written(console).splitlines() == [
        (
            "demo: 400/600 frames (66%), 31 frames/s, 0:06 left, return 2.0, length 100.0, last 4 of 4 episodes, "
            "env 15%, policy 8%, training 69%"
        ),
        (
            "demo: 600/600 frames (100%), 25 frames/s, after 0:24, return 3.0, length 100.0, last 6 of 6 episodes, "
            "env 12%, policy 6%, training 75%"
        ),
    ]


def test_lines_without_an_end(clock: Clock) -> None:
    console, collector = log(), FakeCollector(clock, 1, total_frames=-1)
    for _ in progress(collector, console=console):
        clock.now += 3.0
    assert written(console).startswith("FakeCollector: 100 frames, 25 frames/s, after 0:04, return 0.5, ")


def test_lines_hold_no_control_codes_and_no_markup(clock: Clock) -> None:
    console, collector = log(), FakeCollector(clock, 12)
    for _ in progress(collector, title="[red]demo[/red]", console=console):
        pass
    lines = written(console).splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() and line.startswith("[red]demo[/red]: ") for line in lines)


def test_a_dumb_terminal_gets_lines(clock: Clock) -> None:
    console = Console(file=StringIO(), force_terminal=True, color_system=None, _environ={"TERM": "dumb"})
    for _ in progress(FakeCollector(clock, 2), title="demo", console=console):
        pass
    assert written(console).startswith("demo: 200/200 frames (100%)")
    assert "\x1b" not in written(console)


# How the loop ends


def test_batches_pass_through_in_order(clock: Clock) -> None:
    assert list(progress(FakeCollector(clock, 5), console=log())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_loop_ends_the_view(clock: Clock, error: type[BaseException]) -> None:
    console, stdout = terminal(), sys.stdout

    def loop() -> None:
        for _ in progress(FakeCollector(clock, 5), title="demo", console=console):
            raise error

    with pytest.raises(error):
        loop()
    text = written(console)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
    assert text.endswith(f"\n{SHOW_CURSOR}")
    assert "100/500 frames" in panels(console)[-1][1]
    assert sys.stdout is stdout


def test_break_ends_the_view(clock: Clock) -> None:
    console = terminal()
    for number in progress(FakeCollector(clock, 5), title="demo", console=console):
        if number == 1:
            break
    assert written(console).endswith(SHOW_CURSOR)
    assert "200/500 frames" in panels(console)[-1][1]


def test_an_error_in_the_collector_ends_the_view_and_passes(clock: Clock) -> None:
    class Failing(FakeCollector):
        def __iter__(self) -> Iterator[int]:
            yield from (0, 1)
            raise RuntimeError("env broke")

    console = terminal()
    with pytest.raises(RuntimeError, match="env broke"):
        list(progress(Failing(clock, 5), title="demo", console=console))
    assert written(console).endswith(SHOW_CURSOR)


def test_nothing_is_drawn_before_the_first_batch_is_asked_for(clock: Clock) -> None:
    console = terminal()
    batches = progress(FakeCollector(clock, 2), title="demo", console=console)
    clock.now += 50.0
    assert written(console) == ""
    list(batches)
    assert "200/200 frames   100 frames/s   after 0:02" in panels(console)[-1][1]


def test_not_a_collector() -> None:
    with pytest.raises(OptionError, match=r"progress: expected a collector, got \[1, 2\]"):
        progress([1, 2])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"refresh_per_second": 0}, "refresh_per_second"), ({"total": 0}, "total"), ({"total": -1}, "total")],
)
def test_bad_options_are_told_at_once(clock: Clock, options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        progress(FakeCollector(clock, 1), **options)


# With a collector


def test_the_users_stats_are_left_alone() -> None:
    console = terminal()
    found = 0
    with SyncDataCollector("CartPole-v1", frames_per_batch=100, total_frames=1000) as collector:
        for _ in progress(collector, title="demo", console=console, refresh_per_second=1e9):
            found += len(collector.stats().episodes)
        stats = collector.stats()
    assert found == stats.finished_episodes > 0
    assert f"of {found} episodes" in panels(console)[-1][0]
    assert "1,000/1,000 frames" in panels(console)[-1][1]


def test_a_second_loop_goes_on_counting() -> None:
    with SyncDataCollector("CartPole-v1", frames_per_batch=100, total_frames=400) as collector:
        for _ in progress(collector, console=log()):
            break
        console = log()
        list(progress(collector, title="demo", console=console))
    assert written(console).startswith("demo: 400/400 frames (100%), ")


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([Place("a", "", 0, 0.0), Place("b", "", 0, 0.0)], "workers 2 up on 2 hosts"),
        ([Place("a", "", 0, 0.0), Place("", "", 0, 0.0, is_joining=True)], "workers 1 up, 1 joining on 1 host"),
        ([Place("", "", 0, 0.0, is_joining=True)] * 2, "workers 0 up, 2 joining"),
    ],
)
def test_workers_on_other_machines_are_counted(clock: Clock, places: list[Place], expected: str) -> None:
    meter, output = Meter(2), StringIO()
    meter.place_of = places.__getitem__
    for _ in progress(FakeCollector(clock, 1, meter=meter), console=Console(file=output, width=200)):
        pass
    assert expected in output.getvalue()


@pytest.mark.processes
@pytest.mark.parametrize("page", [False, True])
def test_an_unfinished_view_ends_with_the_interpreter(page: bool) -> None:
    program = f"""
from reap import SyncDataCollector, progress
def train():  # refers to the globals, which live until the modules are gone
    next(batches)
batches = progress(SyncDataCollector("CartPole-v1", frames_per_batch=20), title="run", page={page})
train()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1].startswith("run: 20 frames")
