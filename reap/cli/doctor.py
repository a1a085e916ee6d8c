"""`reap doctor`: checks whether this machine and this installation are fit for collecting."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reap.cli.health import Finding, findings
from reap.cli.options import Doctor
from reap.words import counted

HEALTHY, WARNED = 0, 1
STYLES = {"ok": "green", "warning": "bold yellow"}


def run(options: Doctor, console: Console) -> int:
    """Look, and print.

    Args:
        options: the command line.
        console: where to print.

    Returns:
        The exit code: 1 if there is a warning.
    """
    found = list(findings())
    if options.json:
        print(json.dumps([{**asdict(one), "status": one.status} for one in found], indent=2))
    else:
        console.print(_table(found))
        console.print(Text(_verdict(found)), soft_wrap=True)
    return WARNED if any(one.remedy for one in found) else HEALTHY


def _table(found: list[Finding]) -> Table:
    table = Table.grid(padding=(0, 2))
    for one in found:
        table.add_row(Text(one.status, style=STYLES[one.status]), one.name, Text(one.found))
        if one.remedy:
            table.add_row("", "", Text(one.remedy, style="yellow"))
    return table


def _verdict(found: list[Finding]) -> str:
    warnings = sum(bool(one.remedy) for one in found)
    return "No warnings." if not warnings else f"{counted(warnings, 'warning')}: the remedy is below each."
