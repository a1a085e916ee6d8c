"""What the site has beside the pages of `docs/`: pages from docstrings, and files of the repository that pages link to.

MkDocs calls these functions while it builds the site; see `mkdocs.yml`.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
PUBLIC = (ROOT / "docs" / "public.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## `(reap[\w.]*)`\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)

OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+)(#[^)]*)?\)")
"""A link of a page in `docs/` to a file of the repository: `](../examples/ppo.py)`."""

LANGUAGES = {".py": "python", ".yml": "yaml", ".toml": "toml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that are made here into the menu."""
    for entry in config.nav or []:
        if "Reference" in entry:
            entry["Reference"] += [{name: api_page(name)} for name, _, _ in modules()]
        if "Examples" in entry:
            entry["Examples"] += [{Path(path).stem: page_of(path)} for path in examples()]
        if "Project" in entry:
            entry["Project"] += [{"Changes": "CHANGELOG.md"}]
            entry["Project"] += [{"Contributing": "CONTRIBUTING.md"}, {"Security": "SECURITY.md"}, {"Licence": "LICENSE.md"}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    for name, text, names in modules():
        files.append(File.generated(config, api_page(name), content=api(name, text, names)))
    for path in outside():
        files.append(File.generated(config, page_of(path), content=as_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository to their pages: `docs/` is a folder there, and here there is none."""
    if (ROOT / page.file.src_uri).exists():
        return re.sub(r"\]\((?:docs/|(?=LICENSE\)))([\w.]+)", lambda found: f"]({page_of(found[1])}", markdown)
    return OUTSIDE.sub(lambda found: f"]({page_of(found[1])}{found[2] or ''})", markdown)


# ------------------------------------------------------------------ docstrings


def modules() -> list[tuple[str, str, list[str]]]:
    """Each public module: its name, the words on it, and its public names."""
    found = []
    for name, text in SECTION.findall(PUBLIC):
        words, _, names = text.strip().rpartition("\n\n")
        found.append((name, words, re.findall(r"`(\w+)`", names)))
    return found


def api_page(module: str) -> str:
    """The page of a module."""
    return f"api/{module}.md"


def homes() -> dict[str, str]:
    """The module under which each public name is described: the first on the page that is neither `reap` nor an old path."""
    found: dict[str, str] = {}
    for name, text, names in modules():
        if name != "reap" and "torchrl users know" not in text:
            for one in names:
                found.setdefault(one, name)
    return found


def api(module: str, text: str, names: list[str]) -> str:
    """The page of a module: what it describes itself, and links to what another one does."""
    home = {**dict.fromkeys(names, module), **{name: home for name, home in homes().items() if name in names}}
    ours = importlib.import_module(module)
    described = [name for name in names if is_described_here(getattr(ours, name))]
    own = [name for name in described if home[name] == module]
    elsewhere = [f"- [`{name}`]({home[name]}.md#{home[name]}.{name})" for name in described if name not in own]
    elsewhere += [f"- `{name}`: {origin(getattr(ours, name))}" for name in names if name not in described]
    parts = [f"# `{module}`", text, *(f"::: {module}.{name}" for name in own)]
    return "\n\n".join([*parts, "\n".join(elsewhere)]) + "\n"


def is_described_here(value: Any) -> bool:
    """Whether a public name has a docstring in this package: functions and classes of tensordict, and constants, have none."""
    return getattr(value, "__module__", "").startswith("reap")


def origin(value: Any) -> str:
    """Where a name comes from that is not described here; of a constant, its value."""
    module = getattr(value, "__module__", None)
    return f"`{value!r}`" if module is None else f"`{value.__qualname__}` of `{module.partition('.')[0]}`"


# ------------------------------------------------------------------ files of the repository


def outside() -> list[str]:
    """The files of the repository that are shown: examples, those that pages link to, and those of every project."""
    linked = {
        match[0]
        for page in (ROOT / "docs").glob("*.md")
        for match in OUTSIDE.findall(page.read_text(encoding="utf-8"))
        if match[0] != "README.md"
    }
    return sorted(linked | {*examples()} | {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md"})


def examples() -> list[str]:
    """The programs of `examples/`."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.py"))


def page_of(path: str) -> str:
    """The page that shows a file: `examples/ppo.py.md`; that of the README is the first one."""
    return path if path.endswith(".md") else f"{path}.md"


def as_page(path: str) -> str:
    """A file as Markdown."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n```{LANGUAGES.get(Path(path).suffix, '')}\n{text}```\n"
