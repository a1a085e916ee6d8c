"""The fault campaign of `make faults`: collectors that fail in every way, at random moments, and what each leaves behind.

python -m tests.faults --runs 1000 --seed 0 --table docs/faults.md
python -m tests.faults --runs 58 --only ray

Every fault is run with every class in turn until there are as many runs as asked for; the moment is drawn anew each time: a
step, a reset or a call of the policy, or a delay. Ray needs seconds to start a worker, so that its classes are in the first
round only, which has each fault once; all of them share one Ray, whose own processes are not counted.

The page has a section for each kind of workers. A campaign writes those of its classes, and leaves the others as they are.

What counts as left behind, compared with before the run: processes that still run 2 s later, descriptors that are open then,
shared memory that is still mapped. A run is wrong too if the error does not name the cause. The exit code is 1 if anything was
left behind or wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread, Timer
from typing import Any

from reap import optional
from reap.collectors.distributed import DistributedDataCollector, RayCollector, RPCDataCollector
from reap.errors import ClosedError, WorkerDied, WorkerRaised
from reap.testing import Const, Count
from tests.collectors.seams import pids_of
from tests.collectors.worker_kinds import CLASSES, Failing, FailingPolicy, Pixels, Stuck, descriptors, fail, mapped
from tests.workers.ray.local import running_ray

ROOT = Path(__file__).parent.parent
GRACE = 2.0
LIMIT = 60
PIXELS = [partial(Pixels, 5)] * 2
CODES = {"os._exit": 3, "SIGKILL": -9, "SIGSEGV": -11, "SIGTERM": -15}
ENGINES = {
    "gloo, sync": partial(DistributedDataCollector, sync=True),
    "gloo": DistributedDataCollector,
    "RPC, sync": partial(RPCDataCollector, sync=True),
    "RPC": RPCDataCollector,
}
"""Collectors on engines whose workers are processes of this machine."""

RAY = {"Ray, sync": partial(RayCollector, sync=True), "Ray": RayCollector}
"""Those on Ray."""

KINDS: dict[str, Any] = {**CLASSES, **ENGINES, **RAY}
GROUPS = {"processes": list(CLASSES), "distributed": [*ENGINES, *RAY], "ray": list(RAY)}
"""Names that choose several of them."""


@dataclass
class Run:
    """One collector and its end.

    Attributes:
        name: its class.
        draw: draws the moment.
        pids: its processes.
        seconds: from the failure to the error, where both are known.
        wrong: what was not as it should be.
    """

    name: str
    draw: random.Random
    pids: list[int] = field(default_factory=list[int])
    seconds: float | None = None
    wrong: str = ""

    def build(self, *factories: Any, policy: Any = None, **options: Any) -> Any:
        """A collector of the last of these envs, which fails, and the one before it, or `Count`."""
        options = {"frames_per_batch": self.draw.choice([8, 16, 64]), **options}
        collector = KINDS[self.name]([partial(Count, 5), *factories][-2:], policy, **options)
        self.pids += pids_of(collector)
        return collector

    def expect(self, error: BaseException | None, how: str) -> None:
        """The error names how the worker failed."""
        worker = 0 if self.name == "aSync" else 1
        is_right = isinstance(error, WorkerRaised | WorkerDied) and error.worker == worker
        if how == "raise":
            is_right = is_right and isinstance(error.__cause__, ValueError)
        else:
            # A worker of an engine leaves when it is told to. Ray tells no exit code of a process that was ended.
            code = 0 if how == "SIGTERM" and self.name in ENGINES else CODES[how]
            told = {code, None} if self.name in RAY else {code}
            is_right = is_right and isinstance(error, WorkerDied) and error.exit_code in told
        if not is_right:
            self.wrong = f"{how}: got {error!r}"


# ---------------------------------------------------------------------- faults


def in_worker(how: str, phase: str, run: Run) -> None:
    """Code of the user fails in a worker."""
    k = run.draw.randint(2, 60)
    factory: Any = partial(Failing, how, phase, k, run.draw.randint(1, 4))
    policy: Any = Const()
    options: dict[str, Any] = {}
    if phase == "policy":
        factory, policy = partial(Count, 5, 100), FailingPolicy(how, k)
    if phase == "env factory":
        factory = partial(fail, how)
    if phase == "policy factory":
        factories = [Const, partial(fail, how)]
        factory, policy, options = (
            partial(Count, 5),
            None,
            {"policy_factory": factories[-1:] if run.name == "aSync" else factories},
        )
    error: BaseException | None = None
    collector = None
    try:
        collector = run.build(factory, policy=policy, **options)
        for _ in range(200):
            collector.next()
    except (WorkerRaised, WorkerDied) as failure:
        error = failure
    run.expect(error, how)
    if collector is not None:
        collector.shutdown()


def from_outside(how: str, run: Run) -> None:
    """Somebody ends a worker at any moment."""
    collector = run.build(*PIXELS)
    killed: list[float] = []

    def kill() -> None:
        killed.append(time.perf_counter())
        os.kill(run.pids[-1], getattr(signal, how))

    timer = Timer(run.draw.uniform(0, 0.05), kill)
    timer.start()
    error = None
    try:
        while True:
            collector.next()
    except WorkerDied as failure:
        run.seconds = time.perf_counter() - killed[0]
        error = failure
    timer.join()
    run.expect(error, how)


def in_postproc(run: Run) -> None:
    """The user's postproc raises; the collector goes on."""
    calls = iter([*[False] * run.draw.randint(0, 20), True])

    def postproc(batch: Any) -> Any:
        if next(calls, False):
            raise ValueError("on purpose")
        return batch

    with run.build(*PIXELS, postproc=postproc) as collector:
        with contextlib.suppress(ValueError):
            for _ in range(30):
                collector.next()
        if collector.next() is None:
            run.wrong = "no batch behind the error"


