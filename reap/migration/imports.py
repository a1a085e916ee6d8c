"""The import statements of a program that name torchrl, and how they change.

Source --- statements ---> doors ---> Edit (a statement that changes), Staying (a name that does not)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from reap.migration.doors import advice, door_of, is_moved, is_peer, level_of, same_module, split_path
from reap.migration.source import Edit, Source


@dataclass(frozen=True, order=True)
class Staying:
    """A name of torchrl that a level covers and that stays.

    Attributes:
        line: where it is imported or used, counted from 1.
        name: with its module.
        advice: how to proceed.
    """

    line: int
    name: str
    advice: str


@dataclass(frozen=True)
class Migration:
    """How one program changes.

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
            names = [_imported(node.module, name, source.tree, level) for name in node.names]
            edits += _of_names(node, source, [(name.home, name.alias) for name in names])
            staying.update(one for name in names for one in name.staying_at(node.lineno))
        elif isinstance(node, ast.Import) and any(is_peer(name.name) for name in node.names):
            modules = [_Module(name, source.tree, level) for name in node.names]
            edits += _of_modules(node, source, modules)
            staying.update(one for module in modules for one in module.staying)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            staying.update(_in_string(node.value, node.lineno, level))
    edits.sort(key=lambda edit: edit.start)
    return Migration(tuple(edits), tuple(sorted(staying)), source.edited(edits))


def _is_covered(module: str, name: str, level: int) -> bool:
    own = level_of(module, name)
    return own is not None and own <= level


def _in_string(value: str, line: int, level: int) -> Iterator[Staying]:
    """The path of a module or name that a string is, as in `import_module("torchrl.data")` and in annotations."""
    parts = value.split(".")
    if len(parts) == 1 or not is_peer(value) or not all(map(str.isidentifier, parts)):
        return
    module, name = split_path(parts)
    if is_moved(value):
        own, new = level_of(value, ""), same_module(value)
    else:
        own, door = level_of(module, name), door_of(module, name) if level_of(module, name) else None
        new = f"{door}.{name}" if door else ""
    if own is not None and own <= level:
        yield Staying(line, value, f"in a string: change it yourself, to {new}" if new else advice(module, name))


# ------------------------------------------------------------------ from torchrl.data import ReplayBuffer


class _Name:
    """A name that a program imports from a module of torchrl.

    Attributes:
        alias: the name.
        home: the module that it is imported from after the migration.
    """

    def __init__(self, module: str, alias: ast.alias, level: int) -> None:
        self.alias = alias
        self._module, self._is_covered = module, _is_covered(module, alias.name, level)
        door = door_of(module, alias.name) if self._is_covered else None
        self.home = door or module

    def staying_at(self, line: int) -> Iterator[Staying]:
        """The name, if its level covers it and it stays."""
        if self._is_covered and self.alias.name == "*":
            yield Staying(line, f"{self._module}.*", "import the names that are used, one by one")
        elif self._is_covered and self.home == self._module:
            yield Staying(line, f"{self._module}.{self.alias.name}", advice(self._module, self.alias.name))


class _Submodule:
    """A module of torchrl that a program imports from its package; as `_Name`."""

    def __init__(self, package: str, alias: ast.alias, tree: ast.Module, level: int) -> None:
        self.alias = alias
        whole = ast.alias(f"{package}.{alias.name}", alias.asname or alias.name)
        self._module = _Module(whole, tree, level)
        self.home = same_module(package) if self._module.moves else package

    def staying_at(self, _line: int) -> Iterator[Staying]:
        """The names used from the module, if it stays."""
        yield from self._module.staying


def _imported(module: str, alias: ast.alias, tree: ast.Module, level: int) -> _Name | _Submodule:
    name = _Name(module, alias, level)
    if name.home == module and is_moved(f"{module}.{alias.name}"):
        return _Submodule(module, alias, tree, level)
    return name


def _of_names(node: ast.ImportFrom, source: Source, homes: list[tuple[str, ast.alias]]) -> Iterator[Edit]:
    if any(home != node.module for home, _ in homes):
        homes.sort(key=lambda one: (one[0] == node.module, one[0]))  # what stays comes last
        yield source.replacement(node, [_written(home, group) for home, group in groupby(homes, itemgetter(0))])


def _written(home: str, names: Iterator[tuple[str, ast.alias]]) -> str:
    return f"from {home} import {', '.join(ast.unparse(name) for _, name in names)}"


# ------------------------------------------------------------------ import torchrl.data as data


class _Module:
    """A module of torchrl that a program imports as a whole.

    It can be replaced if the program gives it a name of its own and `reap` has all that is used of it.
    """

    def __init__(self, name: ast.alias, tree: ast.Module, level: int) -> None:
        self._name = name
        bound = name.asname or name.name.partition(".")[0]
        uses = list(_uses(tree, bound, name.name if name.asname else bound)) if is_peer(name.name) else []
        covered = [use for use in uses if _is_covered(use.module, use.name, level)]
        elsewhere = [use for use in covered if door_of(use.module, use.name) != same_module(use.module)]
        whole = list(_whole(tree, bound)) if name.asname and covered else []
        self.moves = bool(uses) and name.asname is not None and len(covered) == len(uses) and not elsewhere and not whole
        self.alias = ast.alias(same_module(name.name), name.asname) if self.moves else name
        other = f"stays torchrl's: {bound} is used in another way than {bound}.NAME"
        self.staying = [] if self.moves else [use.staying for use in covered] + [Staying(at, name.name, other) for at in whole]


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


def _whole(tree: ast.Module, bound: str) -> Iterator[int]:
    """Lines that use a name other than as `name.other`: what is taken of the module there is not known."""
    bases = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return (node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == bound and node not in bases)


def _path(node: ast.expr) -> list[str]:
    """The names of `a.b.c`; none if it starts with anything but a name."""
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
