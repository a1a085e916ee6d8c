"""Rules on the shape of the code, read from its syntax trees: layers, circles, sizes, names, and the places of imports.

Each rule is a function from a `Source`, or from all sources, to its violations; `test_architecture.py` runs them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent

ROWS: tuple[tuple[str, ...], ...] = (
    ("exit_codes",),
    ("errors", "keys", "optional", "seeds", "words"),
    ("names", "option_values", "ray_start", "system", "tensordicts"),
    ("specs", "workers"),
    ("recording",),
    ("data",),
    ("envs", "policy"),
    ("rollout",),
    ("weights",),
    ("collectors", "weight_update"),
    ("collectors.distributed", "display", "evaluation", "migration", "replaying"),
    ("loggers", "tuning"),
    ("cli",),
    ("__main__", "testing"),
)
"""Modules and packages under `reap`, lowest row first. A module imports from rows below its own and from its own
package; the longest name that fits decides."""

MEMBERS = frozenset(name for row in ROWS for name in row)

DOOR = "reap"
"""`reap/__init__.py` stands above all rows: it imports anything but `testing`, and nothing imports it."""

TESTING = "testing"

UTILS_DOORS = frozenset({"reap.collectors.utils", "reap.envs.common", "reap.envs.utils"})
"""The documented import paths that end in `utils` or `common`."""

LOOP_CODE: dict[str, tuple[str, ...]] = {
    "reap.rollout.loop": ("Rollout.fill",),
    "reap.collectors.schedules.together": (),  # all of it
    "reap.rollout.halves": (),
    "reap.recording.trajectories": ("TrajectoryTracker",),
}
"""What runs once per column or once per result: nothing there asks what kind of object it has."""

TYPE_QUESTIONS = frozenset({"isinstance", "issubclass", "hasattr", "getattr", "callable", "type"})

FOLDER_MODULES = 16
"""Modules in a folder, `__init__` and packages not counted."""

FILE_LINES = 400
FUNCTION_LINES = 60
NESTING = 4

BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A module's name and text."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        return tuple(node for node in self.nodes if isinstance(node, FUNCTIONS))


Sources = Mapping[str, Source]
Rule = Callable[[Source], list[str]]
PackageRule = Callable[[Sources], list[str]]


def read_package() -> dict[str, Source]:
    sources = {}
    for path in sorted((ROOT / "reap").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        sources[name] = Source(name, path.read_text(encoding="utf-8"), is_package)
    return sources


SOURCES = read_package()


# Layers


def member_of(module: str) -> str | None:
    """The entry of ROWS that a module belongs to: `reap.collectors.distributed.ray` → `collectors.distributed`."""
    names = module.split(".")[1:]
    return next((name for stop in range(len(names), 0, -1) if (name := ".".join(names[:stop])) in MEMBERS), None)


def row_of(member: str) -> int:
    return next(index for index, row in enumerate(ROWS) if member in row)


def imports_of(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported from `reap`, type-only imports and those in functions included."""
    package = source.name.split(".") if source.is_package else source.name.split(".")[:-1]
    for node in source.nodes:
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in found if name.split(".")[0] == "reap")


def known_row(source: Source) -> list[str]:
    if source.name == DOOR or member_of(source.name):
        return []
    return ["stands in no layer: add it to ROWS in tests/architecture.py and to docs/architecture.md"]


def imports_from_lower_rows(source: Source) -> list[str]:
    own = member_of(source.name)
    height = len(ROWS) if own is None else row_of(own)
    found = []
    for line, name in imports_of(source):
        target = member_of(name)
        if target is None:
            found.append(f"line {line}: imports {name}, which is the public door or stands in no layer (ROWS)")
        elif target == TESTING and own != TESTING:
            found.append(f"line {line}: imports {name}; reap.testing is for users and tests only")
        elif target != own and row_of(target) >= height:
            found.append(f"line {line}: imports {name} (row {row_of(target)}) from row {height}")
    return found


# Circles


def imported_modules(source: Source, sources: Sources) -> set[str]:
    """The modules that a module imports from, itself left out; of a package, not its modules unless they are named."""
    names = {name if name in sources else name.rpartition(".")[0] for _, name in imports_of(source)}
    return {name for name in names if name in sources and name != source.name}


