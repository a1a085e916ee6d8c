"""`log`: the numbers of a collection, in an experiment tracker.

stats() of collectors, buffers, evaluations ---> scalars ---> writer
                                                name: float   TensorBoard, wandb, MLflow, torchrl, CSV, a function
"""

from __future__ import annotations

import codecs
import csv
import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from reap.collectors.base import DataCollectorBase
from reap.collectors.stats import CollectorStats, Summary
from reap.data import RayReplayBuffer, ReplayBuffer, ReplayBufferEnsemble
from reap.errors import OptionError
from reap.evaluation import Evaluation
from reap.option_values import whole_number
from reap.system.disk import replaced

__all__ = ["log"]

Scalars = Mapping[str, float]
Buffer = ReplayBuffer | ReplayBufferEnsemble | RayReplayBuffer
Send = Callable[[Scalars, int], Any]


def log(source: Any, writer: Any, *, step: int | None = None, prefix: str = "") -> dict[str, float]:
    """Write the numbers of a collector, a buffer or an evaluation to an experiment tracker.

    Call it in the loop over batches, as often as you want points. It does not affect the values that you read with `stats()`.

    | name | meaning |
    |---|---|
    | `episodes/return`, `/return_min`, `/return_max` | sums of rewards of the last 100 episodes that ended |
    | `episodes/length` | their mean length, in frames |
    | `episodes/finished` | episodes that have ended so far |
    | `frames/delivered`, `/discarded`, `/per_second`, `/out_of_bounds` | frames so far, and their rate |
    | `time/env`, `/policy`, `/training` | shares of the time, 0 to 1 |
    | `weights/staleness` | policy updates by which the last batch lagged |
    | `workers/restarts`; `workers/0/frames_per_second`, ... | of a collector with several workers |
    | `evaluation/return`, `/return_std`, `/length` | of an `Evaluation` |
    | `buffer/size`, `/capacity`, `/fill` | frames in a buffer, at most, and their ratio, 0 to 1 |
    | `buffer/written`, `/samples`, `/sampled_frames` | frames written, and what was sampled, so far |
    | `buffer/sample_age`, `/sample_age_min`, `/sample_age_max` | of the last sample: frames written since each of its frames |

    Args:
        source: a collector, a replay buffer, an `Evaluation`, or a list of those, which share one step.
        writer: `torch.utils.tensorboard.SummaryWriter`; a run of `wandb.init`; the module `mlflow`, with a run that is
            active; a logger of torchrl; the path of a CSV file, to which a line is added; or a function of the scalars, a
            dict, and the step.
        step: what the numbers are drawn over; by default the frames of the first collector, or if there is none, the frames
            written to the first buffer.
        prefix: put before each name: `"train/"`.

    Returns:
        The scalars. A number that is not known yet (the return before the first episode has ended) is NaN; it is an empty
        field in a CSV file, and goes to no other writer.

    Raises:
        OptionError: the source or the writer is none of these, the path is a folder, the step is no integer, the prefix no
            string, or there is no collector, no buffer and no `step`.

    Example:
        >>> from reap.collectors import SyncDataCollector
        >>> collector = SyncDataCollector("CartPole-v1", frames_per_batch=50, total_frames=100)
        >>> for batch in collector:
        ...     scalars = log(collector, lambda scalars, step: print(step, scalars["frames/delivered"]))
        50 50.0
        100 100.0
    """
    sources = source if isinstance(source, Sequence) else [source]
    _check_prefix(prefix)
    send = _sender(writer)
    scalars: dict[str, float] = {}
    for one in sources:
        for name, value in _scalars_of(one):
            if prefix + name in scalars:
                raise OptionError(f"source: two of the {len(sources)} give {name!r}; log them with a prefix each")
            scalars[prefix + name] = float(value)
    send(scalars, _step(sources) if step is None else _checked(step))
    return scalars


# ------------------------------------------------------------------ sources


def _scalars_of(source: Any) -> Iterator[tuple[str, float]]:
    if isinstance(source, DataCollectorBase):
        return _of_collector(source._meter.glance())  # pyright: ignore[reportPrivateUsage]
    if isinstance(source, Evaluation):
        return _of_evaluation(source)
    if isinstance(source, Buffer):
        return _of_buffer(source.stats())
    raise OptionError(f"source: expected a collector, a replay buffer, an Evaluation, or a list of those; got {source!r}")


def _step(sources: Sequence[Any]) -> int:
    for source in sources:
        if isinstance(source, DataCollectorBase):
            return source._meter.frames  # pyright: ignore[reportPrivateUsage]
    for source in sources:
        if isinstance(source, Buffer):
            return int(source.stats()["write_count"])
    raise OptionError(
        "step: expected a number, since neither a collector nor a buffer is among the sources, whose frames would be the step"
    )


def _check_prefix(prefix: Any) -> None:
    if not isinstance(prefix, str):
        raise OptionError(f"prefix: expected a string to put before each name, such as 'train/', got {prefix!r}")


def _checked(step: Any) -> int:
    number = whole_number(step)
    if number is None:
        raise OptionError(f"step: expected an integer, such as the number of frames so far, got {step!r}")
    return number


def _of_collector(stats: CollectorStats) -> Iterator[tuple[str, float]]:
    yield from _of_summary("episodes/return", stats.recent_returns)
    yield "episodes/length", stats.recent_lengths.mean
    yield "episodes/finished", stats.finished_episodes
    yield "frames/delivered", stats.frames
    yield "frames/discarded", stats.discarded_frames
    yield "frames/per_second", stats.frames_per_second
    yield "frames/out_of_bounds", stats.out_of_bounds
    yield "time/env", stats.env_share
    yield "time/policy", stats.policy_share
    yield "time/training", stats.waiting_share
    yield "weights/staleness", stats.staleness
    yield "workers/restarts", stats.restarts
    for number, worker in enumerate(stats.workers):
        yield f"workers/{number}/frames_per_second", worker.frames_per_second
        yield f"workers/{number}/env", worker.env_share
        yield f"workers/{number}/policy", worker.policy_share


