"""Draws the pictures of `docs/trajectories.md` from batches that were really collected.

    python docs/site/pictures.py     # writes docs/images/*.svg; a test compares them

The envs count steps and end after 5, 8 and 3 of them, so that a cell says where its frame belongs.
"""

from __future__ import annotations

import sys
from functools import partial
from html import escape
from pathlib import Path

import torch
from tensordict import TensorDictBase

from reap import SerialEnv, SyncDataCollector, split_trajectories
from reap.testing import Count

IMAGES = Path(__file__).parent.parent / "images"

LENGTHS = (5, 8, 3)
COLUMNS = 10

CELL, GAP, LEFT, TOP = 34, 26, 84, 34
COLOURS = (
    "#8ec1f0",
    "#f6c48a",
    "#9ad8b4",
    "#e6a6c9",
    "#c9b8ef",
    "#e3dd83",
    "#8fd6d6",
    "#f0a99c",
    "#b9c7d6",
    "#c8a98a",
    "#b3e07f",
    "#7f9fe0",
    "#f7b5d8",
    "#a3b58c",
    "#ffd36b",
)
INK, FAINT, EMPTY = "#1b2330", "#5a6675", "#eceff3"

FONT = 'font-family="system-ui, sans-serif"'


def envs() -> SerialEnv:
    """Three envs whose episodes have 5, 8 and 3 frames."""
    return SerialEnv(len(LENGTHS), [partial(Count, length) for length in LENGTHS])


def collector(**options: object) -> SyncDataCollector:
    """A collector of these envs."""
    return SyncDataCollector(envs(), frames_per_batch=len(LENGTHS) * COLUMNS, **options)  # type: ignore[arg-type]


class Drawing:
    """Rows of cells, in blocks side by side.

    Args:
        names: what the rows are called.
        title: of the picture, for those who cannot see it.
    """

    def __init__(self, names: list[str], title: str) -> None:
        self._names, self._title = names, title
        self._parts = [text(LEFT - 10, TOP + (row + 0.5) * CELL + 4, name, "end") for row, name in enumerate(names)]
        self._x = LEFT

    def add(self, head: str, batch: TensorDictBase) -> None:
        """Draw a batch `[rows, columns]` to the right of those before."""
        ids, flags = batch["collector", "traj_ids"], batch["next", "done"].squeeze(-1)
        has_mask = ("collector", "mask") in batch.keys(include_nested=True)
        mask = batch["collector", "mask"] if has_mask else torch.ones_like(flags)
        steps = batch["observation"].squeeze(-1).to(torch.int64)
        self._parts.append(text(self._x, TOP - 12, head))
        for row, column in torch.cartesian_prod(torch.arange(ids.shape[0]), torch.arange(ids.shape[1])).tolist():
            x, y = self._x + column * CELL, TOP + row * CELL
            if not mask[row, column]:
                self._parts.append(cell(x, y, EMPTY))
                continue
            number = int(ids[row, column])
            self._parts.append(cell(x, y, COLOURS[number % len(COLOURS)]))
            self._parts.append(text(x + CELL / 2, y + CELL / 2 + 4, str(int(steps[row, column])), "middle", INK))
            if flags[row, column]:
                self._parts.append(f'<rect x="{x + CELL - 5}" y="{y + 2}" width="3" height="{CELL - 4}" fill="{INK}"/>')
        self._x += ids.shape[1] * CELL + GAP

    def svg(self, note: str) -> str:
        """The picture, with a line of words below it."""
        width, below = self._x - GAP + 12, TOP + len(self._names) * CELL
        parts = [*self._parts, text(LEFT, below + 22, note)]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {below + 34}" width="{width}" role="img">\n'
            f"<title>{escape(self._title)}</title>\n" + "\n".join(parts) + "\n</svg>\n"
        )


def cell(x: float, y: float, fill: str) -> str:
    """One frame."""
    return f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" rx="4" fill="{fill}"/>'


def text(x: float, y: float, words: str, anchor: str = "start", fill: str = FAINT) -> str:
    """Words."""
    return f'<text x="{x}" y="{y}" {FONT} font-size="13" text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'


def pictures() -> dict[str, str]:
    """Each picture by the name of its file."""
    rows = [f"env {row}" for row in range(len(LENGTHS))]
    with collector(total_frames=2 * len(LENGTHS) * COLUMNS) as frames:
        first, second = frames
    across = Drawing(rows, "Two batches of three envs: episodes continue from one batch to the next")
    across.add("first batch, column 0 to 9", first)
    across.add("second batch", second)

    split = split_trajectories(first)
    alone = Drawing([f"row {row}" for row in range(split.shape[0])], "The first batch, split into trajectories and padded")
    alone.add("split_trajectories(first batch)", split)

    with collector(reset_when_done=False) as frames:
        idle = Drawing(rows, "Envs that have ended idle until all have")
        idle.add("reset_when_done=False", frames.next())

    with SyncDataCollector(envs(), trajs_per_batch=6) as episodes:
        batch = episodes.next()
    whole = Drawing([f"row {row}" for row in range(batch.shape[0])], "Six complete episodes, two of each env")
    whole.add("trajs_per_batch=6", batch)
    return {
        "trajectories.svg": across.svg("a colour: a trajectory; a number: its frame; a bar: done"),
        "split.svg": alone.svg("grey: padding, where the mask is False"),
        "idle.svg": idle.svg("grey: idle, where the mask is False"),
        "whole.svg": whole.svg("grey: padding"),
    }


def main() -> int:
    """Write the pictures."""
    for name, svg in pictures().items():
        (IMAGES / name).write_text(svg, encoding="utf-8")
        print(IMAGES / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