def in_loop(run: Run) -> None:
    """The user's loop raises."""
    with contextlib.suppress(ZeroDivisionError), run.build(*PIXELS) as collector:
        for _ in islice(collector, run.draw.randint(0, 20)):
            pass
        raise ZeroDivisionError


def dropped(run: Run) -> None:
    """Nobody shuts it down, and a batch is kept."""
    collector = run.build(*PIXELS)
    kept = [collector.next() for _ in range(run.draw.randint(0, 5))]
    del collector
    gc.collect()
    del kept


def stuck(run: Run) -> None:
    """A worker is stuck in C, another thread waits for it, and two others shut the collector down."""
    with TemporaryDirectory() as folder:
        told = f"{folder}/told"
        os.mkfifo(told)
        end = os.open(told, os.O_RDWR)
        collector = run.build(partial(Stuck, told, run.draw.randint(1, 30)))
        raised: list[BaseException] = []

        def collect() -> None:
            try:
                while True:
                    collector.next()
            except ClosedError as error:
                raised.append(error)

        threads = [Thread(target=collect), *[Thread(target=collector.shutdown, args=(0.2,)) for _ in range(2)]]
        threads[0].start()
        os.read(end, 1)
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        if not raised or any(thread.is_alive() for thread in threads):
            run.wrong = "a thread still waits"
        os.close(end)


PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
from tests.collectors.seams import pids_of
from tests.collectors.worker_kinds import Pixels
from tests.faults import KINDS
from functools import partial
collector = KINDS[sys.argv[1]]([partial(Pixels, 5)] * 2, frames_per_batch=int(sys.argv[2]))
collector.next()
print(*pids_of(collector), flush=True)
deadline = time.monotonic() + float(sys.argv[3])
while time.monotonic() < deadline:
    collector.next()
