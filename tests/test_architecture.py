"""The shape of the code: every rule runs over every file of `reap/`, and is seen to object where it must."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import textwrap

import pytest

import reap
from tests.architecture import (
    FOLDER_MODULES,
    LOOP_CODE,
    PACKAGE_RULES,
    ROOT,
    RULES,
    SOURCES,
    PackageRule,
    Rule,
    Source,
    imports_at_the_top,
    imports_from_lower_rows,
    known_row,
    names_that_say_something,
    no_circles,
    no_maybe,
    no_type_questions_in_the_loop,
    nothing_left_to_do,
    shallow,
    short_file,
    short_functions,
    small_folders,
    utils_are_doors,
)

OPTIONAL = ("matplotlib", "pettingzoo", "ray", "torchrl")


def test_every_file_keeps_every_rule() -> None:
    """One test: it takes longer to parse the files than to go through them."""
    violations = [f"{name}: {violation}" for rule in RULES for name, source in SOURCES.items() for violation in rule(source)]
    assert not violations, "\n".join(["", *violations])


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: PackageRule) -> None:
    violations = rule(SOURCES)
    assert not violations, "\n".join(["", *violations])


# The rules themselves: sources that they must object to, and neighbours that they must let pass


def source(name: str, text: str) -> Source:
    """A source by its file's module path; `reap.envs.__init__` is the package `reap.envs`."""
    return Source(name.removesuffix(".__init__"), text, is_package=name.endswith(".__init__"))


def body_of(lines: int, head: str = "def f():") -> str:
    return "\n".join([head, *["    x = 1"] * lines])


def nest(levels: int, innermost: str = "y") -> str:
    ifs = [f"{' ' * 4 * level}if x:" for level in range(1, levels + 1)]
    return "\n".join(["def f():", *ifs, textwrap.indent(innermost, " " * 4 * (levels + 1))])


LONG_DOCSTRING = '"""Text.\n' + "\n" * 100 + '    """'

TYPE_QUESTION_IN_FILL = """
class Rollout:
    def fill(self, slot):
        for t in slot:
            hasattr(t, "x")
"""
TYPE_QUESTION_BESIDE_FILL = """
class Rollout:
    def __init__(self, env):
        isinstance(env, int)
    def fill(self, slot):
        pass
"""
TYPE_QUESTION_IN_TRACKER = """
class TrajectoryTracker:
    def end(self, rows):
        return isinstance(rows, int)
"""
IMPORT_IN_METHOD_IN_FUNCTION = """
def f():
    class A:
        def g(self):
            import ray
"""

BAD: dict[Rule, list[tuple[str, str, str]]] = {
    known_row: [
        ("reap.novelty", "", "add it to ROWS"),
        ("reap.novelty.part", "", "add it to ROWS"),
    ],
    imports_from_lower_rows: [
        ("reap.recording.layout", "from reap.rollout.loop import Rollout", "reap.rollout.loop.Rollout"),
        ("reap.recording.layout", "import reap.rollout.loop", "reap.rollout.loop"),
        ("reap.specs.base", "from reap.recording.layout import Field", "row 4"),
        ("reap.recording.layout", "from reap import collectors", "reap.collectors"),
        ("reap.recording.layout", "from .. import rollout", "imports reap.rollout (row 7)"),
        ("reap.recording.layout", "def f():\n    import reap.envs", "line 2"),
        ("reap.envs.gymnasium.env", "from ...policy import Actor", "reap.policy.Actor"),
        ("reap.envs.__init__", "from ..policy import Actor", "reap.policy.Actor"),
        ("reap.data.buffers.replay", "if TYPE_CHECKING:\n    from reap.envs import EnvBase", "line 2"),
        ("reap.workers.base", "from reap.data.buffers.replay import ReplayBuffer", "reap.data"),
        ("reap.collectors.base", "from reap.collectors.distributed.ray import A", "reap.collectors.distributed"),
        ("reap.cli.__init__", "from reap import __version__", "public door"),
        ("reap.cli.check", "from reap.testing import check_env", "for users and tests"),
        ("reap.__init__", "from reap.testing import check_env", "for users and tests"),
    ],
    short_file: [("reap.recording.layout", "x\n" * 401, "401 lines")],
    short_functions: [
        ("reap.recording.layout", body_of(60), "f has 61 lines"),
        ("reap.recording.layout", body_of(60, "async def f():"), "f has 61 lines"),
        ("reap.recording.layout", body_of(60, f"def f():\n    {LONG_DOCSTRING}"), "f has 61 lines"),
    ],
    shallow: [
        ("reap.recording.layout", nest(5), "line 6"),
        ("reap.recording.layout", nest(4, "try:\n    y\nfinally:\n    z"), "line 6"),
        ("reap.recording.layout", nest(4, "if y:\n    z\nelif z:\n    y"), "line 6"),
    ],
    imports_at_the_top: [
        ("reap.recording.layout", "def f():\n    import ray", "line 2"),
        ("reap.recording.layout", "async def f():\n    from math import pi", "line 2"),
        ("reap.recording.layout", "def f():\n    return __import__('ray')", "line 2"),
        ("reap.recording.layout", IMPORT_IN_METHOD_IN_FUNCTION, "line 5"),
    ],
    no_type_questions_in_the_loop: [
        ("reap.collectors.schedules.together", "def f(x): return isinstance(x, int)", "isinstance()"),
        ("reap.collectors.schedules.together", "x = getattr(y, 'z', None)", "getattr()"),
        ("reap.rollout.loop", "def fill(slot): ...", "LOOP_CODE"),
        ("reap.rollout.loop", TYPE_QUESTION_IN_FILL, "line 5: asks hasattr()"),
        ("reap.recording.trajectories", TYPE_QUESTION_IN_TRACKER, "line 4"),
    ],
    names_that_say_something: [
        ("reap.envs.helpers", "", "reap.envs.helpers"),
        ("reap.common.__init__", "", "reap.common"),
        ("reap.data.utils", "", "reap.data.utils"),
    ],
    utils_are_doors: [("reap.collectors.utils", "def split(): ...", "line 1")],
    no_maybe: [
        ("reap.recording.layout", "def _maybe_copy(): ...", "_maybe_copy"),
        ("reap.recording.layout", "self.do_maybe_copy()", "do_maybe_copy"),
    ],
    nothing_left_to_do: [
        ("reap.recording.layout", "x = 1  # TODO: more", "line 1"),
        ("reap.recording.layout", '"""\nFIXME\n"""', "line 2"),
        ("reap.recording.layout", "\n\n# XXX", "line 3"),
    ],
}

