"""`reap.log`: the same scalars in every tracker, each read back by its own package."""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reap
from reap.collectors import MultiSyncDataCollector, SyncDataCollector
from reap.errors import OptionError
from reap.evaluation import Evaluation
from reap.loggers import log
from reap.testing import Count

FRAMES = 20
EPISODE = 8
"""Frames of an episode of this env, each with a reward of 1."""


def env() -> Any:
    return reap.GymEnv(Count(EPISODE))


@pytest.fixture
def collector() -> SyncDataCollector:
    return SyncDataCollector(env, frames_per_batch=FRAMES, total_frames=2 * FRAMES)


def logged(collector: SyncDataCollector, writer: Any) -> list[dict[str, float]]:
    return [log(collector, writer) for _ in collector]


def test_names_and_values(collector: SyncDataCollector) -> None:
    seen: list[tuple[dict[str, float], int]] = []
    scalars = logged(collector, lambda *one: seen.append(one))
    assert [step for _, step in seen] == [FRAMES, 2 * FRAMES]
    assert [one for one, _ in seen] == scalars
    first, second = scalars
    assert list(first) == [
        *("episodes/return", "episodes/return_min", "episodes/return_max", "episodes/length", "episodes/finished"),
        *("frames/delivered", "frames/discarded", "frames/per_second", "frames/out_of_bounds"),
        *("time/env", "time/policy", "time/training", "weights/staleness", "workers/restarts"),
    ]
    assert second["frames/delivered"] == 2 * FRAMES
    assert second["episodes/finished"] == 2 * FRAMES // EPISODE
    assert second["episodes/length"] == EPISODE
    assert second["frames/per_second"] > 0
    assert 0 < second["time/env"] < 1


def test_the_users_own_stats_are_left_alone(collector: SyncDataCollector) -> None:
    logged(collector, lambda *_: None)
    assert len(collector.stats().episodes) == 2 * FRAMES // EPISODE


def test_workers_have_names_of_their_own() -> None:
    with MultiSyncDataCollector([env] * 2, frames_per_batch=FRAMES, total_frames=FRAMES) as collector:
        collector.next()
        scalars = log(collector, lambda *_: None)
    assert {name for name in scalars if name.startswith("workers/")} == {
        "workers/restarts",
        *(f"workers/{number}/{name}" for number in range(2) for name in ("frames_per_second", "env", "policy")),
    }


def test_several_sources_share_a_step(collector: SyncDataCollector) -> None:
    evaluation = Evaluation(np.array([1.0, 3.0]), np.array([4, 6]))
    steps: list[int] = []
    collector.next()
    scalars = log([evaluation, collector], lambda _, step: steps.append(step), prefix="run/")
    assert steps == [FRAMES]
    assert [scalars[f"run/evaluation/{name}"] for name in ("return", "return_std", "length")] == [2, 1, 5]
    log(evaluation, lambda _, step: steps.append(step), step=7)
    assert steps[1:] == [7]


