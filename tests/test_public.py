"""The page of public names: what it lists is what the modules export, and nothing else is shown."""

from __future__ import annotations

import importlib
import pydoc
import re
from pathlib import Path
from types import ModuleType

import pytest

import reap

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "public.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## `(reap[\w.]*)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PUBLIC = {name: re.findall(r"`(\w+)`", text.rstrip().rpartition("\n\n")[2]) for name, text in SECTION.findall(PAGE)}
"""Modules, and the names that the page lists for each in the last paragraph of its section."""

IMPORT = re.compile(r"^ *from (reap[\w.]*) import (?:\(([^)]*)\)|([^\n(#]*))", re.MULTILINE)
SHOWN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]


@pytest.fixture(params=PUBLIC)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_the_documented_modules_are_on_the_page() -> None:
    documented = {"reap", "reap.collectors", "reap.data", "reap.envs", "reap.envs.utils", "reap.errors", "reap.testing"}
    assert documented <= set(PUBLIC)


def test_the_page_lists_what_is_exported(module: ModuleType) -> None:
    assert sorted(PUBLIC[module.__name__]) == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_completion_shows_public_names_only(module: ModuleType) -> None:
    shown = {name for name in dir(module) if not re.fullmatch(r"__\w+__", name)}
    assert shown == set(module.__all__)


def test_completion_finds_the_attributes_of_modules(module: ModuleType) -> None:
    assert {"__all__", "__doc__", "__name__"} <= set(dir(module))


def test_help_names_what_is_public(module: ModuleType) -> None:
    text = pydoc.plain(pydoc.render_doc(module))
    assert not [name for name in module.__all__ if not re.search(rf"\b{name}\b", text)]


def test_names_of_the_package_are_in_its_modules() -> None:
    elsewhere = {name for module, names in PUBLIC.items() if module != "reap" for name in names}
    assert set(reap.__all__) - elsewhere == {"log", "progress"}


def test_documented_modules_are_there_after_import_reap() -> None:
    for name in {name.split(".")[1] for name in PUBLIC if "." in name}:
        assert reap.__getattr__(name) is importlib.import_module(f"reap.{name}")


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
def test_pages_and_examples_import_public_names(page: Path) -> None:
    for module, several, one in IMPORT.findall(page.read_text(encoding="utf-8")):
        names = re.findall(r"\w+", several or one)
        assert set(names) <= set(PUBLIC.get(module, ())), f"{page.name}: from {module} import {', '.join(names)}"