GOOD: dict[Rule, list[tuple[str, str]]] = {
    known_row: [("reap.collectors.distributed.ray", "")],
    imports_from_lower_rows: [
        ("reap.recording.layout", "from reap.keys import Key\nimport torch\nfrom reapable import x"),
        ("reap.envs.gymnasium.env", "from reap.envs.base import EnvBase\nfrom . import base"),
        ("reap.collectors.distributed.ray", "from reap.collectors.base import A"),
        ("reap.testing.checks", "from reap.collectors.distributed.ray import A"),
        ("reap.__init__", "from reap.collectors import SyncDataCollector"),
    ],
    short_file: [("reap.recording.layout", "x\n" * 400)],
    short_functions: [
        ("reap.recording.layout", body_of(59)),
        ("reap.recording.layout", body_of(59, f"def f():\n    {LONG_DOCSTRING}")),
    ],
    shallow: [
        ("reap.recording.layout", nest(4)),
        ("reap.recording.layout", "if x:\n    y\n" + "elif y:\n    z\n" * 9),
    ],
    imports_at_the_top: [
        ("reap.recording.layout", "if TYPE_CHECKING:\n    import ray"),
        ("reap.optional", "def f():\n    import ray"),
    ],
    no_type_questions_in_the_loop: [
        ("reap.specs", "isinstance(x, int)"),
        ("reap.rollout.loop", TYPE_QUESTION_BESIDE_FILL),
    ],
    names_that_say_something: [("reap.collectors.utils", "")],
    utils_are_doors: [("reap.collectors.utils", "from reap.recording.split import split_trajectories")],
    no_maybe: [("reap.recording.layout", "def _maybe_map_weights(self): '_maybe_copy'")],
    nothing_left_to_do: [("reap.recording.layout", "todo = TODOS")],
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_objects(rule: Rule) -> None:
    for name, text, message in BAD[rule]:
        violations = rule(source(name, text))
        assert len(violations) == 1, text
        assert message in violations[0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_lets_pass(rule: Rule) -> None:
    for name, text in GOOD[rule]:
        assert rule(source(name, text)) == [], text


BAD_PACKAGES: dict[PackageRule, list[tuple[dict[str, str], str]]] = {
    no_circles: [
        ({"reap.a": "import reap.b", "reap.b": "from reap.a import x"}, "['reap.a', 'reap.b']"),
        ({"reap.a": "if x:\n    from reap.b import y", "reap.b": "import reap.a"}, "['reap.a', 'reap.b']"),
        (
            {"reap.a": "from reap import b", "reap.b": "import reap.c", "reap.c": "import reap.a"},
            "['reap.a', 'reap.b', 'reap.c']",
        ),
        ({"reap.a.__init__": "from reap.a.b import x", "reap.a.b": "from reap.a import y"}, "['reap.a', 'reap.a.b']"),
    ],
    small_folders: [({f"reap.a.m{number}": "" for number in range(FOLDER_MODULES + 1)}, "reap.a has 17 modules")],
}

GOOD_PACKAGES: dict[PackageRule, list[dict[str, str]]] = {
    no_circles: [
        {"reap.a": "import reap.b\nimport reap.c", "reap.b": "import reap.c", "reap.c": "import torch"},
        {"reap.a.__init__": "from reap.a.b import x", "reap.a.b": "import reap.a.c", "reap.a.c": ""},
    ],
    small_folders: [
        {f"reap.a.m{number}": "" for number in range(FOLDER_MODULES)} | {"reap.a.__init__": "", "reap.a.b.c": ""},
    ],
}


def package(texts: dict[str, str]) -> dict[str, Source]:
    return {made.name: made for made in (source(name, text) for name, text in texts.items())}


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_a_package_rule_objects(rule: PackageRule) -> None:
    for texts, message in BAD_PACKAGES[rule]:
        violations = rule(package(texts))
        assert len(violations) == 1, texts
        assert message in violations[0]


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_a_package_rule_lets_pass(rule: PackageRule) -> None:
    for texts in GOOD_PACKAGES[rule]:
        assert rule(package(texts)) == [], texts


def test_the_files_are_read() -> None:
    assert {"reap", *LOOP_CODE} <= set(SOURCES)


# The package as it is imported and installed


def test_import_leaves_optional_packages_alone() -> None:
    code = f"import sys, reap; print([name for name in {OPTIONAL} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_one_version() -> None:
    assert reap.__version__ == importlib.metadata.version("reap")
