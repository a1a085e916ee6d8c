"""Workers start from any kind of program, and find themselves in the surroundings of their group's construction."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from reap.errors import OptionError
from reap.workers.processes import fork_client as launch
from reap.workers.processes.group import ProcessGroup
from tests.workers.handlers import Doer, ask, exists
from tests.workers.scripts import Script

SCRIPT = """
from reap.workers.processes import fork_client as launch
launch.warm_up(())
print("imported", flush=True)
from reap.errors import WorkerRaised
from reap.workers.processes.group import ProcessGroup

class Unlucky(Exception):
    def __init__(self, number):
        super().__init__(number)

FACTOR = 3

def triple(number):
    return FACTOR * number

class Doer:
    def __init__(self, worker, control):
        pass
    def handle(self, command):
        if command < 0:
            raise Unlucky(command)
        return Pair(triple(command))
    def close(self):
        pass

class Pair:
    def __init__(self, number):
        self.number = number

def run():
    group = ProcessGroup([Doer] * 2)
    group.request(1, 14)
    worker, pair = group.ready({0, 1})
    print(worker, pair.number, type(pair) is Pair)
    group.request(0, -1)
    try:
        group.ready({0, 1})
    except WorkerRaised as error:
        print(type(error.__cause__) is Unlucky, error.__cause__)
"""
SHORT = "Too many open files\nTrue\na worker cannot be forked: Too many open files\nTrue\n(0, 6)\n"
SAYS = "imported\n1 42 True\nTrue -1\n"


@pytest.mark.processes
@pytest.mark.parametrize("way", ["file", "-c", "stdin", "thread", "module"])
def test_a_program_without_a_main_guard(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = SCRIPT + ("import threading; threading.Thread(target=run).start()" if way == "thread" else "run()")
    (tmp_path / "program.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    arguments = {"file": ["program.py"], "stdin": ["-"], "module": ["-m", "program"]}.get(way, ["-c", code])
    with Script("", arguments) as script:
        out, err = script.communicate(code if way == "stdin" else "")
    assert (out, err, script.code) == (SAYS, "", 0)


@pytest.mark.processes
def test_a_program_with_flags(tmp_path: Path) -> None:
    code = SCRIPT + "import sys; sys.argv += ['extra']; run()"
    with Script("", ["-Werror", "-Xdev", "-B", "-c", code]) as script:
        out, err = script.communicate()
    assert (out, err, script.code) == (SAYS, "", 0)


@pytest.mark.processes
def test_workers_print_where_their_parent_does() -> None:
    code = """
from reap.workers.processes import fork_client as launch
launch.warm_up(())
import os
from reap.workers.processes.group import ProcessGroup
class Doer:
    def __init__(self, worker, control):
        print("hello from a worker")
    def handle(self, command):
        os.write(2, b"an error\\n")
    def close(self): ...
