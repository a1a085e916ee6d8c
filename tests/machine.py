"""What the product is to find on this machine: each fact is replaced at one place, here."""

from __future__ import annotations

from pathlib import Path

import pytest

import reap
from reap.system import memory, waits


def in_container(monkeypatch: pytest.MonkeyPatch, folder: Path, left: int | None = None) -> None:
    """Run in a container from now on.

    Args:
        monkeypatch: ends it.
        folder: the files of its cgroup.
        left: bytes of memory that it has left; None writes no files.
    """
    monkeypatch.setattr(memory, "CGROUP", folder)
    if left is not None:
        leave(folder, left)


def leave(folder: Path, left: int) -> None:
    """Leave this number of bytes of memory to a container."""
    (folder / "memory.max").write_text(f"{left}\n")
    (folder / "memory.current").write_text("0\n")


def impatient(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Report a wait for another process after this time."""
    monkeypatch.setattr(waits, "PATIENCE", seconds)


def of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process, and none that it starts, run reap 0.0.1."""
    monkeypatch.setattr(reap, "__version__", "0.0.1")
