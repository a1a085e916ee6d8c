"""`reap replay`: runs a recorded episode again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reap.cli.collect import COMPLETE, FAILED
from reap.cli.options import Replay
from reap.cli.runs.run import EPISODES
from reap.errors import OptionError
from reap.replaying import EpisodeFolder, replay
from reap.replaying.files import INDEX

SHOWN = 20
"""Number of episodes in the list: if there are more, the first and the last ones."""


def run(options: Replay, console: Console) -> int:
    """Run the episode again and show the outcome, or list the episodes.

    Args:
        options: the command line.
        console: where to draw.

    Returns:
        The exit code: 1 if the episode departs from its record.

    Raises:
        OptionError: an option cannot work.
    """
    folder = _folder(options.folder)
    if options.episode is None:
        if options.video is not None or options.to is not None:
            raise OptionError("--video and --to: expected --episode too, which selects the episode")
        console.print(_table(folder))
        return COMPLETE
    try:
        record = folder[options.episode]
    except KeyError as error:
        raise OptionError(f"--episode {error.args[0]}") from error
    if options.to is not None and not 0 <= options.to <= record.length:
        raise OptionError(f"--to: expected a number from 0 to {record.length}, the length of the episode, got {options.to}")
    result = replay(None, record, video=options.video, to_step=options.to)
    whose = "return" if result.steps == record.length else "return of the whole episode"
    console.print(Text(f"{result}; {whose} {record.reward:,.6g}", style="" if result.equal else "red"), soft_wrap=True)
    if result.video is not None:
        console.print(Text(f"Video: {result.video}"), soft_wrap=True)
    return COMPLETE if result.equal else FAILED


def _folder(path: Path) -> EpisodeFolder:
    place = path / EPISODES
    if not (place / INDEX).is_file():
        raise OptionError(f"{path}: expected the folder of a reap collect --record-episodes, found no {EPISODES}/{INDEX} in it")
    return EpisodeFolder(place)


def _table(folder: EpisodeFolder) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title=f"{len(folder):,} episodes", title_justify="left")
    for name in ("id", "env", "return", "length", "end"):
        table.add_column(name, justify="left" if name == "end" else "right")
    lines = list(folder.lines.values())
    shown = lines if len(lines) <= SHOWN else [*lines[: SHOWN // 2], None, *lines[-SHOWN // 2 :]]
    for line in shown:
        table.add_row(*(("…",) * 5 if line is None else _row(line)))
    return table


def _row(line: Mapping[str, Any]) -> tuple[str, ...]:
    end = "terminated" if line["terminated"] else "limited" if line["is_limited"] else "truncated"
    return str(line["id"]), str(line["row"]), f"{line['reward']:,.6g}", f"{line['length']:,}", end
