"""Import lines of programs written for torchrl: which change, into what, and what is said of the rest."""

from __future__ import annotations

import textwrap

import pytest

from reap.migration.imports import Staying, migrate


def moved(text: str, level: int = 3) -> str:
    return migrate(textwrap.dedent(text), level).result


def staying(text: str, level: int = 3) -> list[tuple[int, str, str]]:
    return [(one.line, one.name, one.advice) for one in migrate(textwrap.dedent(text), level).staying]


@pytest.mark.parametrize(
    ("line", "level", "expected"),
    [
        ("from torchrl.collectors import SyncDataCollector", 1, "from reap.collectors import SyncDataCollector"),
        ("from torchrl.collectors.utils import split_trajectories", 1, "from reap.collectors.utils import split_trajectories"),
        ("from torchrl.collectors.distributed import RayCollector", 1, "from reap.collectors.distributed import RayCollector"),
        ("from torchrl.weight_update import NoWeightSyncScheme", 1, "from reap.weight_update import NoWeightSyncScheme"),
        ("from torchrl.data import ReplayBuffer", 1, None),
        ("from torchrl.data import ReplayBuffer", 2, "from reap.data import ReplayBuffer"),
        ("from torchrl.data.replay_buffers import ReplayBuffer", 2, "from reap.data.replay_buffers import ReplayBuffer"),
        ("from torchrl.data.postprocs import MultiStep", 2, "from reap.data.postprocs import MultiStep"),
        ("from torchrl.data import Bounded", 2, None),
        ("from torchrl.data import Bounded", 3, "from reap.data import Bounded"),
        ("from torchrl.envs import GymEnv", 2, None),
        ("from torchrl.envs import GymEnv", 3, "from reap.envs import GymEnv"),
        ("from torchrl.envs.libs.gym import GymEnv", 3, "from reap.envs.libs.gym import GymEnv"),
        ("from torchrl.objectives import DQNLoss", 3, None),
        ("from torchrl.modules import ProbabilisticActor", 3, None),
        ("from torch import nn", 3, None),
        ("from .torchrl import GymEnv", 3, None),
        ("import torchrl", 3, None),
        ("\tfrom torchrl.envs import (SerialEnv,\n\t\tGymEnv)", 3, "\tfrom reap.envs import SerialEnv, GymEnv"),
        ("from torchrl.envs import SerialEnv, \\\n  GymEnv  # two", 3, "from reap.envs import SerialEnv, GymEnv  # two"),
        ("from torchrl.envs import GymEnv as GymEnv", 3, "from reap.envs import GymEnv as GymEnv"),
        ("\x0cfrom torchrl.envs import GymEnv", 3, "\x0cfrom reap.envs import GymEnv"),
        ("x = '\u2028\x85'; from torchrl.envs import GymEnv", 3, "x = '\u2028\x85'; from reap.envs import GymEnv"),
    ],
)
def test_a_line_at_a_level(line: str, level: int, expected: str | None) -> None:
    block = "if 1:\n" if line.startswith("\t") else ""
    assert migrate(block + line, level).result == block + (expected or line)


def test_names_keep_their_own_names_and_those_that_stay_come_last() -> None:
    text = "from torchrl.data import NoSuchBuffer as other, Bounded, ReplayBuffer as RB\n"
    assert (
        moved(text, 2) == "from reap.data import ReplayBuffer as RB\nfrom torchrl.data import NoSuchBuffer as other, Bounded\n"
    )
    assert staying(text, 2) == [(1, "torchrl.data.NoSuchBuffer", "stays torchrl's")]


def test_names_defined_deep_inside_are_found_at_the_door() -> None:
    assert moved("from torchrl.data.replay_buffers.no_such_file import ReplayBuffer") == "from reap.data import ReplayBuffer"


