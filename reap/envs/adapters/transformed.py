"""`TransformedEnv`: torchrl's class, extended to wrap envs of reap."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from reap.optional import load

PRESENT = "torchrl.envs.transforms"
REAL = "RealTransformedEnv"


class _Door(type):
    """Metaclass that defines the real class, and imports torchrl, on first use."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if any(isinstance(base, _Door) for base in bases):
            real = tuple(_class() if isinstance(base, _Door) else base for base in bases)
            return type(real[0])(name, real, namespace)
        return super().__new__(mcs, name, bases, namespace)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _class()(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        module = sys.modules.get(PRESENT)
        return module is not None and isinstance(instance, module.TransformedEnv)


class _TransformedEnv(metaclass=_Door):
    """torchrl's `TransformedEnv`, which also accepts envs of reap.

    Args:
        env: an env of reap or of torchrl.
        transform: a transform of torchrl's, from `reap.envs.transforms`.
        **kwargs: arguments of torchrl's class.

    Raises:
        ImportError: torchrl is not installed.

    Example:
        >>> from reap.envs import GymEnv, TransformedEnv
        >>> from reap.envs.transforms import StepCounter
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
        >>> env.rollout(3)["next", "step_count"].flatten().tolist()
        [1, 2, 3]
    """


@cache
def _class() -> Any:
    base: Any = load("torchrl.envs.transforms", "TransformedEnv").TransformedEnv

    class TransformedEnv(base):
        """torchrl's class, which converts an env of reap to one of torchrl."""

        def __init__(self, env: Any = None, transform: Any = None, **kwargs: Any) -> None:
            inner = kwargs.pop("base_env", env)
            super().__init__(inner.as_torchrl() if hasattr(inner, "as_torchrl") else inner, transform, **kwargs)

    TransformedEnv.__qualname__ = REAL  # where pickle looks for the class
    return TransformedEnv


def __getattr__(name: str) -> Any:
    if name == REAL:
        return _class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    from torchrl import envs  # pyright: ignore[reportMissingTypeStubs]

    class TransformedEnv(envs.TransformedEnv):
        """See `_TransformedEnv`."""

        def __init__(self, env: Any = None, transform: Any = None, **kwargs: Any) -> None: ...

else:
    TransformedEnv = _TransformedEnv
    TransformedEnv.__name__ = TransformedEnv.__qualname__ = "TransformedEnv"