"""


def program(how: str, run: Run) -> None:
    """A program with a collector ends: by a signal to it, to all of its processes, or by itself without a shutdown."""
    seconds = run.draw.uniform(0, 0.1)
    arguments = [run.name, str(run.draw.choice([8, 64])), str(seconds if how == "exit" else LIMIT)]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, stdout=-1, stderr=-1, text=True, start_new_session=True
    )
    assert process.stdout
    run.pids += map(int, process.stdout.readline().split())
    time.sleep(seconds)
    if how == "SIGKILL":
        process.kill()
    if how == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        _, errors = process.communicate()
    # Ray replaces `sys.excepthook`, so that Ctrl-C ends any program that imports it with 1, and not by the signal.
    expected = 1 if how == "SIGINT" and run.name in RAY else {"exit": 0, "SIGKILL": -9, "SIGINT": -2}[how]
    if process.returncode != expected or errors.count("Traceback") != (how == "SIGINT"):
        run.wrong = f"exit code {process.returncode}: {errors}"


Fault = Callable[[Run], None]
PHASES = ("env factory", "policy factory", "reset", "step", "policy")
FAULTS: dict[tuple[str, str], Fault] = {
    **{(how, phase): partial(in_worker, how, phase) for how in ("raise", "os._exit", "SIGKILL", "SIGSEGV") for phase in PHASES},
    **{(f"{how} from outside", "any"): partial(from_outside, how) for how in ("SIGKILL", "SIGTERM")},
    ("raise", "postproc"): in_postproc,
    ("raise", "loop body"): in_loop,
    ("dropped without shutdown", "between batches"): dropped,
    ("shutdown by two threads, worker stuck in C", "step"): stuck,
    ("interpreter exit without shutdown", "any"): partial(program, "exit"),
    ("parent killed by SIGKILL", "any"): partial(program, "SIGKILL"),
    ("Ctrl-C to the process group", "any"): partial(program, "SIGINT"),
}


# ---------------------------------------------------------------------- the campaign


@dataclass
class Row:
    """What became of the runs of one fault."""

    runs: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    processes: int = 0
    descriptors: int = 0
    memory: int = 0
    wrong: list[str] = field(default_factory=list[str])

    @property
    def is_clean(self) -> bool:
        """Whether nothing was left behind or wrong."""
        return not (self.processes or self.descriptors or self.memory or self.wrong)


Rows = dict[tuple[str, str], Row]

SECTIONS = {
    "Workers in processes of this machine": CLASSES,
    "Workers on torch.distributed and RPC": ENGINES,
    "Workers on Ray": RAY,
}
"""The parts of the page, and their classes."""


@dataclass
class Section:
    """What became of the runs of some classes.

    Attributes:
        rows: by fault.
        delays: by class, the seconds from a signal to a worker to the error.
        seconds: that the runs took.
    """

    rows: Rows = field(default_factory=lambda: {key: Row() for key in FAULTS})
    delays: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: float = 0.0


def carry_out(key: tuple[str, str], section: Section, fault: Fault, name: str, draw: random.Random) -> None:
    """One run, and what it left behind."""
    row, started = section.rows[key], time.monotonic()
    before, maps = descriptors(), mapped()
    run = Run(name, draw)
    try:
        fault(run)
    except Exception as error:  # noqa: BLE001  whatever it is, it is a finding
        run.wrong = repr(error)
    gc.collect()
    row.runs[name] += 1
    processes, opened, memory = still_running(run.pids), still_open(len(before)), max(0, mapped() - maps)
    row.processes, row.descriptors, row.memory = row.processes + processes, row.descriptors + opened, row.memory + memory
    if run.wrong:
        row.wrong.append(f"{name}: {run.wrong}")
    if processes or opened or memory or run.wrong:
        print(
            "",
            *key,
            name,
            f"left {processes} processes, {opened} descriptors, {memory} maps; {run.wrong or 'the right error'}",
            sep=" | ",
        )
    if run.seconds is not None:
        section.delays[name].append(run.seconds)
    section.seconds += time.monotonic() - started


def still_running(pids: list[int]) -> int:
    """How many of these processes do not end in time."""
    deadline = time.monotonic() + GRACE
    left = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            one = os.pidfd_open(pid)
            left += not select.select([one], [], [], max(0.0, deadline - time.monotonic()))[0]
            os.close(one)
    return left


def still_open(before: int) -> int:
    """How many descriptors more than before are not closed in time."""
    deadline = time.monotonic() + GRACE
    while (left := len(descriptors()) - before) > 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    return max(0, left)


def campaign(runs: int, seed: int, names: Sequence[str]) -> dict[str, Section]:
    """All faults in turn with these classes, at moments drawn from the seed; by title."""
    draw = random.Random(seed)
    titles = {name: title for title, classes in SECTIONS.items() for name in classes}
    sections = {title: Section() for title in dict.fromkeys(titles[name] for name in names)}
    for name in dict.fromkeys(["MultiSync", *names]):
        with KINDS[name]([partial(Count, 5)] * 2, Const(), frames_per_batch=4) as collector:
            collector.next()  # servers have started, and what an engine keeps open is open
    order, round_names = list[tuple[tuple[str, str], str]](), names
    for number in range(runs):
        if not order:
            order = [(key, name) for key in FAULTS for name in round_names]
            draw.shuffle(order)
            round_names = [name for name in names if name not in RAY] or names
        key, name = order.pop()
        carry_out(key, sections[titles[name]], FAULTS[key], name, draw)
        dirty = sum(not row.is_clean for section in sections.values() for row in section.rows.values())
        print(f"\r{number + 1} of {runs}, {dirty} faults left something", end="")
    print()
    return sections


@contextlib.contextmanager
def ray_for_all() -> Generator[None]:
    """One Ray, which the programs that are started are part of too."""
    with running_ray():
        os.environ["RAY_ADDRESS"] = optional.load("ray").get_runtime_context().gcs_address
        yield
        del os.environ["RAY_ADDRESS"]


HEAD = """# Faults

