"""Distinguishes frames that are replaced by others from frames that only get a new reward, return or priority.

A frame is identified by its observations before and after the step, and by its integers and flags: ids, counts, done flags,
masks. As long as none of these changes, it still follows the previous frame.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from reap.data.storages.bits import carried, differing
from reap.data.storages.frame_store import FrameStore
from reap.data.storages.items import Leaves
from reap.keys import Key
from reap.recording.buffers import after
from reap.recording.layout import Field


def replaced_places(storage: FrameStore, places: Tensor, leaves: Leaves) -> NDArray[np.int64]:
    """The places among these whose frames are replaced by others.

    Args:
        storage: the storage that holds the frames.
        places: `[B]`.
        leaves: the new values, `[B, *item]` under each key.
    """
    fields = storage.schema.fields if storage.schema is not None else {}
    is_another = np.zeros(len(places), np.bool_)
    for key in _identifying(fields):
        held = storage.values(key, places)
        is_another |= differing(held, leaves[key].to(held.device))
    return places.numpy()[is_another]


def _identifying(fields: Mapping[Key, Field]) -> set[Key]:
    """The keys that identify a frame."""
    begins = carried(fields)
    numbers = (key for key, field in fields.items() if not field.is_object and _is_whole(field))
    return {*begins, *map(after, begins), *numbers}


def _is_whole(field: Field) -> bool:
    return not (field.dtype.is_floating_point or field.dtype.is_complex)
