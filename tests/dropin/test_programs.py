"""Programs written against torchrl, run as they are and with their import lines moved to reap, level by level.

    programs/NAME.py --- this torchrl's names ---> level 0 (theirs)
                     --- reap migrate --level N ---> levels 1, 2, 3

Only import lines differ. What chance does not change must be equal: keys, shapes, dtypes, devices and dimension names of
batches, buffers and samples, numbers of frames and batches, names of losses.

Returns are means over episodes of the trained policy, on tasks that are learned in seconds. torchrl and reap draw different
numbers, so that returns differ by chance: between 7.7 and 9.6 were seen, where random actions earn 4. Each run must earn
more than `Program.learned`, which the mean of ten episodes with random actions did not reach in a hundred tries, and the means
over seeds may differ by `NOISE`.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from reap.migration.imports import migrate
from reap.migration.source import Source
from tests.neighbours import TORCHRL, since_torchrl_013

pytest.importorskip("torchrl")
pytest.importorskip("pettingzoo")

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
ROOT = HERE.parents[1]
SEEDS = ("0", "1")
NOISE = 1.5
"""Most that mean returns may differ."""
SECONDS = 600
"""Most that a program may take at all levels together."""
LEVELS = (0, 1, 2, 3)
"""0 is the program as it was written."""

OLDER_NAMES = {
    "Collector": "SyncDataCollector",
    "MultiSyncCollector": "MultiSyncDataCollector",
    "MultiAsyncCollector": "MultiaSyncDataCollector",
    "DistributedCollector": "DistributedDataCollector",
}
"""Of torchrl before 0.13."""

TRUNCATED = ("truncated", "next.truncated")


@dataclass(frozen=True)
class Program:
    """One of the programs.

    Attributes:
        name: of its file.
        learned: the least mean return of a policy that has learned.
        decided: what differs on purpose, as name and entry of what is described.
        marks: of its tests.
    """

    name: str
    learned: float = 7.0
    decided: frozenset[tuple[str, str]] = frozenset()
    marks: tuple[pytest.MarkDecorator, ...] = ()


ALL = (
    Program("dqn"),
    Program("ppo"),
    Program("sac"),
    Program("td3"),
    Program("a2c"),
    # Indices of slices are [B, 1] from torchrl, [B] from reap, as those of other samplers.
    Program("recurrent_dqn", learned=4.0, decided=frozenset({("sample", "data.index")})),
    Program("mappo_pettingzoo"),
    # The env has no flag `truncated`; batches of reap always have one.
    Program("mappo_groups", decided=frozenset((name, f"data.{key}") for name in ("batch", "sample") for key in TRUNCATED)),
    # Three programs do not run with torchrl 0.10: its Trainer cannot save a hook that updates weights, its collectors refuse
    # to start() with random frames, and the second of two distributed ones finds the process group of the first.
    Program("trainer", marks=(since_torchrl_013,)),
    Program("async_sac", marks=(since_torchrl_013,)),
    Program("distributed", marks=(since_torchrl_013,)),
)


def of_this_torchrl(text: str) -> str:
    """The program with the names that the installed torchrl has."""
    if TORCHRL >= (0, 13):
        return text
    source = Source(text)
    imports = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("torchrl.collectors")
    ]
    return source.edited([source.replacement(node, [with_older_names(node)]) for node in imports])


def with_older_names(node: ast.ImportFrom) -> str:
    names = [ast.alias(OLDER_NAMES[one.name], one.name) if one.name in OLDER_NAMES else one for one in node.names]
    return ast.unparse(ast.ImportFrom(node.module, names, 0))


@cache
def facts(name: str, folder: Path) -> list[list[dict[str, Any]] | str]:
    """What a program prints at each level, an entry for each seed; its errors if it fails."""
    text = of_this_torchrl((PROGRAMS / f"{name}.py").read_text(encoding="utf-8"))
    scripts = [folder / name / f"level_{level}" / f"{name}.py" for level in LEVELS]
    for level, script in zip(LEVELS, scripts, strict=True):
        script.parent.mkdir(parents=True)
        script.write_text(migrate(text, level).result if level else text, encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(PROGRAMS), str(ROOT), os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "launch.py"), ",".join(SEEDS), *map(str, scripts)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        timeout=SECONDS,
        check=False,
    )
    printed = [script.with_name("printed").read_text(encoding="utf-8") for script in scripts]
    errors = [script.with_name("errors").read_text(encoding="utf-8") for script in scripts]
    return [json.loads(one.splitlines()[-1]) if one else error for one, error in zip(printed, errors, strict=True)]


def compared(found: dict[str, Any], program: Program) -> dict[str, Any]:
    """The facts that are equal."""
    entries = {(name, entry): value for name, entries in found["described"].items() for entry, value in entries.items()}
    same = {place: value for place, value in entries.items() if place not in program.decided}
    return {**{name: value for name, value in found.items() if name not in {"described", "return"}}, "described": same}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dropin")


CASES = [
    pytest.param(program, level, id=f"{program.name}-{level}", marks=(pytest.mark.xdist_group(program.name), *program.marks))
    for program in ALL
    for level in LEVELS[1:]
]


@pytest.mark.dropin
@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize(("program", "level"), CASES)
def test_import_lines_are_all_that_changes(program: Program, level: int, folder: Path) -> None:
    theirs, ours = (facts(program.name, folder)[one] for one in (0, level))
    assert not isinstance(theirs, str), theirs
    assert not isinstance(ours, str), ours
    for one, other in zip(theirs, ours, strict=True):
        assert one["finite"]
        assert compared(other, program) == compared(one, program)
    earned = [[run["return"] for run in runs] for runs in (theirs, ours)]
    assert min(map(min, earned)) >= program.learned, earned
    assert abs(sum(earned[0]) - sum(earned[1])) / len(SEEDS) <= NOISE, earned


def test_every_program_is_run() -> None:
    files = {path.stem for path in PROGRAMS.glob("*.py")}
    assert files - {"facts", "tasks"} == {program.name for program in ALL}


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_each_level_moves_import_lines_only(program: Program) -> None:
    text = (PROGRAMS / f"{program.name}.py").read_text(encoding="utf-8")
    moved = [migrate(text, level) for level in (1, 2, 3)]
    assert len({one.result for one in (migrate(text, 1), moved[2])}) == 2
    for one in moved:
        assert all(edit.old.startswith(("from torchrl", "import torchrl")) for edit in one.edits)
        assert one.edits
    assert not [one.name for one in moved[2].staying if one.name.partition(".")[2].startswith(("collectors", "weight"))]


def test_older_names_are_given_the_newer_ones() -> None:
    (node,) = ast.parse("from torchrl.collectors import Collector, RandomPolicy").body
    assert isinstance(node, ast.ImportFrom)
    expected = "from torchrl.collectors import SyncDataCollector as Collector, RandomPolicy"
    assert with_older_names(node) == expected
