"""Which frames are put in the place of others, and which only get another reward, return or priority.

What tells one frame from another is what its env said at its begin and its end, and whole numbers and flags: ids, counts, ends,
masks. Where none of these changes, the frame is still the one that came behind the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from reap.data.storages.bits import carried, differing
from reap.data.storages.items import Leaves
from reap.keys import Key
from reap.recording.buffers import after
from reap.recording.layout import Field

if TYPE_CHECKING:
    from reap.data.storages.tensors import TensorStorage


def replaced(storage: TensorStorage, places: Tensor, leaves: Leaves) -> NDArray[np.int64]:
    """Those of some places whose frame gives way to another.

    Args:
        storage: what holds the frames.
        places: `[B]`.
        leaves: what is put there, `[B, *item]` under each key.
    """
    fields = storage.schema.fields if storage.schema is not None else {}
    is_another = np.zeros(len(places), np.bool_)
    for key in _telling(fields):
        held = storage.values(key, places)
        is_another |= differing(held, leaves[key].to(held.device))
    return places.numpy()[is_another]


def _telling(fields: Mapping[Key, Field]) -> set[Key]:
    """The keys of what tells one frame from another."""
    begins = carried(fields)
    numbers = (key for key, field in fields.items() if not field.is_object and _is_whole(field))
    return {*begins, *map(after, begins), *numbers}


def _is_whole(field: Field) -> bool:
    return not (field.dtype.is_floating_point or field.dtype.is_complex)
