"""What the README and the guides show: the examples run and print what they say, commands and options exist."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reap.collectors.options.collector import SyncOptions
from reap.errors import ReapError

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text(encoding="utf-8")
FENCE = re.compile(r"^\s*```")
PRINTED = re.compile(r"^ *print\(.*\) +# ([^\"].*)$", re.MULTILINE)
"""What a line prints; in quotes: an example of it."""
LONGEST = 315
"""Lines of the README."""


def blocks(page: Path, *languages: str) -> str:
    """The code of these languages on a page as one script; each line has the number that it has on the page."""
    lines: list[str] = []
    language = None
    for line in page.read_text(encoding="utf-8").splitlines():
        is_fence = FENCE.match(line) is not None
        if is_fence:
            language = line.strip().removeprefix("```") if language is None else None
        lines.append("" if is_fence or language not in languages else line)
    return "\n".join(lines) + "\n"


def named(page: Path) -> str:
    """What a page says in code: blocks, and words between backticks."""
    text = page.read_text(encoding="utf-8")
    return blocks(page, "console", "sh", "bash") + "\n" + "\n".join(re.findall(r"`([^`\n]+)`", text))


def found_in(expected: list[str], printed: list[str]) -> bool:
    """Whether these lines were printed in this order, with others between them perhaps."""
    rest = iter(printed)
    return all(line in rest for line in expected)


GUIDES = [page for page in PAGES[1:] if blocks(page, "python").strip()]


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "page",
    [PAGES[0], *(pytest.param(page, marks=pytest.mark.processes) for page in GUIDES)],
    ids=lambda page: page.name,
)
def test_examples_run_and_print_what_they_say(page: Path, tmp_path: Path) -> None:
    """In a process of their own, as a reader runs them; warnings are errors."""
    code = blocks(page, "python")
    script = tmp_path / f"{page.stem}.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, f"{page.name}, with its own line numbers:\n{run.stderr}"
    expected = [text.rstrip() for text in PRINTED.findall(code)]
    assert expected
    printed = run.stdout.splitlines()
    assert found_in(expected, printed), f"expected {expected}, printed {printed}"


def test_readme_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) <= LONGEST


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    asked = {target for page in PAGES for target in re.findall(r"^make ([a-z]+)", named(page), re.MULTILINE)}
    assert {"demo", "test", "bench", "check"} <= asked <= targets


def test_files_that_are_linked_exist() -> None:
    links = {
        page.parent / link
        for page in PAGES
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in link
    }
    assert len(links) > 3
    assert not [str(link.relative_to(ROOT)) for link in links if not link.resolve().exists()]


def test_anchors_that_are_linked_exist() -> None:
    for page in PAGES:
        for file, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]*)\)", page.read_text(encoding="utf-8")):
            text = (page.parent / file if file else page).read_text(encoding="utf-8")
            titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page.name}: {file}#{anchor}"


def test_commands_are_understood() -> None:
    """Every `reap ...` line of a console block, with `--help` in place of work."""
    text = "".join(blocks(page, "console", "sh", "bash") for page in PAGES)
    commands = re.findall(r"^(?:\$ )?reap (\w+)(.*)$", text.replace("\\\n", " "), re.MULTILINE)
    assert commands
    for command, words in commands:
        options = set(re.findall(r"(?<=\s)--[a-z-]+", words))
        shown = subprocess.run(
            [sys.executable, "-m", "reap", command, "--help"], capture_output=True, text=True, timeout=60, check=False
        )
        assert shown.returncode == 0, shown.stderr
        assert not [option for option in options if option not in shown.stdout], f"reap {command}{words}"


def test_the_table_of_options_is_complete() -> None:
    table = README.partition("## Options of")[2].partition("\n## ")[0]
    names = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert names == set(SyncOptions.__annotations__)


def test_names_that_are_imported_from_reap_exist() -> None:
    for page in PAGES:
        for module, name in re.findall(r"`(reap(?:\.\w+)*)\.(\w+)`", page.read_text(encoding="utf-8")):
            home = importlib.import_module(module)
            assert hasattr(home, name) or importlib.util.find_spec(f"{module}.{name}"), f"{page.name}: {module}.{name}"


def test_the_tree_of_errors_is_right() -> None:
    errors = importlib.import_module("reap.errors")
    names = re.findall(r"^(?:├── |└── )(\w+) \((\w+)\)", README, re.MULTILINE)
    assert len(names) == 4
    for name, builtin in names:
        cls = getattr(errors, name)
        assert issubclass(cls, ReapError)
        assert builtin in {base.__name__ for base in cls.__mro__}


def test_errors_that_the_readme_quotes_have_these_words() -> None:
    from reap import SyncDataCollector
    from reap.errors import ClosedError, OptionError, SpecMismatch

    with pytest.raises(OptionError, match=r"^unknown option 'frame_per_batch'\. Did you mean 'frames_per_batch'\?$"):
        SyncDataCollector("CartPole-v1", frame_per_batch=10)  # pyright: ignore[reportCallIssue]
    with pytest.raises(
        SpecMismatch, match=r"key action: expected shape \(2,\) and dtype int64, found shape \(\) and dtype int64"
    ):
        SyncDataCollector("CartPole-v1", lambda observation: torch.tensor(1), frames_per_batch=10)
    collector = SyncDataCollector("CartPole-v1", frames_per_batch=10)
    collector.shutdown()
    with pytest.raises(ClosedError, match=r"^this SyncDataCollector is shut down; build a new one$"):
        collector.next()
