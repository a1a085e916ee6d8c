"""Runs programs one after the other, each in a fork of this process, which has imported what all of them need.

    python launch.py SEED,SEED... SCRIPT...

What a script prints is in `printed` and `errors` beside it; the exit code is the number of scripts that failed.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from pathlib import Path

IMPORTED = ("reap", *(f"torchrl.{name}" for name in ("collectors", "data", "envs", "modules", "objectives", "trainers")))
"""Seconds, which each script would need again."""


def main(seeds: list[str], scripts: list[Path]) -> int:
    for name in IMPORTED:
        importlib.import_module(name)
    return sum(failed(script, seeds) for script in scripts)


def failed(script: Path, seeds: list[str]) -> bool:
    """Run a script; True if it failed."""
    child = os.fork()
    if child == 0:
        for number, name in ((1, "printed"), (2, "errors")):
            os.dup2(os.open(script.with_name(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = [str(script), *seeds]
        sys.path[0] = str(script.parent)
        os.chdir(script.parent)
        runpy.run_path(str(script), run_name="__main__")
        sys.exit()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].split(","), [Path(argument) for argument in sys.argv[2:]]))
