"""Claims: recording every frame costs at most 5 % of the frames per second, and `record_episodes` at most 2 %.

    python benchmarks/recording.py                  # needs pip install "reap[minari]" "minari[create]"
    python benchmarks/recording.py --repeats 40 --seconds 0.5

Recording is measured in turns: the same collector collects for a while with and for a while without writing, and waits for
what is still being written at the end of each turn. Two collectors take turns where one of them keeps what it takes to run its
episodes again. The data set is measured apart: seconds to collect and record, seconds to
make it; and seconds of a loop over the same env in a `DataCollector`, with as many frames and random actions.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import torch
import tyro
from ceiling import CartPolePolicy
from pairs import make_rows
from pong import PixelPolicy, make_pong

from reap import SyncDataCollector
from reap.data import to_minari
from reap.data.datasets.record_file import Layout, RecordFile, observed
from reap.keys import plain

TARGET = 0.95
EPISODES_TARGET = 0.98


@dataclass(frozen=True)
class Case:
    """An env, a policy, and the size of batches: those that `reap collect` takes, about 0.05 s each."""

    name: str
    envs: int
    columns: int
    make_env: Callable[[], gym.Env[Any, Any]]
    make_policy: Callable[[], torch.nn.Module]


CASES = (
    Case("CartPole × 64", 64, 16, partial(gym.make, "CartPole-v1"), CartPolePolicy),
    Case("ALE Pong 84×84×4 × 8", 8, 8, make_pong, PixelPolicy),
)


def recorder(collector: SyncDataCollector, path: Path, envs: int) -> tuple[RecordFile, Callable[[Any], None]]:
    """A file for the frames of a collector, and a function that appends a batch."""
    fields = dict(collector.frame_fields)
    file = RecordFile(path, Layout(envs, fields, observed(fields, [("observation",)])))
    return file, lambda batch: file.append({key: batch.get(plain(key)) for key in fields})


def recording(case: Case, folder: Path, seconds: float, repeats: int) -> tuple[float, list[float], float]:
    """Frames per second with recording (median), their ratios to those without, and the ratio of frames per second of CPU time.

    The last counts the writing thread as if it had no core of its own; on a busy machine it is the steadier one.
    """
    frames = case.envs * case.columns
    ratios: list[float] = []
    rates: list[float] = []
    spent = {True: 0.0, False: 0.0}
    counts = {True: 0, False: 0}
    with SyncDataCollector(make_rows(case.envs, case.make_env), case.make_policy(), frames_per_batch=frames) as collector:
        file, append = recorder(collector, folder / "frames.reap", case.envs)
        collector.next()

        def turn(write: Callable[[Any], None]) -> float:
            count, started, cpu = 0, time.perf_counter(), time.process_time()
            while time.perf_counter() - started < seconds:
                write(collector.next())
                count += frames
            file.flush()
            spent[write is append] += time.process_time() - cpu
            counts[write is append] += count
            return count / (time.perf_counter() - started)

        for number in range(repeats):
            # By turns in the other order, so that a machine that slows down does not count for one of them.
            first, second = (append, _drop) if number % 2 else (_drop, append)
            found = {first: turn(first), second: turn(second)}
            rates.append(found[append])
            ratios.append(found[append] / found[_drop])
        file.close()
    return statistics.median(rates), ratios, counts[True] / spent[True] * spent[False] / counts[False]


def _drop(batch: Any) -> None:
    """Without recording."""


def keeping_episodes(case: Case, seconds: float, repeats: int) -> list[float]:
    """The ratios of the frames per second with `record_episodes` to those without."""
    frames = case.envs * case.columns

    def made(records: bool) -> SyncDataCollector:
        rows = make_rows(case.envs, case.make_env)
        return SyncDataCollector(rows, case.make_policy(), frames_per_batch=frames, record_episodes=records)

    def rate(collector: SyncDataCollector) -> float:
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            count += collector.next().numel()
        return count / (time.perf_counter() - started)

    ratios = []
    with made(True) as keeping, made(False) as bare:
        for collector in (keeping, bare):
            collector.next()
        for number in range(repeats):
            order = (keeping, bare) if number % 2 else (bare, keeping)
            found = {collector is keeping: rate(collector) for collector in order}
            ratios.append(found[True] / found[False])
    return ratios


def judged(ratios: list[float], target: float) -> str:
    """The median, how far they lie apart, and whether it reaches the target."""
    ratio = statistics.median(ratios)
    verdict = "PASS" if ratio >= target else "FAIL"
    return f"{ratio:.3f} of the frames/s without ({min(ratios):.2f} to {max(ratios):.2f}) {verdict}"


def data_set(case: Case, folder: Path, frames: int) -> tuple[float, float, float, int]:
    """Seconds to collect and record frames, to make the data set, and of a `DataCollector` for both; and its episodes."""
    started = time.perf_counter()
    path = folder / "frames.reap"
    with SyncDataCollector(
        make_rows(case.envs, case.make_env), frames_per_batch=case.envs * case.columns, total_frames=frames
    ) as collector:
        file, append = recorder(collector, path, case.envs)
        parts = [batch for batch in collector if append(batch) is None]
    file.close()
    collected = time.perf_counter() - started
    env = case.make_env()
    started = time.perf_counter()
    whole: Any = torch.cat(parts, 1)  # pyright: ignore[reportCallIssue, reportArgumentType]
    made = to_minari(whole, "bench/reap-v0", env=env)
    making = time.perf_counter() - started
    started = time.perf_counter()
    wrapped = minari.DataCollector(env, jpeg_encoding=False)
    wrapped.reset(seed=0)
    wrapped.action_space.seed(0)
    for _ in range(frames):
        _, _, terminated, truncated, _ = wrapped.step(wrapped.action_space.sample())
        if terminated or truncated:
            wrapped.reset()
    wrapped.create_dataset("bench/minari-v0")
    theirs = time.perf_counter() - started
    wrapped.close()
    return collected, making, theirs, made.total_episodes


def main(seconds: float = 1.0, repeats: int = 20, frames: int = 4096) -> None:
    """Measure and print.

    Args:
        seconds: length of a turn.
        repeats: turns of each kind.
        frames: frames of the data sets.
    """
    warnings.simplefilter("ignore", UserWarning)  # minari asks for an author
    for case in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            os.environ["MINARI_DATASETS_PATH"] = str(folder / "sets")
            (folder / "sets").mkdir()
            rate, ratios, by_cpu = recording(case, folder, seconds, repeats)
            print(f"{case.name:22} recording: {judged(ratios, TARGET)}; {rate:,.0f}/s; by CPU time {by_cpu:.3f}", flush=True)
            episodes_kept = judged(keeping_episodes(case, seconds, repeats), EPISODES_TARGET)
            print(f"{'':22} record_episodes: {episodes_kept}", flush=True)
            (folder / "frames.reap").unlink()
            collected, making, theirs, episodes = data_set(case, folder, frames)
            print(
                f"{'':22} {frames:,} frames, {episodes:,} episodes: collected in {collected:.1f} s, data set made in "
                f"{making:.1f} s; minari.DataCollector: {theirs:.1f} s"
            )


if __name__ == "__main__":
    tyro.cli(main)
