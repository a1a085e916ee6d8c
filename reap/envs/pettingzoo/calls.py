"""The calls to an env of PettingZoo: all agents act at once, or one after the other.

Both give the same: values by agent, of the agents that have any.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from reap.errors import OptionError
from reap.optional import load

FAMILIES = ("mpe2", "magent2.environments")
"""Packages of envs that are no longer part of PettingZoo."""


NO_FAMILIES = ("env_registry", "test", "utils")


class Moment(NamedTuple):
    """What an env returned, by agent.

    Attributes:
        observations: of the agents that are there.
        infos: theirs.
        rewards: theirs; none after a reset.
        terminations: whether their episode has ended.
        truncations: whether it was cut.
        acting: the agents that act next.
    """

    observations: Mapping[str, Any]
    infos: Mapping[str, Any]
    rewards: Mapping[str, Any]
    terminations: Mapping[str, Any]
    truncations: Mapping[str, Any]
    acting: Collection[str]


class PettingZooCalls(Protocol):
    """The calls to one env."""

    needs_mask: bool
    """Whether some agents may not act although none has ended."""

    def reset(self, seed: int | None) -> Moment:
        """Begin an episode."""
        ...

    def step(self, action_of: Callable[[str], Any]) -> Moment:
        """Take the actions of those that act."""
        ...


class ParallelCalls:
    """All agents act at once."""

    needs_mask = False

    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self, seed: int | None) -> Moment:
        """Begin an episode."""
        observations, infos = self._env.reset(seed=seed)
        return Moment(observations, infos, {}, {}, {}, self._env.agents)

    def step(self, action_of: Callable[[str], Any]) -> Moment:
        """Take the actions of all agents that have not ended."""
        results = self._env.step({agent: action_of(agent) for agent in self._env.agents})
        observations, rewards, terminations, truncations, infos = results
        return Moment(observations, infos, rewards, terminations, truncations, self._env.agents)


class TurnCalls:
    """One agent acts at a time; agents that have ended are passed over."""

    needs_mask = True

    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self, seed: int | None) -> Moment:
        """Begin an episode."""
        self._env.reset(seed=seed)
        return self._moment()

    def step(self, action_of: Callable[[str], Any]) -> Moment:
        """Take the action of the agent whose turn it is."""
        env = self._env
        env.step(action_of(env.agent_selection))
        moment = self._moment()
        # An agent that has ended leaves by a step without an action.
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)
        return moment._replace(acting=[env.agent_selection] if env.agents else ())

    def _moment(self) -> Moment:
        env = self._env
        observations = {agent: env.observe(agent) for agent in env.agents}
        infos, rewards, terminations, truncations = map(dict, (env.infos, env.rewards, env.terminations, env.truncations))
        return Moment(observations, infos, rewards, terminations, truncations, [env.agent_selection])


def calls_to(env: Any) -> PettingZooCalls:
    """The calls to an env.

    Raises:
        ImportError: PettingZoo is not installed.
        OptionError: it is no env of PettingZoo.
    """
    zoo = load("pettingzoo", "PettingZooWrapper")
    if isinstance(env, zoo.ParallelEnv):
        return ParallelCalls(env)
    if isinstance(env, zoo.AECEnv):
        return TurnCalls(env)
    raise OptionError(f"PettingZooWrapper: expected a pettingzoo.ParallelEnv or AECEnv, got {type(env).__name__}: {env!r}")


def make_task(task: str, *, parallel: bool, keywords: Mapping[str, Any]) -> Any:
    """The env of a task of PettingZoo, or of one of the packages that its envs have moved to.

    Args:
        task: its module: `"rps_v2"`, or with its family `"classic/rps_v2"`.
        parallel: all agents act at once; a task that has no such form is converted by PettingZoo's `aec_to_parallel`.
        keywords: arguments of the task.

    Raises:
        ImportError: PettingZoo, or something that the task needs, is not installed.
        OptionError: there is no such task.
    """
    with warnings.catch_warnings():
        # PettingZoo 1.27 announces a registry, which 1.24 has not, and the packages that its envs have moved to neither.
        warnings.simplefilter("ignore", DeprecationWarning)
        module = importlib.import_module(_module_of(task))
    if not parallel:
        return module.env(**keywords)
    if hasattr(module, "parallel_env"):
        return module.parallel_env(**keywords)
    return load("pettingzoo.utils.conversions").aec_to_parallel(module.env(**keywords))


def _module_of(task: str) -> str:
    family, _, name = task.rpartition("/")
    for place in [f"pettingzoo.{family}", family] if family else _families():
        try:
            if importlib.util.find_spec(f"{place}.{name}") is not None:
                return f"{place}.{name}"
        except ImportError:  # the package of the family is not there
            continue
    raise OptionError(
        f"PettingZooEnv: expected a task of an installed package, such as 'rps_v2' or 'classic/rps_v2', got {task!r}; the "
        f"packages looked in are {_families()}"
    )


def _families() -> Sequence[str]:
    zoo = load("pettingzoo", "PettingZooEnv")
    own = [f"pettingzoo.{one.name}" for one in pkgutil.iter_modules(zoo.__path__) if one.ispkg]
    return [place for place in own if place.rpartition(".")[2] not in NO_FAMILIES] + list(FAMILIES)