A collector fails or ends, in every way, at random moments: this page counts the processes, descriptors and shared memory that
remain. `make faults` writes it, `tests/faults.py` says how each fault is made, and
`make faults ARGS="--runs 100 --only distributed"` makes the run shorter, and chooses classes, whose sections are written anew.

The columns with names of classes count runs. Wrong: no error came, or it did not name its cause.
"""


def page(before: str, sections: Mapping[str, Section], seed: int, names: Sequence[str]) -> str:
    """The page with new sections in place of those of the same titles.

    Args:
        before: the page as it was; empty if there was none.
        sections: by title.
        seed: of the campaign.
        names: the classes.
    """
    _, *others = before.split("\n## ")
    parts = {part.partition("\n")[0]: f"## {part}" for part in others}
    parts |= {title: section_text(title, one, seed, names) for title, one in sections.items()}
    return "\n".join([HEAD, *(f"{parts[title].rstrip()}\n" for title in SECTIONS if title in parts)])


def section_text(title: str, section: Section, seed: int, names: Sequence[str]) -> str:
    """The part of the page for some classes."""
    own = [name for name in names if name in SECTIONS[title]]
    tried = [row for row in section.rows.values() if sum(row.runs.values())]
    clean, count = sum(row.is_clean for row in tried), sum(sum(row.runs.values()) for row in tried)
    lines = [
        f"## {title}",
        "",
        f"{count} runs with seed {seed} in {section.seconds:.0f} s: {clean} of {len(tried)} faults left nothing and named",
        "their cause in every run.",
    ]
    if section.delays:
        lines.append("From a signal to a worker to the error in the parent, with all workers gone:\n")
        lines += ["| class | runs | median | longest |", "|---|--:|--:|--:|"]
    for name, delays in sorted(section.delays.items()):
        lines.append(f"| {name} | {len(delays)} | {1e3 * statistics.median(delays):.0f} ms | {1e3 * max(delays):.0f} ms |")
    columns = ["fault", "phase", *own, "processes left", "descriptors left", "shared memory left", "wrong"]
    lines += ["", f"| {' | '.join(columns)} |", f"|---|---|{'--:|' * (len(own) + 4)}"]
    for key, row in section.rows.items():
        counts = [row.runs[name] for name in own]
        cells = [*key, *counts, row.processes, row.descriptors, row.memory, len(row.wrong)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the campaign and write its page."""
    parser = argparse.ArgumentParser(description="Collectors that fail in every way, and what they leave behind.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=[*GROUPS, *KINDS], help="classes, or groups of them")
    parser.add_argument("--table", type=Path, default=ROOT / "docs" / "faults.md")
    given = parser.parse_args()
    chosen = {name for one in given.only for name in GROUPS.get(one, [one])}
    names = [name for name in KINDS if name in chosen]
    with ray_for_all() if chosen & RAY.keys() else contextlib.nullcontext():
        sections = campaign(given.runs, given.seed, names)
    before = given.table.read_text() if given.table.exists() else ""
    given.table.write_text(page(before, sections, given.seed, names))
    print(given.table)
    rows = [one for section in sections.values() for one in section.rows.items()]
    for key, row in rows:
        for what in row.wrong:
            print(*key, what, sep=" | ")
    sys.exit(not all(row.is_clean for _, row in rows))


if __name__ == "__main__":
    main()