group = ProcessGroup([Doer])
group.request(0, None)
group.ready({0})
"""
    with Script(code) as script:
        assert script.communicate() == ("hello from a worker\n", "an error\n")


def surroundings(doer: Doer) -> dict[str, Any]:
    return {
        "variable": os.environ.get("REAP_TEST"),
        "home": os.environ.get("HOME"),
        "directory": os.getcwd(),
        "path": sys.path[0],
        "argv": sys.argv,
        "dtype": torch.get_default_dtype(),
        "input": os.read(0, 1),
        "name": Path("/proc/self/comm").read_text().strip(),
    }


def test_surroundings_are_those_of_the_groups_construction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ProcessGroup([Doer])
    monkeypatch.setenv("REAP_TEST", "ä\udcff")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "more"))
    monkeypatch.setattr(sys, "argv", ["program", "--flag"])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        second = ProcessGroup([Doer], name="reader")
    finally:
        torch.set_default_dtype(before)
    assert ask(second, 0, surroundings) == {
        "variable": "ä\udcff",
        "home": None,
        "directory": str(tmp_path),
        "path": str(tmp_path / "more"),
        "argv": ["program", "--flag"],
        "dtype": torch.float64,
        "input": b"",
        "name": "reader-0",
    }
    assert ask(first, 0, surroundings)["variable"] is None
    first.stop()
    second.stop()


def test_warnings_are_filtered_as_in_the_parent() -> None:
    class LocalWarning(UserWarning):
        pass

    def warn(doer: Doer) -> str:
        try:
            warnings.warn("about something", LocalWarning, stacklevel=1)
        except LocalWarning:
            return "raised"
        return "passed"

    seen: list[str] = []
    for action in ("error", "ignore"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings(action, "about", LocalWarning)  # pyright: ignore[reportArgumentType]
            group = ProcessGroup([Doer])
        seen.append(ask(group, 0, warn))
        group.stop()
    assert seen == ["raised", "passed"]


def test_the_setup_runs_before_the_handler_is_made() -> None:
    def make(worker: int, control: memoryview) -> Doer:
        doer = Doer(worker, control)
        doer.kept = os.environ["REAP_SETUP"]
        return doer

    def prepare() -> None:
        os.environ["REAP_SETUP"] = "prepared"

    group = ProcessGroup([make], setup=[prepare])
    assert ask(group, 0, lambda doer: doer.kept) == "prepared"
    group.stop()
    assert "REAP_SETUP" not in os.environ


def test_workers_draw_different_random_numbers() -> None:
    def draw(doer: Doer) -> tuple[float, float]:
        import random

        import numpy as np

        return random.random(), np.random.random()  # noqa: NPY002  the generator that a fork copies

    group = ProcessGroup([Doer] * 2)
    one, two = (ask(group, worker, draw) for worker in range(2))
    group.stop()
    assert one[0] != two[0]
    assert one[1] != two[1]


def test_what_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()

    def make(worker: int, control: memoryview) -> Doer:
        lock.acquire()
        return Doer(worker, control)

    before = launch.server().pid
    with pytest.raises(OptionError, match="make_handler: cannot be sent to a worker: its variable 'lock' is a _thread.lock"):
        ProcessGroup([make])
    group = ProcessGroup([Doer])
    with pytest.raises(OptionError, match="the command: cannot be sent to a worker: its item 1 is a _thread.lock"):
        group.request(0, ("neg", lock))
    assert ask(group, 0, ("neg", 1)) == -1
    group.stop()
    assert launch.server().pid == before


# The server


def test_the_server_has_one_thread_and_knows_what_workers_need() -> None:
    group = ProcessGroup([Doer])
    threads, modules = ask(
        group, 0, lambda doer: (len(os.listdir("/proc/self/task")), {"torch", "numpy", "gymnasium"} <= set(sys.modules))
    )
    pid = launch.server().pid
    group.stop()
    assert (threads, modules) == (1, True)
    assert len(os.listdir(f"/proc/{pid}/task")) == 1
    assert b"reap.workers.processes.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.processes
def test_warming_up_waits_for_no_import_and_imports_nothing_here(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "waits_at_the_gate.py").write_text(f"open({str(tmp_path / 'gate')!r}).read()")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from reap.workers.processes import fork_client as launch
launch.warm_up(("waits_at_the_gate", *launch.MODULES))
print("torch" in sys.modules, "numpy" in sys.modules)
open({str(tmp_path / "gate")!r}, "w").close()
launch.server().close()
print(launch.server(()).pid != 0)
"""
    with Script(code) as script:
        assert script.communicate() == ("False False\nTrue\n", "")


@pytest.mark.processes
def test_a_module_that_fails_to_be_imported_is_left_out() -> None:
    code = """
from reap.workers.processes import fork_client as launch
launch.warm_up(("there_is_no_such_module", "colorsys"))
import sys
from reap.workers.processes.group import ProcessGroup
class Doer:
    def __init__(self, worker, control): ...
    def handle(self, command): return command in sys.modules
    def close(self): ...
group = ProcessGroup([Doer])
group.request(0, "colorsys")
print(group.ready({0}))
"""
    with Script(code) as script:
        assert script.communicate() == ("(0, True)\n", "")


@pytest.mark.processes
def test_a_group_that_cannot_have_all_its_workers_has_none() -> None:
    code = """
from reap.workers.processes import fork_client as launch
launch.warm_up(())
import os, resource
from reap.workers.processes.group import ProcessGroup
class Doer:
    def __init__(self, worker, control): ...
    def handle(self, command): return command
    def close(self): ...
group = ProcessGroup([Doer])
group.request(0, 5)
group.ready({0})
before = sorted(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 20, 4096))
try:
    ProcessGroup([Doer] * 20)
except OSError as error:
    print(error.strerror)
print(sorted(os.listdir("/proc/self/fd")) == before)
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
resource.prlimit(launch.server().pid, resource.RLIMIT_NOFILE, (24, 4096))
try:
    ProcessGroup([Doer] * 20)
except OSError as error:
    print(error.strerror)
print(sorted(os.listdir("/proc/self/fd")) == before)
group.request(0, 6)
print(group.ready({0}))
"""
    with Script(code) as script:
        assert script.communicate() == (SHORT, "")


@pytest.mark.processes
def test_a_forked_process_gets_a_server_of_its_own() -> None:
    code = (
        SCRIPT
        + """
import os
run()
pid = os.fork()
if pid == 0:
    launch.warm_up(())
    run()
else:
    os.waitpid(pid, 0)
    run()
"""
    )
    once = SAYS.partition("\n")[2]
    with Script(code) as script:
        out, err = script.communicate()
    assert (out.replace("imported\n", ""), err) == (once * 3, "")
    assert not exists(script.process.pid)
