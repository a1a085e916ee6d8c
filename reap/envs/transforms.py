"""The import path of torchrl's transforms: all names of `torchrl.envs.transforms`, with a `TransformedEnv` for reap's envs."""

from typing import TYPE_CHECKING, Any

from reap.envs.adapters.transformed import TransformedEnv as TransformedEnv  # noqa: PLC0414  passed on
from reap.optional import load

if TYPE_CHECKING:
    from torchrl.envs.transforms import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]


def __getattr__(name: str) -> Any:
    """A name of torchrl's module, imported on demand; `__all__` lists all of them."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'reap.envs.transforms' has no attribute {name!r}")
    theirs = load("torchrl.envs.transforms", "reap.envs.transforms")
    if name == "__all__":
        return sorted(name for name in dir(theirs) if name[0].isupper())
    return getattr(theirs, name)
