"""The runner of `make peer`: torchrl's own tests, with reap's classes in place.

    PYTHONPATH=. python -m tests.peer.run CHECKOUT/test

Every suite is run twice in copies of its folder: as it is, and with its import lines moved to reap as `reap migrate` does.
An id that passes on torchrl and not on reap is one of these:

    decided    a difference that reap has on purpose: `decided.toml` has its reason
    artefact   the test asks for a private name (`_x`) of torchrl
    fault      anything else

The exit code is 1 if a suite misses its goal. Nothing of the checkout is changed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console
from rich.table import Table

from reap.migration.imports import migrate

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHOWN = 30
PRIVATE = re.compile(r"(?:no attribute|cannot import name|unexpected keyword argument|KeyError:) '_\w+'|\)\._\w+$")
"""Private names in errors, and in the last words of pytest about an assertion: `where ... = ReplayBuffer(...)._transform`."""


class Verdict(Enum):
    """What became of an id that passes on torchrl."""

    PASSED = "passed"
    DECIDED = "decided"
    ARTEFACT = "artefact"
    FAULT = "fault"


@dataclass(frozen=True)
class Suite:
    """A file of tests.

    Attributes:
        name: of the file.
        level: which classes are replaced; see `reap.migration.doors`.
        passed_or_decided: the least share of ids, artefacts left out.
        decided: the largest share of ids.
    """

    name: str
    level: int
    passed_or_decided: float
    decided: float


SUITES = (
    Suite("test_collector.py", 1, 0.95, 0.15),
    Suite("test_rb.py", 2, 0.90, 0.10),
    Suite("test_postprocs.py", 2, 1.0, 0.0),
)


@dataclass(frozen=True)
class Outcome:
    """How a test ended.

    Attributes:
        passed: whether it passed.
        error: the last line of the error, and the line of the test that raised it.
    """

    passed: bool
    error: str = ""


@dataclass(frozen=True)
class Decided:
    """A difference that reap has on purpose.

    Attributes:
        ids: a pattern (`fnmatch`) of ids; `[` and `]` are themselves.
        error: a piece of the error, so that another failure of the same test is a fault.
        reason: why.
    """

    ids: str
    reason: str
    error: str = ""

    def matches(self, test: str, outcome: Outcome) -> bool:
        """Whether this is the failure."""
        return fnmatchcase(test, self.ids.replace("[", "[[]")) and self.error in outcome.error


@dataclass(frozen=True)
class Comparison:
    """A suite on reap, against torchrl.

    Attributes:
        suite: which one.
        verdicts: of the ids that pass on torchrl.
        outcomes: on reap.
        reasons: of differences that were decided, and how often they were met.
    """

    suite: Suite
    verdicts: Mapping[str, Verdict]
    outcomes: Mapping[str, Outcome]
    reasons: Counter[str]

    def count(self, verdict: Verdict) -> int:
        """Ids with a verdict."""
        return sum(one is verdict for one in self.verdicts.values())

    @property
    def judged(self) -> int:
        """Ids that pass on torchrl, artefacts left out."""
        return len(self.verdicts) - self.count(Verdict.ARTEFACT)

    @property
    def meets_its_goal(self) -> bool:
        """Whether enough passes, and not too much of it is decided."""
        decided = self.count(Verdict.DECIDED)
        good = self.count(Verdict.PASSED) + decided
        least, most = self.suite.passed_or_decided * self.judged, self.suite.decided * self.judged
        return self.judged > 0 and good >= least and decided <= most


def outcomes_of(folder: Path, name: str, arguments: Sequence[str]) -> dict[str, Outcome]:
    """Run a file of tests; the outcomes by id, without the folder."""
    report = folder / "outcomes.jsonl"
    report.unlink(missing_ok=True)
    environ = {
        **os.environ,
        "REAP_PEER_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.peer.report",
        "-c",
        os.devnull,
        f"--rootdir={folder}",
        "--import-mode=prepend",
    )
    command = (sys.executable, "-m", "pytest", name, *options, *arguments)
    done = subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if not report.exists():
        raise SystemExit(f"make peer: pytest ran no test of {name}; its last words:\n{done.stdout[-2000:]}")
    records = map(json.loads, report.read_text(encoding="utf-8").splitlines())
    return {record["id"]: Outcome(record["passed"], record["error"]) for record in records}


def compare(suite: Suite, folder: Path, decided: Sequence[Decided], arguments: Sequence[str]) -> Comparison:
    """Run a suite on torchrl and on reap."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(folder, Path(scratch) / "test"))
        theirs = outcomes_of(copy, suite.name, arguments)
        program = copy / suite.name
        program.write_text(migrate(program.read_text(encoding="utf-8"), suite.level).result, encoding="utf-8")
        ours = outcomes_of(copy, suite.name, arguments)
    reasons: Counter[str] = Counter()
    verdicts: dict[str, Verdict] = {}
    for test in (test for test, outcome in theirs.items() if outcome.passed):
        verdicts[test], reason = judged(test, ours.get(test, Outcome(False, "it did not run")), decided)
        reasons[reason] += verdicts[test] is Verdict.DECIDED
    return Comparison(suite, verdicts, ours, +reasons)


def judged(test: str, outcome: Outcome, decided: Sequence[Decided]) -> tuple[Verdict, str]:
    """The verdict on an id that passes on torchrl, and the reason of a difference that was decided."""
    if outcome.passed:
        return Verdict.PASSED, ""
    for difference in decided:
        if difference.matches(test, outcome):
            return Verdict.DECIDED, difference.reason
    return (Verdict.ARTEFACT if PRIVATE.search(outcome.error) else Verdict.FAULT), ""


def show(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print the table, the reasons and the first faults."""
    table = Table("suite", "pass on torchrl", *(verdict.value for verdict in Verdict), "goal", title="torchrl's tests on reap")
    for one in comparisons:
        counts = (f"{one.count(verdict):,}" for verdict in Verdict)
        table.add_row(one.suite.name, f"{len(one.verdicts):,}", *counts, "met" if one.meets_its_goal else "missed")
    console.print(table)
    for one in comparisons:
        for reason, times in one.reasons.most_common():
            console.print(f"decided, {times} × {one.suite.name}: {reason}", markup=False, highlight=False)
        faults = [test for test, verdict in one.verdicts.items() if verdict is Verdict.FAULT]
        for test in faults[:SHOWN]:
            error = one.outcomes[test].error if test in one.outcomes else "it did not run"
            console.print(f"fault: {test}: {error}", markup=False, highlight=False, soft_wrap=True)
        if len(faults) > SHOWN:
            console.print(f"... and {len(faults) - SHOWN} more faults of {one.suite.name}")


def read_decided(path: Path) -> list[Decided]:
    """The list of decided differences."""
    return [Decided(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["decided"]]


def main() -> int:
    """Run all suites that the folder has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder of torchrl's tests: CHECKOUT/test")
    parser.add_argument("--decided", type=Path, default=HERE / "decided.toml", help="the differences that reap has on purpose")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, after --")
    options = parser.parse_args()
    suites = [suite for suite in SUITES if (options.folder / suite.name).exists()]
    if not suites:
        parser.error(
            f"{options.folder}: expected the folder with {', '.join(suite.name for suite in SUITES)}, found none of them"
        )
    decided = read_decided(options.decided)
    comparisons = [compare(suite, options.folder, decided, options.pytest) for suite in suites]
    show(comparisons, Console())
    return 0 if all(one.meets_its_goal for one in comparisons) else 1


if __name__ == "__main__":
    raise SystemExit(main())
