"""Envs in modules of their own, for the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest


def folder_with(name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For a fixture: an empty folder with a module that registers an env, and Minari's folder in it; it is the current one.

    Args:
        name: of the module; that of the env has a capital and "-v0".
        code: of the module.
        tmp_path: the folder.
        monkeypatch: of the test.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / f"{name}.py").write_text(code)
    yield tmp_path
    gym.registry.pop(f"{name.capitalize()}-v0", None)  # workers of other tests could not import its module
    sys.modules.pop(name, None)
