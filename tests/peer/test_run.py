"""The runner of `make peer`, on small tests in the style of torchrl's."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.peer.run import ROOT, Comparison, Decided, Outcome, Suite, Verdict, judged, read_decided

BUFFERS = """
import pytest
import torch
from torchrl.data import LazyTensorStorage, ReplayBuffer


@pytest.mark.parametrize("size", [3, 5])
def test_extend(size):
    from torchrl.data.replay_buffers.samplers import RandomSampler

    buffer = ReplayBuffer(storage=LazyTensorStorage(size), sampler=RandomSampler(), batch_size=2)
    buffer.extend(torch.arange(size))
    assert len(buffer) == size


def test_whose(capsys):
    assert ReplayBuffer.__module__.startswith("torchrl"), "refused on purpose"


def test_private():
    ReplayBuffer(storage=LazyTensorStorage(3))._replay_lock


def test_fault():
    assert LazyTensorStorage.__module__.startswith("torchrl")


def test_that_fails_on_torchrl():
    raise ValueError


@pytest.mark.skip
def test_skipped():
    pass
"""

DECIDED = """
[[decided]]
ids = "test_rb.py::test_whose"
error = "refused on purpose"
reason = "a good one"
"""


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_tests_of_buffers_in_their_style(tmp_path: Path) -> None:
    (tmp_path / "test_rb.py").write_text(BUFFERS)
    (tmp_path / "decided.toml").write_text(DECIDED)
    command = (sys.executable, "-m", "tests.peer.run", str(tmp_path), "--decided", str(tmp_path / "decided.toml"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={"COLUMNS": "120"})
    assert done.returncode == 1, done.stderr
    row = next(line for line in done.stdout.splitlines() if "test_rb.py" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["test_rb.py", "5", "2", "1", "1", "1", "missed"]
    assert "decided, 1 × test_rb.py: a good one" in done.stdout
    assert "fault: test_rb.py::test_fault: AssertionError" in done.stdout
    assert (tmp_path / "test_rb.py").read_text() == BUFFERS


def test_a_folder_without_suites(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tests.peer.run", str(tmp_path))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "test_collector.py, test_rb.py, test_postprocs.py, found none of them" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("test", "outcome", "verdict"),
    [
        ("t.py::test[a-1]", Outcome(True), Verdict.PASSED),
        ("t.py::test[a-1]", Outcome(False, "ValueError: refused"), Verdict.DECIDED),
        ("t.py::test[b-1]", Outcome(False, "ValueError: refused"), Verdict.FAULT),
        ("t.py::test[a-1]", Outcome(False, "ValueError: other"), Verdict.FAULT),
        ("t.py::test", Outcome(False, "AttributeError: 'ReplayBuffer' object has no attribute '_lock'"), Verdict.ARTEFACT),
        ("t.py::test", Outcome(False, "AttributeError: 'ReplayBuffer' object has no attribute 'lock'"), Verdict.FAULT),
        ("t.py::test", Outcome(False, "KeyError: '_size'"), Verdict.ARTEFACT),
        ("t.py::test", Outcome(False, "KeyError: 'size'"), Verdict.FAULT),
        (
            "t.py::test",
            Outcome(False, "assert False + where False = Mock(1).called + where Mock(1) = Buffer()._lock"),
            Verdict.ARTEFACT,
        ),
        ("t.py::test", Outcome(False, "assert False + where False = Mock(1)._lock.called"), Verdict.FAULT),
    ],
)
def test_verdicts(test: str, outcome: Outcome, verdict: Verdict) -> None:
    decided = [Decided("t.py::test[a-*]", "it is refused", "refused")]
    assert judged(test, outcome, decided) == (verdict, "it is refused" if verdict is Verdict.DECIDED else "")


@pytest.mark.parametrize(
    ("counts", "met"),
    [((90, 5, 50, 5), True), ((89, 5, 0, 6), False), ((80, 16, 0, 4), False), ((0, 0, 3, 0), False)],
)
def test_the_goal(counts: tuple[int, ...], met: bool) -> None:
    verdicts = [verdict for verdict, count in zip(Verdict, counts, strict=True) for _ in range(count)]
    comparison = Comparison(
        Suite("t.py", 1, 0.95, 0.15), dict(zip(map(str, range(200)), verdicts, strict=False)), {}, Counter()
    )
    assert comparison.meets_its_goal is met


def test_every_decided_difference_has_a_reason() -> None:
    decided = read_decided(ROOT / "tests" / "peer" / "decided.toml")
    assert decided
    assert all(one.reason and one.error for one in decided)
