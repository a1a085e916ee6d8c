"""`reap migrate`: changes programs written for torchrl."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from reap.cli.options import Migrate
from reap.errors import OptionError
from reap.migration.imports import Migration, migrate
from reap.system.disk import replaced
from reap.words import counted

COMPLETE, FAILED = 0, 1


@dataclass(frozen=True)
class Program:
    """A file.

    Attributes:
        encoding: as its first lines declare.
        text: with its line ends unchanged.
    """

    encoding: str
    text: str


def run(options: Migrate, console: Console) -> int:
    """Show, and with `--write` make, the changes.

    Args:
        options: the command line.
        console: where to print.

    Returns:
        The exit code: 1 if a file could not be read, written or parsed.

    Raises:
        OptionError: no path was given, or one that is neither a Python file nor a folder.
    """
    if not options.files:
        raise OptionError("reap migrate: expected a file or a folder, got none: reap migrate train.py")
    changed = statements = failed = 0
    for path in list(_programs(options.files)):  # all paths are looked at before a file is changed
        try:
            program = _read(path)
            migration = migrate(program.text, options.level)
            if migration.edits and options.write:
                with replaced(path) as file:
                    file.write_bytes(migration.result.encode(program.encoding))
        except (OSError, SyntaxError, UnicodeDecodeError) as error:
            console.print(Text(f"{path}: left unchanged: {_reason(error)}", style="red"), soft_wrap=True)
            failed += 1
            continue
        _show(path, migration, console)
        changed += bool(migration.edits)
        statements += len(migration.edits)
    counts = f"{counted(statements, 'import')} in {counted(changed, 'file')}"
    if not statements:
        done = f"No import lines to change at level {options.level}."
    elif options.write:
        done = f"{counts} changed."
    else:
        done = f"{counts} would change; --write changes {'it' if statements == 1 else 'them'}."
    if failed:
        done += f" {counted(failed, 'file')} could not be read or written."
    console.print(Text(done), soft_wrap=True)
    return FAILED if failed else COMPLETE


def _programs(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(_below(path))
        elif path.suffix == ".py" and path.exists():
            yield path
        else:
            found = "it does not exist" if not path.exists() else f"found {path.suffix or 'no suffix'}"
            if path.suffix == ".ipynb":
                found += f"; this makes a program of a notebook: jupyter nbconvert --to script {path}"
            raise OptionError(f"{path}: expected a folder or a Python file, FILE.py; {found}")


def _below(folder: Path) -> Iterator[Path]:
    """The programs of a folder: except those of packages installed in it, and of hidden folders."""
    for place, names, files in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".") and not (Path(place, name) / "pyvenv.cfg").exists()]
        if Path(place).name == "site-packages":
            names.clear()
            continue
        yield from (Path(place, name) for name in files if name.endswith(".py"))


def _reason(error: OSError | SyntaxError | UnicodeDecodeError) -> str:
    """Why a file stays as it is, with the line where it is not Python."""
    if not isinstance(error, SyntaxError) or error.lineno is None:
        return str(error)
    magic = "; magics of notebooks are not Python" if (error.text or "").lstrip().startswith(("%", "!")) else ""
    return f"it is not Python: {error.msg}, line {error.lineno}{magic}"


def _read(path: Path) -> Program:
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return Program(encoding, data.decode(encoding))


def _show(path: Path, migration: Migration, console: Console) -> None:
    if not migration.edits and not migration.staying:
        return
    lines = [Text(str(path), style="bold")]
    for edit in migration.edits:
        number = f"{edit.line:>5} "
        lines += [Text(f"{number}- {line}", style="red") for line in edit.old.splitlines()]
        lines += [Text(f"{number}+ {line}", style="green") for line in edit.new.splitlines()]
    lines += [Text(f"{one.line:>5} ! {one.name}: {one.advice}", style="yellow") for one in migration.staying]
    for line in lines:
        console.print(line, soft_wrap=True)
