"""The options of the commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

EnvId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV_ID")]
Count = Annotated[int, tyro.conf.arg(metavar="N")]
OptionalCount = Annotated[int | None, tyro.conf.arg(metavar="N")]

POLICY = (
    "random: random actions. FILE.py:FACTORY: imports the file and calls FACTORY(env), or FACTORY() if it takes no argument, "
    "which returns a module or function. FILE.pt2: a program of torch.export.save; only torch's operators in it "
    "are run. Pickles (.pt, .pkl) are refused: they can run any code."
)
"""Not a docstring of the option: those keep their line breaks."""


@dataclass(frozen=True)
class Amount:
    """The amount of data, and the seed."""

    frames: Count
    """Total number of frames of all envs; rounded up to a multiple of --num-envs."""
    num_envs: Annotated[int, tyro.conf.arg(metavar="E")] = 1
    """Number of envs, stepped as one batch for the policy."""
    seed: Annotated[int, tyro.conf.arg(metavar="S")] = 0
    """Seed of the first env, and of random draws of the policy and its factory. The same seed gives the same frames."""
    max_frames_per_traj: OptionalCount = None
    """Truncate episodes after this many frames. An env's own limit still applies."""
    frames_per_batch: OptionalCount = None
    """Frames between two writes to the disk; about 128 per env by default. It does not change the data."""


@dataclass(frozen=True)
class Actions:
    """The policy, and how it acts."""

    policy: Annotated[str, tyro.conf.arg(metavar="random|FILE.py:FACTORY|FILE.pt2", help=POLICY)] = "random"
    exploration: Literal["random", "deterministic", "mean", "mode"] = "random"
    """How a policy with distributions chooses. It has no effect on other policies."""
    indices: bool = False
    """Discrete actions and observations are indices, not one-hot."""


@dataclass(frozen=True)
class Results:
    """The files to write. Nothing is overwritten."""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """New or empty folder for the frames, [E, T], and their manifest; reap.data.load_run(DIR) loads them."""
    drop: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY")]] = ()
    """Leave this key out of the files, as is necessary for keys with text. next/KEY leaves it out only under next."""
    record_episodes: bool = False
    """Also write records to DIR/episodes from which each finished episode can be run again: see `reap replay`."""
    format: Literal["memmap", "minari"] = "memmap"
    """memmap: one file per key. minari: a file of batches, from which a Minari data set is made at the end (--dataset)."""
    dataset: Annotated[str | None, tyro.conf.arg(metavar="ID")] = None
    """Id of the Minari data set, namespace/name-v0; it is written to MINARI_DATASETS_PATH, or ~/.minari/datasets."""
    resume: bool = False
    """Continue the run in --out, which was killed or stopped; the other options must be those of that run."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png")] = None
    """Draw returns, lengths and observations (needs matplotlib)."""
    traceback: bool = False
    """Show the full traceback of an error."""


@dataclass(frozen=True)
class View:
    """Displays besides the terminal."""

    page: bool = False
    """Serve a page with charts on 127.0.0.1; its address is printed (needs reap[page])."""
    port: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Serve the page on this port; a free one by default."""

    @property
    def place(self) -> bool | int:
        """The option `page` of `progress`."""
        return self.page if self.port is None else self.port


@dataclass(frozen=True)
class Collect:
    """Run a policy in an env and write its experience to a folder.

    Ctrl-C stops after the current batch and keeps all complete batches; a second one stops at once. --resume continues.
    """

    env_id: EnvId
    """A gymnasium id, such as CartPole-v1; MODULE:ID imports a module first."""
    collection: Amount
    policy: Actions
    output: Results
    view: View

    @property
    def traceback(self) -> bool:
        """Whether an error is shown with its traceback."""
        return self.output.traceback


@dataclass(frozen=True)
class Replay:
    """Run a recorded episode again, compare it with the record, bit for bit, and render it.

    Without --episode: list the recorded episodes. The exit code is 1 if the episode departs from its record.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """The folder of a `reap collect --record-episodes`."""
    episode: Annotated[str | None, tyro.conf.arg(metavar="ID|best|worst|longest|shortest|first|last")] = None
    """Which episode: the id of its trajectory, or a choice by return, length, or time of its end."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE.mp4")] = None
    """Write a video (needs the extra reap[video])."""
    to: Annotated[int | None, tyro.conf.arg(metavar="STEP")] = None
    """Stop after this number of steps."""
    traceback: bool = False
    """Show the full traceback of an error."""


@dataclass(frozen=True)
class Migrate:
    """Show which imports of programs written for torchrl can come from reap, and which names stay.

    Nothing is written without --write. All other code of the programs stays unchanged.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE.py|FOLDER")]
    """Programs, and folders of programs (*.py)."""
    level: Literal[1, 2, 3] = 3
    """1: collectors. 2: replay buffers too. 3: envs and specs too."""
    write: bool = False
    """Change the files."""
    traceback: bool = False
    """Show the full traceback of an error."""


@dataclass(frozen=True)
class Tune:
    """Find the collector, and the numbers of workers and of envs in each, that collect the most frames per second here.

    Prints a table, and lines of Python that make the best one.
    """

    env_id: EnvId
    """A gymnasium id, such as CartPole-v1; MODULE:ID imports a module first."""
    policy: Annotated[str, tyro.conf.arg(metavar="random|FILE.py:FACTORY|FILE.pt2", help=POLICY)] = "random"
    hidden: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="N ...")] = None
    """Instead of --policy: a network with hidden layers of these widths."""
    indices: bool = False
    """Discrete actions and observations are indices, not one-hot."""
    frames_per_batch: Count = 1000
    """Frames of a batch of the collector that you will use."""
    seconds: float = 60.0
    """Approximate time to spend, in seconds; up to four times as much where processes start slowly."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png")] = None
    """Draw the table (needs matplotlib)."""
    traceback: bool = False
    """Show the full traceback of an error."""


@dataclass(frozen=True)
class Doctor:
    """Check what a collection depends on: versions, devices, cores, memory, limits; a worker is started briefly.

    The exit code is 1 if there is a warning. Include the output in bug reports.
    """

    json: bool = False
    """Print JSON: a list of objects with name, found, remedy and status, "ok" or "warning"."""
    traceback: bool = False
    """Show the full traceback of an error."""


FLAGS = {
    "dataset_id": "--dataset",
    "frames_per_batch": "--frames-per-batch",
    "hidden": "--hidden",
    "page": "--port",
    "seconds": "--seconds",
    "video": "--video",
}
"""Options of the command line whose values are checked by functions under other names."""
