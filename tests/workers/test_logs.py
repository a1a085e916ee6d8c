"""What workers log is seen as in one process: levels, filters and handlers that write to stdout or stderr travel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.scripts import Script

SET_UP = """
import logging, os, sys, threading
from reap.workers.processes.group import ProcessGroup

class Loud(logging.Formatter):
    def format(self, record):
        return super().format(record).upper()

class Locked(logging.Formatter):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

logging.addLevelName(5, "TRACE")
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout)

alone = logging.getLogger("alone")
alone.propagate = False
alone.setLevel(5)
handler = logging.StreamHandler(os.fdopen(os.dup2(1, 1, True), "w", closefd=False))
handler.setFormatter(Loud("%(levelname)s! %(message)s"))
handler.setLevel(5)
alone.addHandler(handler)
logging.getLogger("alone.too").addHandler(handler)
logging.getLogger("quiet").setLevel(logging.ERROR)
logging.getLogger("off").disabled = True
some = logging.getLogger("some")
some.addFilter(lambda record: "secret" not in record.getMessage())

file = logging.FileHandler(sys.argv[1])
logging.root.addHandler(file)
immovable = logging.StreamHandler(sys.stdout)
immovable.setFormatter(Locked())
logging.getLogger("immovable").addHandler(immovable)
errors = logging.StreamHandler()
logging.getLogger("errors").addHandler(errors)

def talk():
    for name in ("plain", "quiet", "quiet.er", "off"):
        logging.getLogger(name).info("hello")
    logging.getLogger("plain").debug("hello")
    logging.getLogger("quiet").error("an error")
    logging.getLogger("alone").log(5, "a trace")
    logging.getLogger("alone.too").info("twice")
    logging.getLogger("some").info("open")
    logging.getLogger("some").info("a secret")
    logging.getLogger("errors").warning("to stderr")
    logging.getLogger("immovable").info("once")

class Doer:
    def __init__(self, worker, control): ...
    def handle(self, command):
        command()
    def close(self): ...

def ask(group, command):
    group.request(0, command)
    group.ready({0})
"""

SAID = """\
INFO plain: hello
ERROR quiet: an error
TRACE! A TRACE
INFO! TWICE
INFO! TWICE
INFO some: open
WARNING errors: to stderr
INFO immovable: once
"""


@pytest.mark.processes
def test_a_worker_logs_as_its_parent(tmp_path: Path) -> None:
    code = SET_UP + "group = ProcessGroup([Doer])\nfile.close()\nask(group, talk)\nopen(1, 'w', closefd=False).write('end')"
    with Script("", ["-c", code, str(tmp_path / "log")]) as script:
        said, errors = script.communicate()
    assert said == SAID + "end"
    assert errors == "to stderr\n"
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.processes
def test_it_is_as_it_was_when_the_group_was_made(tmp_path: Path) -> None:
    code = SET_UP + (
        "group = ProcessGroup([Doer])\n"
        "logging.root.setLevel(logging.CRITICAL)\n"
        "ask(group, lambda: logging.getLogger('plain').info('before'))\n"
        "later = ProcessGroup([Doer])\n"
        "ask(later, lambda: logging.getLogger('plain').info('behind'))\n"
        "logging.root.setLevel(logging.INFO)\n"
        "logging.disable(logging.INFO)\n"
        "last = ProcessGroup([Doer])\n"
        "ask(last, lambda: logging.getLogger('plain').info('disabled'))\n"
        "ask(last, lambda: logging.getLogger('plain').warning('not disabled'))\n"
    )
    with Script("", ["-c", code, str(tmp_path / "log")]) as script:
        assert script.communicate() == ("INFO plain: before\nWARNING plain: not disabled\n", "")


ENVS = """
import logging, sys
from reap import GymEnv, MultiSyncDataCollector, ParallelEnv, SyncDataCollector
from reap.testing import Count
logging.basicConfig(level=logging.INFO, format="LOG %(message)s", stream=sys.stdout)

class Talks(Count):
    def step(self, action):
        logging.getLogger("sim").info("step %d", self.steps)
        return super().step(action)

def make():
    return GymEnv(Talks(5))

for collector in (
    SyncDataCollector(ParallelEnv(1, make), frames_per_batch=2),
    MultiSyncDataCollector([make], frames_per_batch=2),
    MultiSyncDataCollector([lambda: ParallelEnv(1, make)], frames_per_batch=2),
):
    with collector:
        collector.next()
"""


@pytest.mark.processes
def test_envs_in_processes_log() -> None:
    with Script(ENVS) as script:
        said, errors = script.communicate()
    assert said == "LOG step 0\nLOG step 1\n" * 3, errors
