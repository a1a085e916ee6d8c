"""`GymFacts`: facts about a `GymEnv` and gymnasium, and infos that become observations after construction."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium as gym

from reap.envs.gymnasium.facts.infos import default_info_dict_reader, keys_of_reader, specs_of_infos
from reap.errors import CallOrderError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reap.envs.gymnasium.calls import GymCalls
    from reap.specs import Spec

HOOKS = ("read_action", "read_done", "read_obs", "read_reward")

RESERVED = frozenset({"action", "reward", "done", "terminated", "truncated", "next", "collector", "is_init", "step_count"})
"""Keys of batches, which observations cannot have."""


class _Ids:
    """Class attribute: the ids of all envs registered with gymnasium."""

    def __get__(self, instance: object, owner: type) -> list[str]:
        return sorted(gym.registry)


class GymFacts:
    """Facts about the env, and readers of infos."""

    libname: ClassVar[str] = "gymnasium"
    """The library of the envs."""

    git_url: ClassVar[str] = "https://github.com/Farama-Foundation/Gymnasium"
    """The URL of its source."""

    available_envs: ClassVar[Any] = _Ids()
    """The ids of all envs registered with gymnasium."""

    _recipe: tuple[Any, dict[str, Any]]
    wrapped: Any
    owner: object

    if TYPE_CHECKING:

        def _use_infos(self, infos: dict[str, Spec]) -> None: ...
        def _calls(self) -> Sequence[GymCalls]: ...

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        hooks = [name for name in HOOKS if name in vars(cls)]
        if hooks:
            raise TypeError(
                f"{cls.__name__} defines {hooks}, which nothing calls: values are read into arrays without a call for each. "
                "Put a gymnasium wrapper around the env (TransformObservation, TransformReward, TransformAction)"
            )

    @property
    def env_name(self) -> str | None:
        """The id of the env; None for a given env without id."""
        env, _ = self._recipe
        spec = getattr(self.wrapped, "spec", None)
        return env if isinstance(env, str) else getattr(spec, "id", None)

    @property
    def lib(self) -> ModuleType:
        """The gymnasium package."""
        return gym

    @staticmethod
    def get_library_name(env: Any) -> str:
        """The package of the env's class."""
        return type(env).__module__.partition(".")[0]

    def set_info_dict_reader(
        self, info_dict_reader: default_info_dict_reader | None = None, ignore_private: bool = True
    ) -> Self:
        """Turn infos into observations, like `info_keys` at construction.

        Args:
            info_dict_reader: chooses the infos; None means all that a reset and a step return.
            ignore_private: with None, omit names that start with an underscore.

        With None, the env is reset and stepped once, to find its infos.

        Raises:
            OptionError: infos already are observations, the reader is a function, or the env is a vector env whose rows are
                stepped together.
            CallOrderError: a collector drives the env.

        Example:
            >>> from reap.envs import GymEnv, default_info_dict_reader
            >>> env = GymEnv("FrozenLake-v1").set_info_dict_reader(default_info_dict_reader(["prob"]))
            >>> env.observation_spec.keys()
            ['observation', 'prob']
        """
        if self._recipe[1]["info_keys"] is not None:
            raise OptionError(f"{self!r} makes observations of infos already: {list(self._recipe[1]['info_keys'])}")
        if self.owner is not None:
            raise CallOrderError(f"{self!r}: expected its infos to be chosen before a collector drives it")
        if not self._calls():
            raise OptionError(f"{self!r} is stepped as a whole: give info_keys= where it is built")
        infos = keys_of_reader(info_dict_reader)
        if infos is None:
            is_quiet = ignore_private if info_dict_reader is None else info_dict_reader.ignore_private
            infos = specs_of_infos(self._two_infos(), ignore_private=is_quiet)
        self._recipe[1]["info_keys"] = infos
        self._use_infos(infos)
        return self

    def auto_register_info_dict(
        self, ignore_private: bool = True, *, info_dict_reader: default_info_dict_reader | None = None
    ) -> Self:
        """The same as `set_info_dict_reader`, with its arguments in the other order."""
        return self.set_info_dict_reader(info_dict_reader, ignore_private)

    def _two_infos(self) -> list[Any]:
        """The infos of a reset and of a step with a random action."""
        env = self._calls()[0].env
        first = env.reset()[1]
        return [first, env.step(env.action_space.sample())[-1]]
