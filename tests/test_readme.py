"""What the README and the pages of `docs/` show: examples run and print what they say, commands and options exist."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from reap import ExplorationType
from reap.collectors.distributed.options import EngineOptions
from reap.collectors.distributed.ray import RayOptions
from reap.collectors.distributed.rpc import RPCOptions
from reap.collectors.distributed.torch_distributed import TorchDistributedOptions
from reap.collectors.options.collector import SyncOptions, make_options
from reap.collectors.options.multi import MultiOptions, WorkerOptions
from reap.errors import ReapError
from tests.pairwise import by_default

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
README = PAGES[0].read_text(encoding="utf-8")
BASICS = (ROOT / "docs" / "basics.md").read_text(encoding="utf-8")
OPTIONS = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^\s*```")
PRINTED = re.compile(r"^ *print\(.*\) +# ([^\"].*)$", re.MULTILINE)
"""What a line prints; in quotes: an example of it."""
LONGEST = 140
"""Lines of the README."""
SCREEN = 33
"""Lines that a reader sees first."""
TYPES = {"int": "int", "float": "float", "bool": "bool", "dict": "Mapping", "function": "Callable", "device": "Device"}
"""Words of the tables of options, and what stands for them in annotations."""


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


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Type and default of each option in the tables of a page's part."""
    found = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| .+ \|$", text, re.MULTILINE)
    return {name: (kind, default.strip("`")) for name, kind, default in found}


PARTS = re.split(r"\n## Options of collectors with workers\n|\n## Options of collectors beyond one machine\n", OPTIONS)
EVERYWHERE, WITH_WORKERS, ELSEWHERE = map(rows, PARTS)
"""Options by the part of the page in which they are listed."""


def found_in(expected: list[str], printed: list[str]) -> bool:
    """Whether these lines were printed in this order, with others between them perhaps."""
    rest = iter(printed)
    return all(line in rest for line in expected)


GUIDES = [page for page in PAGES[1:] if blocks(page, "python").strip()]


@pytest.mark.parametrize("page", by_default([PAGES[0], *GUIDES], ROOT / "docs" / "trajectories.md"), ids=lambda page: page.name)
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
        timeout=180,
        check=False,
    )
    assert run.returncode == 0, f"{page.name}, with its own line numbers:\n{run.stderr}"
    expected = [text.rstrip() for text in PRINTED.findall(code)]
    assert expected
    printed = run.stdout.splitlines()
    assert found_in(expected, printed), f"expected {expected}, printed {printed}"


def test_readme_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) <= LONGEST


def test_the_first_screen_has_code_figures_and_links() -> None:
    screen = "\n".join(README.splitlines()[:SCREEN])
    code = blocks(PAGES[0], "python").strip().partition("\n\n\n")[0].splitlines()
    assert len(code) <= 10
    assert len(re.findall(r"^\| .* \|$", screen, re.MULTILINE)) == 4, "the head of the table and three figures"
    assert "**Documentation:**" in screen
    beside = screen.partition("\nBesides speed: ")[2].partition("\n\n")[0]
    assert re.findall(r"\(docs/(\w+)\.md\)", beside) == ["episodes", "tools", "failure", "page", "dropin"]


def test_the_index_lists_all_pages() -> None:
    index = ROOT / "docs" / "README.md"
    listed = set(re.findall(r"\]\((\w+\.md)\)", index.read_text(encoding="utf-8")))
    assert listed == {page.name for page in index.parent.glob("*.md")} - {index.name}


def test_the_readme_names_the_test_command() -> None:
    assert re.search(r"^make test\b", named(PAGES[0]), re.MULTILINE)


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


@pytest.mark.processes
def test_commands_are_understood() -> None:
    """Every `reap ...` line of a console block, with `--help` in place of work."""
    text = "".join(blocks(page, "console", "sh", "bash") for page in PAGES)
    commands = re.findall(r"^(?:\$ )?reap (\w+)(.*)$", text.replace("\\\n", " "), re.MULTILINE)
    assert commands
    for command, words in commands:
        options = set(re.findall(r"(?<=\s)--[a-z-]+", words))
        shown = subprocess.run(
            [sys.executable, "-m", "reap", command, "--help"], capture_output=True, text=True, timeout=180, check=False
        )
        assert shown.returncode == 0, shown.stderr
        assert not [option for option in options if option not in shown.stdout], f"reap {command}{words}"


def test_the_command_line_page_shows_the_help() -> None:
    """As a terminal of 100 columns shows it."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, "-m", "reap", "collect", "--help"],
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    help_on_page = page.partition("## All options\n\n```\n")[2].partition("```")[0]
    assert [line.rstrip() for line in help_on_page.splitlines()] == [line.rstrip() for line in shown.stdout.splitlines()]


def test_the_tables_of_options_are_complete() -> None:
    assert set(EVERYWHERE) == set(SyncOptions.__annotations__)
    assert {*EVERYWHERE, *WITH_WORKERS} == set(MultiOptions.__annotations__)
    assert not set(EVERYWHERE) & set(WITH_WORKERS)


@pytest.mark.parametrize("name", [*EVERYWHERE, *WITH_WORKERS])
def test_an_option_has_the_type_that_its_table_says(name: str) -> None:
    kind, _ = {**EVERYWHERE, **WITH_WORKERS}[name]
    annotation = MultiOptions.__annotations__[name].__forward_arg__
    assert kind
    if annotation != "Any":
        assert not [word for word, expected in TYPES.items() if re.search(rf"\b{word}\b", kind) and expected not in annotation]


def test_one_option_is_required() -> None:
    assert [name for name, (_, default) in {**EVERYWHERE, **WITH_WORKERS}.items() if default == "required"] == [
        "frames_per_batch"
    ]


@pytest.mark.parametrize("name", [name for name in (*EVERYWHERE, *WITH_WORKERS) if name != "frames_per_batch"])
def test_an_option_has_the_default_that_its_table_says(name: str) -> None:
    _, default = {**EVERYWHERE, **WITH_WORKERS}[name]
    chosen = WorkerOptions() if name in WITH_WORKERS else make_options({"frames_per_batch": 1}, ExplorationType)
    value = getattr(chosen, name, None)  # None for an older name, which says nothing unless it is given
    assert default.replace('"', "'") == (value.name if isinstance(value, ExplorationType) else repr(value))


def test_the_tables_of_options_of_engines_say_what_is() -> None:
    known = {"sync": False}
    for kind in (EngineOptions, RayOptions, TorchDistributedOptions, RPCOptions):
        known.update({field.name: getattr(kind(), field.name) for field in fields(kind)})
    assert {name: repr(value) for name, value in known.items()} == {
        name: default.replace('"', "'") for name, (_, default) in ELSEWHERE.items()
    }


def test_names_that_are_imported_from_reap_exist() -> None:
    for page in PAGES:
        for module, name in re.findall(r"`(reap(?:\.\w+)*)\.(\w+)`", page.read_text(encoding="utf-8")):
            home = importlib.import_module(module)
            assert hasattr(home, name) or importlib.util.find_spec(f"{module}.{name}"), f"{page.name}: {module}.{name}"


def test_the_tree_of_errors_is_right() -> None:
    errors = importlib.import_module("reap.errors")
    names = re.findall(r"^(?:├── |└── )(\w+) \(([\w, ]+)\)", BASICS, re.MULTILINE)
    assert len(names) == 4
    for name, builtins in names:
        cls = getattr(errors, name)
        assert issubclass(cls, ReapError)
        assert set(builtins.split(", ")) < {base.__name__ for base in cls.__mro__}


def test_errors_that_the_basics_quote_have_these_words() -> None:
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
