"""`WeightHalf`: one version of the weights in a block that another process reads.

| record: version, ... | present: a byte per weight | weights, by name ... |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from reap.keys import Key
from reap.recording.layout import Block, Field
from reap.weights.weight_layout import WeightLayout, copy_weights, weights_by_name

VERSION = 0
"""The index of the version in a record; the block's owner defines the others."""


class WeightHalf:
    """The arrays of one version.

    Args:
        block: the block that holds it.
        name: the first part of its keys, as in `fields_of`.
        described: the weights.

    Attributes:
        record: three integers, the first being the version.
    """

    def __init__(self, block: Block, name: str, described: WeightLayout) -> None:
        self.record = block.array((name, "record"))
        self._present = block.array((name, "present"))
        self._weights = {one: block.tensor((name, "weights", one)) for one in described}

    @staticmethod
    def fields_of(name: str, described: WeightLayout) -> dict[Key, Field]:
        """The fields that a block needs for one half."""
        own: dict[Key, Field] = {
            (name, "record"): Field((3,), torch.int64),
            (name, "present"): Field((len(described),), torch.uint8),
        }
        return own | {(name, "weights", one): field for one, field in described.items()}

    def fill(self, given: Mapping[str, torch.Tensor], before: WeightHalf) -> None:
        """Copy weights into this half; weights that were not given come from the previous version, if it had them."""
        self._present[:] = [name in given or there for name, there in zip(self._weights, before._present, strict=True)]
        sources = [given[name] if name in given else before._weights[name] for name in self._weights]
        copy_weights(self._weights.values(), sources)

    def load_into(self, policy: Any) -> None:
        """Copy the weights into a policy, in place."""
        own = weights_by_name(policy)
        names = [name for name, there in zip(self._weights, self._present, strict=True) if there]
        copy_weights([own[name] for name in names], [self._weights[name] for name in names])
