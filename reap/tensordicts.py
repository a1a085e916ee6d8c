"""TensorDicts made without checks, from leaves that are known to fit.

The checked constructor costs tens of microseconds, this one about one: it runs once per batch, and once per column for policies
that are called with TensorDicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase


def make_tensordict(
    tree: Mapping[str, Any],
    batch_size: torch.Size,
    *,
    names: Sequence[str | None] | None = None,
    device: torch.device | None = None,
) -> TensorDict:
    """A TensorDict of tensors that all start with `batch_size`; a dictionary among them becomes a nested one.

    Args:
        tree: tensors and dictionaries of tensors by name; not kept.
        batch_size: shape that all of them start with.
        names: names of the batch dimensions.
        device: what the TensorDict gives as its device.
    """
    leaves = {
        name: make_tensordict(value, batch_size, names=names, device=device) if isinstance(value, dict) else value
        for name, value in tree.items()
    }
    given: Any = None if names is None else list(names)
    return TensorDict._new_unsafe(leaves, batch_size=batch_size, device=device, names=given)  # pyright: ignore[reportPrivateUsage]


def peek(data: Any, key: tuple[str, ...]) -> Any:
    """The value under a key of a TensorDict, None if there is none; a tenth of what `get` costs.

    Example:
        >>> peek(TensorDict({"next": {"done": torch.ones(2)}}, [2]), ("next", "done"))
        tensor([1., 1.])
    """
    for name in key:
        if not isinstance(data, TensorDictBase):
            return None
        data = data._tensordict.get(name) if type(data) is TensorDict else data.get(name, None)  # pyright: ignore[reportPrivateUsage]
    return data
