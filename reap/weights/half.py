"""`WeightHalf`: one version of the weights as it lies in a block, to be read in another process.

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
"""The place of the version in a record; what the others mean is up to the owner of the block."""


class WeightHalf:
    """The arrays of one version.

    Args:
        block: where it lies.
        name: the first part of its keys, as in `fields_of`.
        described: the weights.

    Attributes:
        record: three integers, the first of them the version.
    """

    def __init__(self, block: Block, name: str, described: WeightLayout) -> None:
        self.record = block.array((name, "record"))
        self._present = block.array((name, "present"))
        self._weights = {one: block.tensor((name, "weights", one)) for one in described}

    @staticmethod
    def fields_of(name: str, described: WeightLayout) -> dict[Key, Field]:
        """The fields that a block needs for it."""
        own: dict[Key, Field] = {
            (name, "record"): Field((3,), torch.int64),
            (name, "present"): Field((len(described),), torch.uint8),
        }
        return own | {(name, "weights", one): field for one, field in described.items()}

    def fill(self, given: Mapping[str, torch.Tensor], before: WeightHalf) -> None:
        """Copy weights into this place; those that were not given are those of the version before, if it had them."""
        self._present[:] = [name in given or there for name, there in zip(self._weights, before._present, strict=True)]
        sources = [given[name] if name in given else before._weights[name] for name in self._weights]
        copy_weights(self._weights.values(), sources)

    def load_into(self, policy: Any) -> None:
        """Copy the weights into a policy, in place."""
        own = weights_by_name(policy)
        names = [name for name, there in zip(self._weights, self._present, strict=True) if there]
        copy_weights([own[name] for name in names], [self._weights[name] for name in names])
