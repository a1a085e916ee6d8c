"""The import path of torchrl's transforms: all names of `torchrl.envs.transforms`, with a `TransformedEnv` for reap's envs."""

from typing import TYPE_CHECKING, Any

from reap.envs.adapters.transformed import TransformedEnv
from reap.optional import load

if TYPE_CHECKING:
    from torchrl.envs.transforms import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]

__all__ = ["TransformedEnv"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'reap.envs.transforms' has no attribute {name!r}")
    return getattr(load("torchrl.envs.transforms", f"reap.envs.transforms.{name}"), name)
