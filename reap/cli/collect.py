"""`reap collect`: collects frames of an env and a policy into a folder."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

import torch
from rich.console import Console
from rich.text import Text
from tensordict import TensorDictBase

from reap.cli.options import Actions, Amount, Collect, Results
from reap.cli.plot import Plot
from reap.cli.policies import explained, explained_env, load_policy, told
from reap.cli.report import Episodes, Stored, size, summary
from reap.cli.runs.recording import columns_in_time
from reap.cli.runs.run import Run, is_complete
from reap.cli.signals import Interrupts
from reap.collectors.local import SyncDataCollector
from reap.collectors.stats import CollectorStats
from reap.data import load_run
from reap.display import progress
from reap.envs import EnvBase, ExplorationType, SerialEnv
from reap.errors import OptionError, notes_of, text_of
from reap.evaluation import EpisodeLog
from reap.recording.records import EpisodeRecord

COLUMNS_PER_BATCH, BATCH_BYTES = 128, 64_000_000
"""Maximum size of a batch in bytes, unless another is requested: memory use stays small even with large observations."""

COMPLETE, FAILED = 0, 1
"""Exit codes; after a signal the code is 128 plus the signal's number, as in a shell."""


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        episodes: the episodes that ended in stored frames.
        interrupted: the signal that ended the run early.
        error: the exception of the env or the policy.
    """

    episodes: Episodes = field(default_factory=Episodes)
    interrupted: signal.Signals | None = None
    error: Exception | None = None

    @property
    def exit_code(self) -> int:
        """0 for a complete run, 1 for an error, 128 plus the number of a signal."""
        return FAILED if self.error else 128 + self.interrupted if self.interrupted else COMPLETE


def run(options: Collect, console: Console) -> int:
    """Collect, store, and show the outcome.

    Args:
        options: the command line.
        console: where to draw.

    Returns:
        The exit code.

    Raises:
        OptionError: an option cannot work; raised before any frame is collected.
    """
    amount, output = options.collection, options.output
    _check(amount)
    plot = Plot(output.plot) if output.plot else None
    rows, columns = amount.num_envs, ceil(amount.frames / amount.num_envs)
    if output.resume and is_complete(options):
        console.print(Text(f"{output.out}: the run is complete; there is nothing to resume"), soft_wrap=True)
        return COMPLETE
    run = Run(options, columns)
    _tell_resumed(run, options, console)
    outcome, stats = Outcome(), None
    try:
        if run.written < columns:
            with _collector(options, rows, columns - run.written, run.seed) as collector:
                title = f"{options.env_id} · {options.policy.policy}"
                batches = progress(collector, title=title, console=console, page=options.view.place)
                run.begin(collector.frame_fields)
                outcome = _collected(collector, batches, run, rows)
                stats = collector.stats()
    finally:
        data = run.finish()
    if outcome.error is not None and output.traceback:
        raise outcome.error
    _tell(outcome, run, stats, data, console)
    code = max(outcome.exit_code, _tell_dataset(run, output, console))
    if plot is not None and data is not None:
        try:
            plot.draw(f"{options.env_id}, {options.policy.policy}", load_run(output.out), outcome.episodes)
        except OSError as error:
            console.print(Text(f"error: --plot {plot.path}: {told(error)}", style="red"), soft_wrap=True)
            return code or FAILED
        console.print(Text(f"Plot: {plot.path}"), soft_wrap=True)
    return code


def _check(amount: Amount) -> None:
    for name in ("frames", "num_envs", "max_frames_per_traj", "frames_per_batch"):
        value = getattr(amount, name)
        if value is not None and value < 1:
            raise OptionError(f"--{name.replace('_', '-')} {value}: expected a positive number")
    if not 0 <= amount.seed < 2**63:
        raise OptionError(f"--seed {amount.seed}: expected a number from 0 to 2**63 - 1")


def _collector(options: Collect, rows: int, columns: int, seed: int) -> SyncDataCollector:
    amount, actions = options.collection, options.policy
    env = _env(options.env_id, rows, actions)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(amount.seed)
            policy = load_policy(actions.policy, env)
        wanted, most = amount.frames_per_batch, _columns_per_batch(env)
        if wanted is not None:
            frames = rows * min(columns, ceil(wanted / rows))
        else:
            frames = rows * _even(columns, columns_in_time(env, most) if options.output.format == "minari" else most)
        with explained(actions.policy):
            collector = SyncDataCollector(
                env,
                policy,
                frames_per_batch=frames,
                total_frames=ceil(rows * columns / frames) * frames,
                max_frames_per_traj=amount.max_frames_per_traj,
                exploration_type=getattr(ExplorationType, actions.exploration.upper()),
                record_episodes=options.output.record_episodes and frames,  # no more can end in a batch
            )
        collector.set_seed(seed)
    except BaseException:
        env.close()
        raise
    return collector


def _columns_per_batch(env: EnvBase) -> int:
    frame = 2 * sum(field.nbytes for field in env.slot_fields().values())  # a frame holds each observation twice
    return max(1, min(COLUMNS_PER_BATCH, BATCH_BYTES // max(1, frame * env.batch_size.numel())))


def _even(columns: int, most: int) -> int:
    """The number of columns of a batch with which the last batch is complete, if there is one not far below `most`."""
    if columns <= most:
        return columns
    return next((count for count in range(most, most // 2, -1) if columns % count == 0), most)


def _env(env_id: str, rows: int, actions: Actions) -> EnvBase:
    with explained_env(env_id):
        return SerialEnv(rows, env_id, create_env_kwargs={"categorical_action_encoding": actions.indices})


def _collected(collector: SyncDataCollector, batches: Iterable[TensorDictBase], folder: Run, rows: int) -> Outcome:
    outcome, log = Outcome(), EpisodeLog(rows)
    with Interrupts() as interrupts:
        try:
            for batch in batches:
                before, ended = folder.written, log.add(batch)
                records = _records(collector, batch, folder.columns - before) if folder.records_episodes else ()
                stored = folder.write(batch, records)
                outcome.episodes.add([(before + one.column, one) for one in ended if one.column < stored], rows)
                if interrupts.received:
                    break
            folder.flush()
        except KeyboardInterrupt:
            pass
        except Exception as error:  # noqa: BLE001  of the env or the policy: reported after saving
            outcome.error = error
    if folder.written < folder.columns:
        outcome.interrupted = interrupts.received
    return outcome


def _records(collector: SyncDataCollector, batch: TensorDictBase, columns: int) -> list[EpisodeRecord]:
    """The records of the episodes that ended in the first columns of a batch."""
    ends = batch["next", "done"][..., :columns, 0]
    ids = set(batch["collector", "traj_ids"][..., :columns][ends].tolist())
    return [record for record in collector.episodes.take() if record.id in ids]


def _tell_resumed(run: Run, options: Collect, console: Console) -> None:
    if not options.output.resume:
        return
    frames = run.written * options.collection.num_envs
    console.print(Text(f"{run.path}: {frames:,} frames are there", style="dim"), soft_wrap=True)
    if run.changed_versions:
        console.print(Text(f"Versions that have changed: {', '.join(run.changed_versions)}", style="yellow"), soft_wrap=True)


def _tell_dataset(run: Run, output: Results, console: Console) -> int:
    """Make the data set, if one is requested; return the exit code."""
    if output.dataset is None:
        return COMPLETE
    try:
        made = run.make_dataset()
    except OSError as error:
        if output.traceback:
            raise
        text = f"error: {' '.join(text_of(error).split())}. The frames are kept; --resume makes the data set of them"
        console.print(Text(text, style="red"), soft_wrap=True)
        return FAILED
    if made is None:
        code = f'reap.data.to_minari("{run.path}", "{output.dataset}")'
        console.print(Text(f"No data set was made. --resume continues; of what is there: {code}", style="dim"), soft_wrap=True)
        return COMPLETE
    dataset, seconds = made
    where = dataset.storage.data_path
    nbytes = sum(file.stat().st_size for file in where.rglob("*") if file.is_file())
    console.print(
        Text(f"{where.parent}  ({size(nbytes)}, {dataset.total_episodes:,} episodes, written in {seconds:.1f} s)"),
        soft_wrap=True,
    )
    console.print(Text(f'Load it: minari.load_dataset("{dataset.id}")', style="dim"), soft_wrap=True)
    return COMPLETE


def _tell(outcome: Outcome, folder: Run, stats: CollectorStats | None, data: Stored | None, console: Console) -> None:
    if outcome.error is not None:
        notes = "".join(f"; {note}" for note in notes_of(outcome.error))
        console.print(Text(f"error: {told(outcome.error)}{notes}", style="red"), soft_wrap=True)
    if data is None:
        console.print(Text(f"Nothing is kept: no batch was complete. {folder.path} is as it was."), soft_wrap=True)
        return
    if stats is not None:
        console.print(summary(data, folder.path, outcome.episodes, stats, is_resumed=folder.is_resumed))
    if folder.written < folder.columns:
        asked = folder.columns * data.envs
        why = "The run failed" if outcome.error else "Interrupted"
        console.print(
            Text(
                f"{why}: {data.frames:,} of {asked:,} frames were complete; they are kept, the rest is not. "
                "--resume continues with the same options and policy.",
                style="yellow",
            ),
            soft_wrap=True,
        )
    load = "reap.data.load_run" if folder.has_records else "TensorDict.load_memmap"
    console.print(Text(f'Load them: {load}("{folder.path}")', style="dim"), soft_wrap=True)
