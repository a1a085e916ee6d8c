"""The entry point of the command `reap`, and of `python -m reap`.

The command line is parsed before torch is loaded, which takes seconds, so help and mistakes appear at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import rich
import tyro
from rich.console import Console
from rich.text import Text

from reap.cli.options import FLAGS, Collect, Doctor, Migrate, Replay, Tune
from reap.errors import ReapError

COMMANDS = Collect, Replay, Tune, Doctor, Migrate
"""Each command is run by the module with its name."""

USAGE, INTERRUPTED, PIPE_CLOSED = 2, 130, 141
DESCRIPTION = "Collects reinforcement-learning experience for PyTorch. `reap --version` prints the version."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after the command's name; by default those of this process.

    Returns:
        The exit code: 0 for a complete run, 1 if it could not be completed (the env or the policy failed), 2 for a usage
        error, 128 plus the signal's number after a signal.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["--version"], ["-V"]):
        print(f"reap {version('reap')}")
        return 0
    try:
        options = _parsed(words or ["--help"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    try:
        run = importlib.import_module(f"reap.cli.{type(options).__name__.lower()}")
        code: int = run.run(options, rich.get_console())
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # of `reap ... | head`, which has read all it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it flushes at exit
        return PIPE_CLOSED
    except (ReapError, ImportError) as error:
        if options.traceback:
            raise
        name, colon, rest = " ".join(str(error).split()).partition(":")
        text = f"{FLAGS.get(name, name)}{colon}{rest}"
        Console(stderr=True).print(Text.assemble(("reap: error: ", "bold red"), text), soft_wrap=True, highlight=False)
        return USAGE


def _parsed(words: list[str]) -> Collect | Replay | Tune | Doctor | Migrate:
    commands: dict[str, Any] = {command.__name__.lower(): command for command in COMMANDS}
    config = tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff
    command = commands.get(words[0])
    if command is not None:  # so that errors name the help of the command
        return tyro.cli(command, prog=f"reap {words[0]}", args=words[1:], config=config)
    return tyro.extras.subcommand_cli_from_dict(commands, prog="reap", description=DESCRIPTION, args=words, config=config)