def _of_summary(name: str, summary: Summary) -> Iterator[tuple[str, float]]:
    yield name, summary.mean
    yield f"{name}_min", summary.min
    yield f"{name}_max", summary.max


def _of_evaluation(evaluation: Evaluation) -> Iterator[tuple[str, float]]:
    yield "evaluation/return", evaluation.mean
    yield "evaluation/return_std", evaluation.std
    yield "evaluation/length", float(evaluation.lengths.mean())


def _of_buffer(stats: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    yield "buffer/size", stats["size"]
    yield "buffer/capacity", stats.get("capacity", math.nan)  # not known before the first use, with delayed_init
    yield "buffer/fill", stats.get("utilization", 0.0)
    yield "buffer/written", stats["write_count"]
    yield "buffer/samples", stats.get("samples", 0)
    yield "buffer/sampled_frames", stats.get("sampled_frames", 0)
    yield "buffer/sample_age", stats.get("sample_age_mean", math.nan)
    yield "buffer/sample_age_min", stats.get("sample_age_min", math.nan)
    yield "buffer/sample_age_max", stats.get("sample_age_max", math.nan)


# ------------------------------------------------------------------ writers


def _sender(writer: Any) -> Send:
    if isinstance(writer, str | os.PathLike):
        return CSVFile(Path(writer)).append
    senders: dict[str, Callable[[Any], Send]] = {
        "add_scalar": lambda board: _one_by_one(board.add_scalar),  # TensorBoard
        "log_metrics": lambda mlflow: lambda scalars, step: mlflow.log_metrics(_known(scalars), step=step),
        "log_scalar": lambda logger: _one_by_one(logger.log_scalar),  # torchrl
        "log": lambda run: lambda scalars, step: run.log(_known(scalars), step=step),  # Weights & Biases
    }
    for method, sender in senders.items():
        if callable(getattr(writer, method, None)):
            if isinstance(writer, type):
                raise OptionError(f"writer: expected an instance of {writer.__name__}, got the class; make one")
            return sender(writer)
    if callable(writer):
        return writer
    raise OptionError(
        "writer: expected a SummaryWriter of TensorBoard, a run of wandb, the module mlflow, a logger of torchrl, the path of "
        f"a CSV file, or a function of the scalars and the step; got {writer!r}"
    )


def _one_by_one(call: Callable[[str, float, int], Any]) -> Send:
    def send(scalars: Scalars, step: int) -> None:
        for name, value in _known(scalars).items():
            call(name, value, step)

    return send


def _known(scalars: Scalars) -> dict[str, float]:
    return {name: value for name, value in scalars.items() if not math.isnan(value)}


class CSVFile:
    """A file with a column for each name, and a line for each step.

    Names that come later get a column of their own, empty in the lines before.

    Args:
        path: the file; made if it is not there.

    Raises:
        OptionError: its folder does not exist, or it is a folder.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise OptionError(
                f"writer: expected the path of a CSV file, got the folder {path}; give a file in it, such as "
                f"{path / 'log.csv'}, or for TensorBoard a SummaryWriter of the folder"
            )
        if not path.absolute().parent.is_dir():
            raise OptionError(f"writer: expected a file in a folder that exists, got {path}")
        self._path = path

    def append(self, scalars: Scalars, step: int) -> None:
        """Add a line.

        Raises:
            OptionError: the file has no column `step`, or is no text in UTF-8: it is another kind of file.
        """
        line = {"step": str(step), **{name: repr(value) for name, value in _known(scalars).items()}}
        columns = self._columns()
        missing = [name for name in ("step", *scalars) if name not in columns]
        if missing:
            self._rewrite([*columns, *missing])
            columns += missing
        end_of_torn_line = "\r\n" if self._is_torn() else ""
        with self._path.open("a", newline="", encoding="utf-8") as file:
            file.write(end_of_torn_line)
            csv.DictWriter(file, columns).writerow(line)

    def _columns(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._reading() as file:
            columns = next(csv.reader(file), [])
        if columns and columns[0] != "step":
            raise OptionError(f"writer: {self._path}: expected a CSV file whose first column is 'step', found {columns[0]!r}")
        return columns

    def _is_torn(self) -> bool:
        """Whether the last line has no end: its writer was killed, or it is an editor's."""
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"

    @contextmanager
    def _reading(self) -> Generator[TextIO]:
        try:
            # With or without the mark with which files of spreadsheets begin.
            with self._path.open(newline="", encoding="utf-8-sig") as file:
                yield file
        except (UnicodeDecodeError, csv.Error) as error:
            raise OptionError(
                f"writer: {self._path}: expected a CSV file in UTF-8, found another kind of file: {error}"
            ) from error

    def _rewrite(self, columns: list[str]) -> None:
        lines: list[dict[str, str]] = []
        has_mark = False
        if self._path.exists():
            with self._reading() as file:
                lines = list(csv.DictReader(file))
            with self._path.open("rb") as file:
                has_mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
        encoding = "utf-8-sig" if has_mark else "utf-8"
        with replaced(self._path) as path, path.open("w", newline="", encoding=encoding) as file:
            # Two lines that became one have fields beyond the last column, which have no name.
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(lines)
