"""The import statements of a program that name torchrl, and what becomes of them.

Source --- statements ---> doors ---> Edit (a statement that changes), Staying (a name that does not)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from reap.migration.doors import advice, door_of, is_module, is_peer, level_of, same_module, split_path
from reap.migration.source import Edit, Source


@dataclass(frozen=True, order=True)
class Staying:
    """A name of torchrl that a level covers and that stays.

    Attributes:
        line: where it is imported or used, counted from 1.
        name: with its module.
        advice: what to do about it.
    """

    line: int
    name: str
    advice: str


@dataclass(frozen=True)
class Migration:
    """What becomes of one program.

    Attributes:
        edits: in the order of the text.
        staying: in the order of the text.
        result: the text after all edits.
    """

    edits: tuple[Edit, ...]
    staying: tuple[Staying, ...]
    result: str


def migrate(text: str, level: int) -> Migration:
    """Find what changes in a program.

    Args:
        text: the program.
        level: 1, 2 or 3; see `reap.migration.doors`.

    Raises:
        SyntaxError: the text is not Python.
    """
    source = Source(text)
    edits: list[Edit] = []
    staying: set[Staying] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level and is_peer(node.module):
            homes = [(_home(node.module, name, source.tree, level), name) for name in node.names]
            edits += _of_names(node, source, homes)
            staying.update(_names_that_stay(node, node.module, source.tree, level))
        elif isinstance(node, ast.Import) and any(is_peer(name.name) for name in node.names):
            modules = [_Module(name, source.tree, level) for name in node.names]
            edits += _of_modules(node, source, modules)
            staying.update(one for module in modules for one in module.staying)
    edits.sort(key=lambda edit: edit.start)
    return Migration(tuple(edits), tuple(sorted(staying)), source.edited(edits))


def _is_covered(module: str, name: str, level: int) -> bool:
    own = level_of(module, name)
    return own is not None and own <= level


# ------------------------------------------------------------------ from torchrl.data import ReplayBuffer


def _home(module: str, name: ast.alias, tree: ast.Module, level: int) -> str:
    """The module that a name is imported from after the migration."""
    if is_module(module, name.name):
        return same_module(module) if _within(module, name, tree, level).moves else module
    return (_is_covered(module, name.name, level) and door_of(module, name.name)) or module


def _within(module: str, name: ast.alias, tree: ast.Module, level: int) -> _Module:
    """The module that is imported from another one."""
    return _Module(ast.alias(f"{module}.{name.name}", name.asname or name.name), tree, level)


def _of_names(node: ast.ImportFrom, source: Source, homes: list[tuple[str, ast.alias]]) -> Iterator[Edit]:
    if any(home != node.module for home, _ in homes):
        homes.sort(key=lambda one: (one[0] == node.module, one[0]))  # what stays comes last
        yield source.replacement(node, [_written(home, group) for home, group in groupby(homes, itemgetter(0))])


def _written(home: str, names: Iterator[tuple[str, ast.alias]]) -> str:
    return f"from {home} import {', '.join(ast.unparse(name) for _, name in names)}"


def _names_that_stay(node: ast.ImportFrom, module: str, tree: ast.Module, level: int) -> Iterator[Staying]:
    for name in node.names:
        if is_module(module, name.name):
            yield from _within(module, name, tree, level).staying
            continue
        if not _is_covered(module, name.name, level):
            continue
        if name.name == "*":
            yield Staying(node.lineno, f"{module}.*", "import the names that are used, one by one")
        elif door_of(module, name.name) is None:
            yield Staying(node.lineno, f"{module}.{name.name}", advice(module, name.name))


# ------------------------------------------------------------------ import torchrl.data as data


class _Module:
    """A module of torchrl that a program imports as a whole.

    It can be another one if it has a name of its own in the program and `reap` has all that is used of it.
    """

    def __init__(self, name: ast.alias, tree: ast.Module, level: int) -> None:
        self._name = name
        bound = name.asname or name.name.partition(".")[0]
        uses = list(_uses(tree, bound, name.name if name.asname else bound)) if is_peer(name.name) else []
        covered = [use for use in uses if _is_covered(use.module, use.name, level)]
        elsewhere = [use for use in covered if door_of(use.module, use.name) != same_module(use.module)]
        self.moves = bool(uses) and name.asname is not None and len(covered) == len(uses) and not elsewhere
        self.alias = ast.alias(same_module(name.name), name.asname) if self.moves else name
        self.staying = [] if self.moves else [use.staying for use in covered]


@dataclass(frozen=True)
class _Use:
    """Where a program uses a name by its module."""

    line: int
    module: str
    name: str

    @property
    def staying(self) -> Staying:
        """The use, if the module stays."""
        door = door_of(self.module, self.name)
        what_to_do = advice(self.module, self.name) if door is None else f"write: from {door} import {self.name}"
        return Staying(self.line, f"{self.module}.{self.name}", what_to_do)


def _uses(tree: ast.Module, bound: str, module: str) -> Iterator[_Use]:
    """The uses of a module that a program knows by a name of its own."""
    within = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in within:
            path = _path(node)
            if path and path[0] == bound:
                where, name = split_path([*module.split("."), *path[1:]])
                yield _Use(node.lineno, where, name)


def _path(node: ast.expr) -> list[str]:
    """The names of `a.b.c`; none if it begins with anything but a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        before = _path(node.value)
        return [*before, node.attr] if before else []
    return []


def _of_modules(node: ast.Import, source: Source, modules: list[_Module]) -> Iterator[Edit]:
    new = ast.unparse(ast.Import([module.alias for module in modules]))
    if new != ast.unparse(node):
        yield source.replacement(node, [new])