def test_tensorboard(collector: SyncDataCollector, tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard.SummaryWriter(tmp_path) as writer:
        scalars = logged(collector, writer)
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(scalars[1])
    points = [(event.step, event.value) for event in events.Scalars("episodes/length")]
    assert points == [(FRAMES, EPISODE), (2 * FRAMES, EPISODE)]


WITH_WANDB = """
import json, sys
import reap, wandb
from reap.testing import Count

collector = reap.SyncDataCollector(lambda: reap.GymEnv(Count(8)), frames_per_batch=20, total_frames=40)
with wandb.init(mode="offline", dir=sys.argv[1], project="reap") as run:
    print(json.dumps([reap.log(collector, run) for _ in collector]))
"""
"""In a process of its own: wandb leaves threads."""


@pytest.mark.processes
def test_weights_and_biases(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    environ = {**os.environ, "WANDB_SILENT": "true"}
    command = (sys.executable, "-c", WITH_WANDB, str(tmp_path))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    [path] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert history_in(path) == [
        {**scalars, "_step": step} for step, scalars in zip((FRAMES, 2 * FRAMES), json.loads(done.stdout), strict=True)
    ]


def history_in(path: Path) -> list[dict[str, float]]:
    """The lines of an offline run's history, without wandb's own clocks."""
    parse: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record.FromString
    records = [parse(data) for data in log_records(path.read_bytes())]
    lines = [record.history.item for record in records if record.HasField("history")]
    clocks = ("_runtime", "_timestamp")
    names = [{item.key or item.nested_key[0]: item.value_json for item in line} for line in lines]
    return [{name: json.loads(value) for name, value in line.items() if name not in clocks} for line in names]


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, after wandb's header of 7 bytes.

    Blocks of 32 KiB hold pieces of records: checksum, length, and whether it is all (1), the first (2), or the last (4).
    """
    block, start, record = 32_768, 7, b""
    while start + 7 <= len(data):
        if block - start % block < 7:  # too little for a header: zeros
            start += block - start % block
            continue
        length, kind = struct.unpack_from("<HB", data, start + 4)
        record = (b"" if kind in (1, 2) else record) + data[start + 7 : start + 7 + length]
        start += 7 + length
        if kind in (1, 4):
            yield record


@pytest.mark.processes
def test_mlflow(collector: SyncDataCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("reap")
    with mlflow.start_run() as run:
        scalars = logged(collector, mlflow)
    history = mlflow.MlflowClient(tmp_path.as_uri()).get_metric_history(run.info.run_id, "frames/delivered")
    assert [(point.step, point.value) for point in history] == [(FRAMES, FRAMES), (2 * FRAMES, 2 * FRAMES)]
    assert mlflow.get_run(run.info.run_id).data.metrics == pytest.approx(scalars[1])


def test_torchrls_loggers(collector: SyncDataCollector, tmp_path: Path) -> None:
    loggers = pytest.importorskip("torchrl.record.loggers.csv")
    scalars = logged(collector, loggers.CSVLogger(exp_name="run", log_dir=str(tmp_path)))
    lines = (tmp_path / "run" / "scalars" / "frames" / "delivered.csv").read_text().split()
    assert lines == [f"{FRAMES},{float(FRAMES)}", f"{2 * FRAMES},{scalars[1]['frames/delivered']}"]


def test_a_csv_file(collector: SyncDataCollector, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    scalars = logged(collector, path)
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["step"]) for line in lines] == [FRAMES, 2 * FRAMES]
    assert [{name: float(line[name]) for name in scalars[0]} for line in lines] == scalars


def test_a_folder_that_is_not_there(collector: SyncDataCollector, tmp_path: Path) -> None:
    path = tmp_path / "no" / "run.csv"
    with pytest.raises(OptionError, match=f"writer: expected a file in a folder that exists, got {path}"):
        log(collector, path)


def test_what_is_not_known_yet_is_an_empty_field_and_goes_nowhere_else(tmp_path: Path) -> None:
    collector = SyncDataCollector(env, frames_per_batch=EPISODE - 1)
    collector.next()
    path = tmp_path / "run.csv"
    scalars = log(collector, path)
    assert math.isnan(scalars["episodes/return"])
    with path.open(newline="") as file:
        assert next(csv.DictReader(file))["episodes/return"] == ""
    told: dict[str, float] = {}

    class Board:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            told[name] = value

    log(collector, Board())
    assert set(scalars) - set(told) == {"episodes/return", "episodes/return_min", "episodes/return_max", "episodes/length"}


def test_a_name_that_comes_later_gets_a_column(tmp_path: Path, collector: SyncDataCollector) -> None:
    path = tmp_path / "run.csv"
    log(Evaluation(np.array([1.0]), np.array([4])), str(path), step=0)
    path.chmod(0o640)
    collector.next()
    log(collector, path)
    with path.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["evaluation/return"], first["frames/delivered"]) == ("1.0", "")
    assert (second["evaluation/return"], second["frames/delivered"]) == ("", str(float(FRAMES)))
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["run.csv"]


class Board:
    """A writer of the kind of TensorBoard's."""

    def add_scalar(self, name: str, value: float, step: int) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda collector, path: log(3, path), "source: expected a collector"),
        (lambda collector, path: log(collector, 3), "writer: expected a SummaryWriter"),
        (lambda collector, path: log(Evaluation(np.ones(1), np.ones(1)), path), "step: expected a number"),
        (lambda collector, path: log([collector, collector], path), "two of the 2 give 'episodes/return'"),
        (lambda collector, path: log(collector, path, step="x"), "step: expected an integer, such as .*, got 'x'"),
        (lambda collector, path: log(collector, path, step=math.nan), "step: expected an integer, such as .*, got nan"),
        (lambda collector, path: log(collector, path, step=1.5), "step: expected an integer, such as .*, got 1.5"),
        (lambda collector, path: log(collector, path, step=True), "step: expected an integer, such as .*, got True"),
        (lambda collector, path: log(collector, Board(), step="x"), "step: expected an integer, such as .*, got 'x'"),
        (lambda collector, path: log(collector, path, prefix=3), "prefix: expected a string .*, got 3"),
        (lambda collector, path: log(collector, Board), "writer: expected an instance of Board, got the class"),
        (
            lambda collector, path: log(collector, path.parent),
            "writer: expected the path of a CSV file, got the folder .*; give a file in it, such as .*log.csv, or for Tensor",
        ),
    ],
)
def test_mistakes(
    collector: SyncDataCollector, tmp_path: Path, call: Callable[[SyncDataCollector, Path], Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        call(collector, tmp_path / "run.csv")
    assert not os.listdir(tmp_path)


def test_another_kind_of_file_is_left_alone(collector: SyncDataCollector, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("name,value\na,1\n")
    with pytest.raises(OptionError, match="first column is 'step', found 'name'"):
        log(collector, path)
    assert path.read_text() == "name,value\na,1\n"


@pytest.mark.parametrize(
    "data", [b"\xff\xfes\0t\0e\0p\0", b"step,a\n" + b"1," + b"a" * 200_000 + b"\n"], ids=["utf-16", "field"]
)
def test_a_file_that_cannot_be_read_is_left_alone(collector: SyncDataCollector, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(data)
    with pytest.raises(OptionError, match=f"writer: {path}: expected a CSV file in UTF-8, found another kind of file"):
        log(collector, path)
    assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["data.csv"]


EVALUATION = Evaluation(np.array([1.0]), np.array([4]))
HEADER = "step,evaluation/return,evaluation/return_std,evaluation/length"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("1,2.0,0.0", "1,2.0,0.0\r\n"),  # the writer was killed
        ("1,2.0,0.0,3.0\n", "1,2.0,0.0,3.0\n"),
        ("1,2.0,0.0,3.0\r\n", "1,2.0,0.0,3.0\r\n"),
    ],
    ids=["torn", "whole", "windows"],
)
def test_a_line_without_an_end_is_ended(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(f"{HEADER}\n{before}", newline="")
    log(EVALUATION, path, step=np.int64(2))
    assert path.read_bytes().decode() == f"{HEADER}\n{after}2,1.0,0.0,4.0\r\n"


def test_a_header_without_an_end_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(HEADER)
    log(EVALUATION, path, step=2)
    assert path.read_bytes().decode() == f"{HEADER}\r\n2,1.0,0.0,4.0\r\n"


def test_two_lines_that_became_one_leave_the_others_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("step,a\n1,22,3\n3,4\n")
    log(EVALUATION, path, step=5)
    columns = "evaluation/return,evaluation/return_std,evaluation/length"
    assert path.read_bytes().decode().split("\r\n") == [f"step,a,{columns}", "1,22,,,", "3,4,,,", "5,,1.0,0.0,4.0", ""]


@pytest.mark.parametrize("columns", [HEADER, "step,other"], ids=["appended", "rewritten"])
def test_a_file_that_begins_with_a_mark(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(f"{columns}\n1,2.0\n", encoding="utf-8-sig")
    log(EVALUATION, path, step=2)
    assert path.read_bytes().startswith(codecs.BOM_UTF8 + b"step,")
    with path.open(newline="", encoding="utf-8-sig") as file:
        first, second = csv.DictReader(file)
    assert (first["step"], second["step"], second["evaluation/return"]) == ("1", "2", "1.0")


def test_scalars_are_plain_numbers(collector: SyncDataCollector) -> None:
    collector.next()
    json.dumps({name: value for name, value in log(collector, lambda *_: None).items() if not math.isnan(value)})


def test_a_buffer_by_frames_written() -> None:
    buffer = reap.data.ReplayBuffer(storage=reap.data.LazyTensorStorage(8), batch_size=2)
    ensemble = reap.data.ReplayBufferEnsemble(buffer, batch_size=1)
    steps: list[int] = []
    before = log(buffer, lambda scalars, step: steps.append(step))
    assert math.isnan(before["buffer/sample_age"])
    buffer.extend(torch.arange(20))
    sample = buffer.sample()
    scalars = log([buffer], lambda scalars, step: steps.append(step))
    assert scalars == {
        "buffer/size": 8.0,
        "buffer/capacity": 8.0,
        "buffer/fill": 1.0,
        "buffer/written": 20.0,
        "buffer/samples": 1.0,
        "buffer/sampled_frames": 2.0,
        "buffer/sample_age": float((19 - sample).double().mean()),
        "buffer/sample_age_min": float(19 - sample.max()),
        "buffer/sample_age_max": float(19 - sample.min()),
    }
    log(ensemble, lambda scalars, step: steps.append(step), prefix="all/")
    assert steps == [0, 20, 20]


def test_a_buffer_that_is_made_at_first_use() -> None:
    buffer = reap.data.ReplayBuffer(storage=lambda: reap.data.LazyTensorStorage(8), delayed_init=True)
    scalars = log(buffer, lambda scalars, step: None)
    assert scalars["buffer/size"] == 0
    assert math.isnan(scalars["buffer/capacity"])
    assert not buffer.initialized


def test_a_collector_gives_the_step_of_a_buffer(collector: SyncDataCollector) -> None:
    buffer = reap.data.ReplayBuffer(storage=reap.data.LazyTensorStorage(8))
    steps: list[int] = []
    for batch in collector:
        buffer.extend(batch.reshape(-1)[:5])
        log([buffer, collector], lambda scalars, step: steps.append(step))
    assert steps == [FRAMES, 2 * FRAMES]