def test_everything_else_stays_as_it_is() -> None:
    before = '''\
        # -*- coding: utf-8 -*-
        """Über alles: from torchrl.envs import GymEnv."""
        if True:
            from torchrl.envs import GymEnv  # the env
        x = "from torchrl.envs import GymEnv"; from torchrl.envs import SerialEnv as é; y = 1
        '''
    expected = '''\
        # -*- coding: utf-8 -*-
        """Über alles: from torchrl.envs import GymEnv."""
        if True:
            from reap.envs import GymEnv  # the env
        x = "from torchrl.envs import GymEnv"; from reap.envs import SerialEnv as é; y = 1
        '''
    assert moved(before) == textwrap.dedent(expected)


def test_comments_inside_of_a_statement_are_put_above_it() -> None:
    before = """\
        try:
            from torchrl.collectors import (  # all of them
                SyncDataCollector,
                # the other
                MultiSyncDataCollector,
            )
        except ImportError:
            pass
        """
    expected = """\
        try:
            # all of them
            # the other
            from reap.collectors import SyncDataCollector, MultiSyncDataCollector
        except ImportError:
            pass
        """
    assert moved(before) == textwrap.dedent(expected)


def test_comments_to_tools_stay_on_the_line_of_the_statement() -> None:
    names = ["LazyMemmapStorage", "LazyTensorStorage", "ListStorage", "PrioritizedSampler", "RandomSampler"]
    few = "from {0} import (  # noqa: F401\n    GymEnv,  # noqa: F401\n    SerialEnv,  # the other\n)  # isort: skip\n"
    assert moved(few.format("torchrl.envs")) == (
        "# the other\nfrom reap.envs import GymEnv, SerialEnv  # noqa: F401  # isort: skip\n"
    )
    lines = "".join(f"    {name},\n" for name in names)
    many = "from torchrl.data import (\n    # type: ignore\n" + lines + ")\n"
    assert moved(many) == "from reap.data import (  # type: ignore\n" + lines + ")\n"


def test_comments_of_a_statement_that_does_not_begin_its_line_end_it() -> None:
    before = "if 1: from torchrl.envs import (  # two\n    GymEnv,\n    SerialEnv,  # the other\n)  # end\ny = 2\n"
    assert moved(before) == "if 1: from reap.envs import GymEnv, SerialEnv  # two  # the other  # end\ny = 2\n"


def test_long_lines_are_wrapped_with_the_line_ends_of_the_file() -> None:
    names = ["LazyMemmapStorage", "LazyTensorStorage", "ListStorage", "PrioritizedSampler", "RandomSampler"]
    before = f"if 1:\r\n  from torchrl.data import {', '.join(names)}\r\n"
    expected = "if 1:\r\n  from reap.data import (\r\n" + "".join(f"      {name},\r\n" for name in names) + "  )\r\n"
    assert moved(before) == expected


def test_a_module_with_a_name_of_its_own_moves_if_all_that_is_used_is_there() -> None:
    text = "import torchrl.data as data, os\nbuffer = data.ReplayBuffer(storage=data.LazyTensorStorage(10))\n"
    assert moved(text) == text.replace("torchrl", "reap")
    assert moved(text, 1) == text
    text += "data.NoSuchBuffer\n"
    assert moved(text) == text
    assert staying(text)[1:] == [
        (2, "torchrl.data.ReplayBuffer", "write: from reap.data import ReplayBuffer"),
        (3, "torchrl.data.NoSuchBuffer", "stays torchrl's"),
    ]


def test_uses_by_the_whole_path_are_named() -> None:
    text = """\
        import torchrl.collectors
        torchrl.collectors.SyncDataCollector.reset
        torchrl.collectors.utils.split_trajectories
        torchrl.objectives.DQNLoss
        """
    assert moved(text) == textwrap.dedent(text)
    assert staying(text) == [
        (2, "torchrl.collectors.SyncDataCollector", "write: from reap.collectors import SyncDataCollector"),
        (3, "torchrl.collectors.utils.split_trajectories", "write: from reap.collectors.utils import split_trajectories"),
    ]


