"""`Plot`: one picture of a run: returns over time, lengths, and the distribution of the observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDictBase

from reap.cli.report import Episodes
from reap.errors import OptionError
from reap.keys import NestedKey
from reap.optional import load
from reap.words import counted

DOTS, LINE, BARS, MAP = "#9fb8d8", "#1f4e8c", "#5b8fc7", "Blues"
INK, FAINT = "#333333", "#d8d8d8"

MOST_COMPONENTS, BINS, MOST_FRAMES = 24, 60, 20_000


def target(user: str, path: Path) -> Path:
    """The path of a picture that can be written.

    Args:
        user: who writes it, for the error of a missing matplotlib.
        path: the file; its suffix chooses the format.

    Raises:
        OptionError: the file exists, its folder does not, or matplotlib does not know the suffix.
        ImportError: matplotlib is not installed.
    """
    known = sorted(load("matplotlib.figure", user).Figure().canvas.get_supported_filetypes())
    if path.suffix.lstrip(".").lower() not in known:
        raise OptionError(f"--plot {path}: expected a file ending in one of {', '.join(known)}")
    if path.exists():
        raise OptionError(f"--plot {path}: exists, and nothing is overwritten; name another file")
    if not path.parent.is_dir():
        raise OptionError(f"--plot {path}: there is no folder {path.parent}")
    return path


class Plot:
    """A picture in a new file.

    Args:
        path: the file; its suffix chooses the format.

    Raises:
        OptionError: the file exists, its folder does not, or matplotlib does not know the suffix.
        ImportError: matplotlib is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = target("reap collect --plot", path)
        self._figure: Any = load("matplotlib.figure", "reap collect --plot").Figure

    def draw(self, title: str, data: TensorDictBase, episodes: Episodes) -> None:
        """Draw and write the file.

        Args:
            title: the title of the run.
            data: the stored frames `[E, T]`.
            episodes: the finished episodes.
        """
        figure = self._figure(figsize=(10, 6.4), dpi=140, layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        envs, columns = data.shape
        heading = f"{title}: {data.numel():,} frames of {counted(envs, 'env')}, {len(episodes.returns):,} episodes"
        upper.suptitle(heading, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
        if episodes.returns:
            _returns(upper.subplots(), episodes, envs * columns)
        else:
            _rewards(upper.subplots(), data)
        left, right = lower.subplots(1, 2, width_ratios=(1, 1.35))
        _lengths(left, episodes)
        _observations(right, data)
        figure.savefig(self.path)


def _returns(axes: Any, episodes: Episodes, frames: int) -> None:
    _style(axes, "frames", "return")
    _span(axes, frames)
    x, y = np.asarray(episodes.frames), np.asarray(episodes.returns)
    axes.scatter(x, y, s=float(np.clip(6000 / len(y), 3, 30)), color=DOTS, alpha=0.8, linewidths=0, label="episode")
    window = max(5, min(100, len(y) // 10))
    if len(y) >= 2 * window:
        mean = np.convolve(y, np.full(window, 1 / window), mode="valid")
        axes.plot(x[window - 1 :], mean, color=LINE, linewidth=1.8, label=f"mean of the last {window}")
    axes.legend(loc="upper left", frameon=False, ncols=2, fontsize=9, labelcolor=INK)
    least, most = float(y.min()), float(y.max())
    room = (most - least) or max(1.0, abs(most))
    axes.set_ylim(least - 0.06 * room, most + 0.22 * room)  # the legend is above the dots


def _rewards(axes: Any, data: TensorDictBase) -> None:
    """If no episode ended: rewards; each point is the mean of some neighbouring frames of all envs."""
    _style(axes, "frames", "reward per frame")
    _span(axes, data.numel())
    reward = data.get(("next", "reward")).reshape(data.shape).double().mean(0).numpy()
    parts = np.array_split(reward, min(200, len(reward)))
    ends = np.cumsum([len(part) for part in parts]) * data.shape[0]
    axes.plot(ends, [part.mean() for part in parts], color=LINE, linewidth=1.4)
    axes.set_title("no episode ended: rewards", loc="left", fontsize=10, color=INK)


def _span(axes: Any, frames: int) -> None:
    axes.set_xlim(0, frames)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _lengths(axes: Any, episodes: Episodes) -> None:
    if not episodes.lengths:
        _say(axes, "no episode ended")
        return
    _style(axes, "frames in an episode", "episodes")
    lengths = np.asarray(episodes.lengths)
    least, most = int(lengths.min()), int(lengths.max())
    width = max(1, -(-(most - least + 1) // 30))  # whole frames in a bar: no gaps between bars
    edges = np.arange(least, most + width + 1, width) - 0.5
    axes.hist(lengths, bins=edges, color=BARS, edgecolor="white", linewidth=0.4)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    median = float(np.median(lengths))
    is_left = median > (least + most) / 2  # of the line, where there is room for the text
    axes.axvline(median, color=LINE, linewidth=1.6)
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top"}
    words = f"median {median:,.0f}"
    axes.annotate(
        words, (median, 1), (-5 if is_left else 5, -4), ha="right" if is_left else "left", fontsize=9, color=LINE, **place
    )


def _observations(axes: Any, data: TensorDictBase) -> None:
    """A density per component, or one frame of an image."""
    found = _numbers(data)
    if found is None:
        _picture(axes, data)
        return
    names, values = found
    if np.isin(values, (0, 1)).all():
        _shares(axes, names, values)
    else:
        _densities(axes, names, values)


def _shares(axes: Any, names: list[str], values: NDArray[np.float64]) -> None:
    _style(axes, "", "")
    axes.set_title("share of the frames in which it is observed", loc="left", fontsize=10, color=INK)
    axes.barh(range(len(names)), values.mean(0), color=BARS, height=0.8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=FAINT, linewidth=0.6)


def _densities(axes: Any, names: list[str], values: NDArray[np.float64]) -> None:
    _style(axes, "", "")
    axes.set_title("where the observations lie, from the smallest to the largest", loc="left", fontsize=10, color=INK)
    density = np.zeros((len(names), BINS))
    for row, column in enumerate(values.T):
        least, most = float(column.min()), float(column.max())
        counts, _ = np.histogram(column, BINS, (least, most if most > least else least + 1))
        density[row] = np.sqrt(counts / counts.max())  # rare values stay visible
        for place, value, side in ((-0.012, least, "right"), (1.012, most, "left")):
            axes.text(place, row, f"{value:.3g}", ha=side, va="center", fontsize=8, color=INK)
    axes.imshow(density, aspect="auto", cmap=MAP, extent=(0, 1, len(names) - 0.5, -0.5), interpolation="nearest")
    for row in range(1, len(names)):
        axes.axhline(row - 0.5, color="white", linewidth=2)
    axes.set_xlim(-0.13, 1.13)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)


def _numbers(data: TensorDictBase) -> tuple[list[str], NDArray[np.float64]] | None:
    """Names and values `[frames, components]` of the observations, if they are numbers, and not too many."""
    names: list[str] = []
    parts: list[NDArray[np.float64]] = []
    step = max(1, data.numel() // MOST_FRAMES)
    for key in _observed(data):
        value = data.get(key)
        count = value.shape[2:].numel()
        if len(names) + count > MOST_COMPONENTS:
            continue
        name = key if isinstance(key, str) else "/".join(key)
        names += [name] if count == 1 else [f"{name}[{index}]" for index in range(count)]
        parts.append(value.reshape(data.numel(), count)[::step].double().numpy())
    if not parts:
        return None
    values = np.concatenate(parts, axis=1)
    return names, np.where(np.isfinite(values), values, 0.0)


def _observed(data: TensorDictBase) -> list[NestedKey]:
    """The env's keys: those that are also under `next`, except reward, flags and counts."""
    flags = {"reward", "done", "terminated", "truncated", "step_count"}
    following: Any = data.get("next")
    return [key for key in following.keys(include_nested=True, leaves_only=True) if key not in flags and key in data.keys(True)]


def _picture(axes: Any, data: TensorDictBase) -> None:
    for key in _observed(data):
        frame = data.get(key)[0, data.shape[1] // 2].numpy()
        while frame.ndim > 2 and frame.shape[-1] not in (1, 3, 4):
            frame = frame[-1]  # the newest of stacked frames
        if frame.ndim >= 2 and min(frame.shape[:2]) >= 8:
            axes.imshow(frame.squeeze(), cmap="gray", interpolation="nearest")
            axes.set_title(f"{key}, env 0, halfway", loc="left", fontsize=10, color=INK)
            axes.set_axis_off()
            return
    _say(axes, "observations are too many numbers to draw")


def _style(axes: Any, x: str, y: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=INK, labelsize=9)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)


def _say(axes: Any, words: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, color=INK)
