"""Access to entries of TensorDicts without the checks of `get` and `set`, for code that runs once per column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reap.keys import NestedKey

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase


def set_leaf(td: TensorDictBase, key: NestedKey, value: torch.Tensor) -> None:
    """Set a tensor that is known to fit, at a tenth of the cost of `set`."""
    if isinstance(key, str):
        td._set_str(key, value, inplace=False, validated=True, non_blocking=False)  # pyright: ignore[reportPrivateUsage]
    else:
        td.set(key, value)


def get_leaf(td: TensorDictBase, key: NestedKey) -> Any:
    """The value under a key, or None, at a tenth of the cost of `get`."""
    if isinstance(key, str):
        return td._get_str(key, None)  # pyright: ignore[reportPrivateUsage]
    return td._get_tuple(key, None)  # pyright: ignore[reportPrivateUsage]
