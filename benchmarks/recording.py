"""Claims: recording every frame costs at most 5 % of the frames per second, and `record_episodes` at most 2 %.

    python benchmarks/recording.py                  # needs pip install "reap[minari]" "minari[create]"
    python benchmarks/recording.py --seconds 10

Batches are collected in turns, one with and one without, so that both meet the same moments of a busy machine. The time of a
recorded batch includes that of writing it, as if the thread that writes had no core of its own. Two collectors take turns where
one of them keeps what it takes to run its episodes again. The data set is measured apart: seconds to collect and record,
seconds to make it; and seconds of a loop over the same env in a `DataCollector`, with as many frames and random actions.
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import torch
import tyro
from ceiling import CartPolePolicy
from pairs import make_rows, note
from pong import PixelPolicy, make_pong

from reap import SyncDataCollector
from reap.data import to_minari
from reap.data.datasets.record_file import Layout, RecordFile, observed
from reap.keys import plain

TARGET = 0.95
EPISODES_TARGET = 0.98

LEAST_PAIRS = 30
"""Of batches."""


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


def recording(case: Case, folder: Path, seconds: float) -> tuple[float, float, float]:
    """The frames per second with recording, as a ratio to those without; see `in_turns`."""
    frames = case.envs * case.columns
    with SyncDataCollector(make_rows(case.envs, case.make_env), case.make_policy(), frames_per_batch=frames) as collector:
        file, append = recorder(collector, folder / "frames.reap", case.envs)

        def record() -> None:
            append(collector.next())
            file.flush()

        found = in_turns(record, collector.next, seconds)
        file.close()
    return found


def keeping_episodes(case: Case, seconds: float) -> tuple[float, float, float]:
    """The frames per second with `record_episodes`, as a ratio to those without; see `in_turns`."""

    def made(records: bool) -> SyncDataCollector:
        rows = make_rows(case.envs, case.make_env)
        frames = case.envs * case.columns
        return SyncDataCollector(rows, case.make_policy(), frames_per_batch=frames, record_episodes=records)

    with made(True) as keeping, made(False) as bare:
        return in_turns(keeping.next, bare.next, seconds)


def in_turns(collect: Callable[[], Any], other: Callable[[], Any], seconds: float) -> tuple[float, float, float]:
    """How much faster a function is than another: the median and the quartiles over pairs of calls, in either order."""
    ratios: list[float] = []
    for function in (collect, other):
        function()
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(ratios) < LEAST_PAIRS:
        order = (collect, other) if len(ratios) % 2 else (other, collect)
        spent = {function: timed(function) for function in order}
        ratios.append(spent[other] / spent[collect])
    first, middle, last = statistics.quantiles(ratios)
    return middle, first, last


def timed(function: Callable[[], Any]) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def judged(found: tuple[float, float, float], target: float) -> str:
    """The median, the quartiles, and whether it reaches the target."""
    ratio, first, last = found
    verdict = "PASS" if ratio >= target else "FAIL"
    return f"{ratio:.3f} of the frames/s without ({first:.2f} to {last:.2f}) {verdict}"


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


def main(seconds: float = 30.0, frames: int = 4096) -> None:
    """Measure and print.

    Args:
        seconds: of each comparison.
        frames: frames of the data sets.
    """
    warnings.simplefilter("ignore", UserWarning)  # minari asks for an author
    for case in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            print(f"{case.name:22} recording: {judged(recording(case, folder, seconds), TARGET)}", flush=True)
            print(f"{'':22} record_episodes: {judged(keeping_episodes(case, seconds), EPISODES_TARGET)}", flush=True)
            (folder / "frames.reap").unlink()
            if find_spec("jax") is None:
                note(f'{case.name}: no data set, minari\'s own collector needs jax: pip install "minari[create]"')
                continue
            os.environ["MINARI_DATASETS_PATH"] = str(folder / "sets")
            (folder / "sets").mkdir()
            collected, making, theirs, episodes = data_set(case, folder, frames)
            print(
                f"{'':22} {frames:,} frames, {episodes:,} episodes: collected in {collected:.1f} s, data set made in "
                f"{making:.1f} s; minari.DataCollector: {theirs:.1f} s"
            )


if __name__ == "__main__":
    tyro.cli(main)
