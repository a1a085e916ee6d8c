"""Random actions by an env's own `rand_action` or `rand_step`, passed as a policy or overridden."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reap.errors import OptionError

if TYPE_CHECKING:
    from tensordict import TensorDictBase

LIBRARIES = "reap", "torchrl"


def as_policy(policy: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The policy to use: None, for random actions, if an env's `rand_action` or `rand_step` was given.

    The caller of a policy steps the env, so `rand_step` would step it twice. An env that overrides these methods still uses its
    own random actions.
    """
    env: Any = getattr(policy, "__self__", None)
    name = getattr(policy, "__name__", None)
    if name not in {"rand_action", "rand_step"} or not any(_is_envs(kind) for kind in type(env).__mro__):
        return policy
    return own_draw(env)


def own_draw(env: Any) -> Callable[[Any], Any] | None:
    """The function that draws random actions instead of the env's specs: an overridden `rand_action` or `rand_step`.

    Args:
        env: an env of reap or torchrl.

    Returns:
        A function from a TensorDict of observations to one that also holds actions; None if nothing is overridden.
    """
    inner = env
    while any(kind.__name__ == "TransformedEnv" for kind in type(inner).__mro__):
        inner = inner.base_env  # whose rand_action that of a TransformedEnv calls
    if _library_of(type(inner).rand_action) not in LIBRARIES:
        return env.rand_action
    return None if _library_of(type(env).rand_step) in LIBRARIES else RandStepDraw(env)


class RandStepDraw:
    """Draws the actions with which an env's own `rand_step` would step; the caller steps the env.

    Args:
        env: the env.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Call `rand_step` with `step` disabled, and return the argument that it passes to `step`.

        Raises:
            OptionError: it does not call `self.step`.
        """
        taken: list[Any] = []

        def step(given: Any) -> Any:
            taken.append(given)
            return given

        vars(self._env)["step"] = step
        try:
            self._env.rand_step(tensordict)
        finally:
            del vars(self._env)["step"]
        if len(taken) != 1:
            raise OptionError(
                f"{type(self._env).__name__}.rand_step: expected it to call self.step(tensordict) once, found {len(taken)} "
                "calls; override rand_action instead, which only draws"
            )
        return taken[0]


def _is_envs(kind: type) -> bool:
    return kind.__name__ == "EnvBase" and _library_of(kind) in LIBRARIES


def _library_of(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]