def circles(sources: Sources) -> list[set[str]]:
    """The largest sets of modules of which each is imported by each other, directly or not."""
    imports = {name: imported_modules(source, sources) for name, source in sources.items()}
    reached: dict[str, set[str]] = {}
    for name, direct in imports.items():
        found, new = set[str](), set(direct)
        while new:
            found |= new
            new = set[str]().union(*(imports[one] for one in new)) - found
        reached[name] = found
    members = {frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return [set(circle) for circle in members if circle]


def no_circles(sources: Sources) -> list[str]:
    return [f"import each other in a circle: {sorted(circle)}" for circle in circles(sources)]


# Sizes


def small_folders(sources: Sources) -> list[str]:
    modules = Counter(name.rpartition(".")[0] for name, source in sources.items() if not source.is_package)
    return [
        f"{folder} has {count} modules, at most {FOLDER_MODULES}; divide it by nouns"
        for folder, count in modules.items()
        if count > FOLDER_MODULES
    ]


def short_file(source: Source) -> list[str]:
    lines = len(source.text.splitlines())
    return [f"{lines} lines, at most {FILE_LINES}"] if lines > FILE_LINES else []


def docstring_lines(function: Function) -> int:
    if ast.get_docstring(function, clean=False) is None:
        return 0
    docstring = function.body[0]
    return (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1


def short_functions(source: Source) -> list[str]:
    found = []
    for function in source.functions:
        lines = (function.end_lineno or function.lineno) - function.lineno + 1 - docstring_lines(function)
        if lines > FUNCTION_LINES:
            found.append(f"line {function.lineno}: {function.name} has {lines} lines, at most {FUNCTION_LINES}")
    return found


def too_deep(node: ast.AST, depth: int) -> Iterator[ast.stmt]:
    """The blocks at a depth of `NESTING + 1`; an `elif` is no deeper than its `if`."""
    for child in ast.iter_child_nodes(node):
        is_elif = isinstance(child, ast.If) and isinstance(node, ast.If) and node.orelse == [child]
        below = depth + (isinstance(child, BLOCKS) and not is_elif)
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            below = 0
        if below > NESTING and isinstance(child, ast.stmt):
            yield child
        else:
            yield from too_deep(child, below)


def shallow(source: Source) -> list[str]:
    return [f"line {node.lineno}: more than {NESTING} blocks inside each other" for node in too_deep(source.tree, 0)]


# Where imports stand, and what the loop asks


def imports_at_the_top(source: Source) -> list[str]:
    if source.name == "reap.optional":
        return []
    inner = dict.fromkeys(node for function in source.functions for node in ast.walk(function))
    return [
        f"line {node.lineno}: an import inside a function; optional packages are loaded in reap/optional.py"
        for node in inner
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Name) and node.id == "__import__")
    ]


def named(tree: ast.Module, path: str) -> ast.stmt | None:
    """The class or function at a dotted path in a module, or None."""
    node: ast.stmt | ast.Module | None = tree
    for name in path.split("."):
        body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
        defined = (one for one in body if isinstance(one, (*FUNCTIONS, ast.ClassDef)))
        node = next((one for one in defined if one.name == name), None)
    return node if isinstance(node, ast.stmt) else None


def no_type_questions_in_the_loop(source: Source) -> list[str]:
    if source.name not in LOOP_CODE:
        return []
    paths = LOOP_CODE[source.name]
    places = {path: named(source.tree, path) for path in paths} or {source.name: source.tree}
    found = [f"no {path} here: LOOP_CODE in {Path(__file__).name} is out of date" for path in paths if not places[path]]
    calls = (node for place in places.values() if place for node in ast.walk(place) if isinstance(node, ast.Call))
    return found + [
        f"line {call.lineno}: asks {call.func.id}(); choose the object at construction instead"
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in TYPE_QUESTIONS
    ]


# Names


def names_that_say_something(source: Source) -> list[str]:
    last = source.name.split(".")[-1]
    is_vague = last in {"helper", "helpers", "common", "misc", "utils"} and source.name not in UTILS_DOORS
    return [f"{source.name}: a module is named after what is in it"] if is_vague else []


def utils_are_doors(source: Source) -> list[str]:
    if source.name not in UTILS_DOORS:
        return []
    code = (node for node in source.tree.body if isinstance(node, (*FUNCTIONS, ast.ClassDef)))
    return [f"line {node.lineno}: code in {source.name}, which only passes on names" for node in code]


KNOWN_MAYBE = frozenset({"_maybe_map_weights", "step_and_maybe_reset"})


def no_maybe(source: Source) -> list[str]:
    """The caller decides whether, the callee does it; these are documented names, the latter of torchrl's."""
    if "_maybe_" not in source.text:
        return []
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    return [
        f"line {token.start[0]}: {token.string}; the caller decides whether, the callee does it"
        for token in tokens
        if token.type == tokenize.NAME and "_maybe_" in token.string and token.string not in KNOWN_MAYBE
    ]


def nothing_left_to_do(source: Source) -> list[str]:
    lines = enumerate(source.text.splitlines(), 1)
    return [f"line {number}: {line.strip()}" for number, line in lines if re.search(r"\b(TODO|FIXME|XXX)\b", line)]


RULES: tuple[Rule, ...] = (
    known_row,
    imports_from_lower_rows,
    short_file,
    short_functions,
    shallow,
    imports_at_the_top,
    no_type_questions_in_the_loop,
    names_that_say_something,
    utils_are_doors,
    no_maybe,
    nothing_left_to_do,
)

PACKAGE_RULES: tuple[PackageRule, ...] = (no_circles, small_folders)