def test_what_to_use_instead() -> None:
    text = "from torchrl.collectors import Evaluator, MultiSyncDataColector\nfrom torchrl.envs import *\n"
    assert migrate(text, 3).staying == (
        Staying(1, "torchrl.collectors.Evaluator", "use reap.evaluate"),
        Staying(
            1,
            "torchrl.collectors.MultiSyncDataColector",
            "stays torchrl's; the nearest name in reap is MultiSyncDataCollector",
        ),
        Staying(2, "torchrl.envs.*", "import the names that are used, one by one"),
    )


def test_text_that_is_not_python() -> None:
    with pytest.raises(SyntaxError):
        migrate("from torchrl import (", 3)


def test_a_module_that_is_imported_from_its_package_moves_like_any_other() -> None:
    text = (
        "from torchrl.data.replay_buffers import samplers, writers as w\nparts = samplers.RandomSampler(), w.RoundRobinWriter\n"
    )
    assert moved(text).splitlines()[0] == "from reap.data.replay_buffers import samplers, writers as w"
    text = "from torchrl.data.replay_buffers import samplers\nparts = samplers.RandomSampler(), samplers.SamplerEnsemble\n"
    found = migrate(text, 3)
    assert found.result == text
    assert [(one.line, one.name) for one in found.staying] == [
        (2, "torchrl.data.replay_buffers.samplers.RandomSampler"),
        (2, "torchrl.data.replay_buffers.samplers.SamplerEnsemble"),
    ]
    assert migrate(text, 1).staying == ()


def test_torchrl_by_another_name() -> None:
    text = "import torchrl as rl\nrl.data.ReplayBuffer(), rl.envs.libs.gym.GymEnv\n"
    assert moved(text) == text.replace("torchrl", "reap")
    text = "from torchrl import data as d, envs\nd.ReplayBuffer(), envs.GymEnv\n"
    assert moved(text) == text.replace("torchrl", "reap")


def test_a_module_deep_inside_with_a_name_of_its_own() -> None:
    text = "import torchrl.envs.libs.gym as gym\ngym.GymEnv\n"
    assert moved(text) == text.replace("torchrl", "reap")


def test_both_branches_of_a_try_change() -> None:
    text = """\
        try:
            from torchrl.collectors import Collector
        except ImportError:
            from torchrl.collectors import SyncDataCollector as Collector
        """
    assert moved(text) == textwrap.dedent(text).replace("torchrl", "reap")


@pytest.mark.parametrize("use", ["getattr(d, 'ReplayBuffer')", "make(d)", "d = {}", "del d"])
def test_a_module_that_is_not_only_used_by_its_names_stays(use: str) -> None:
    text = f"import torchrl.data as d\nd.ReplayBuffer()\n{use}\n"
    found = migrate(text, 3)
    assert found.result == text
    assert found.staying == (
        Staying(2, "torchrl.data.ReplayBuffer", "write: from reap.data import ReplayBuffer"),
        Staying(3, "torchrl.data", "stays torchrl's: d is used in another way than d.NAME"),
    )
    assert migrate(text, 1).staying == ()


def test_paths_in_strings_are_named() -> None:
    text = """\
        import_module("torchrl.data")
        patch("torchrl.collectors.SyncDataCollector", "torchrl.collectors.Evaluator")
        def sample(buffer: "torchrl.data.ReplayBuffer") -> "torchrl.modules.MLP": ...
        print("torchrl", "torchrl.", "from torchrl.envs import GymEnv", f"torchrl.{name}")
        """
    assert moved(text) == textwrap.dedent(text)
    assert staying(text) == [
        (1, "torchrl.data", "in a string: change it yourself, to reap.data"),
        (2, "torchrl.collectors.Evaluator", "use reap.evaluate"),
        (2, "torchrl.collectors.SyncDataCollector", "in a string: change it yourself, to reap.collectors.SyncDataCollector"),
        (3, "torchrl.data.ReplayBuffer", "in a string: change it yourself, to reap.data.ReplayBuffer"),
    ]
    assert staying(text, 1) == staying(text)[1:3]
