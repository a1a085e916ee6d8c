"""`StoreNext`: stores the values under `"next"` like all others; has the same methods as `RebuildNext`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from reap.data.storages.frame_store import FrameStore
from reap.data.storages.items import Leaves
from reap.data.storages.next_values.side_store import Sparse
from reap.data.storages.ring.ring import Claim
from reap.keys import Key
from reap.recording.layout import Field


class StoreNext:
    """Stores all values."""

    def fresh(self) -> StoreNext:
        """An equal object for a storage that is still empty."""
        return StoreNext()

    def stored_fields(self, fields: Mapping[Key, Field]) -> Mapping[Key, Field]:
        """The fields that the storage itself must hold."""
        return fields

    def allocate(self, fields: Mapping[Key, Field], places: int, make: Callable[[int], Sparse]) -> None:
        """Allocate memory for the values kept outside the storage.

        Args:
            fields: shape and dtype of all values.
            places: maximum number of frames.
            make: makes memory of a number of bytes.
        """

    @property
    def nbytes(self) -> int:
        """Number of bytes kept outside the storage."""
        return 0

    def prepare(self, storage: FrameStore, leaves: Leaves, skipped: int) -> Any:
        """Examine data before they are written; the result is for `write` or `load`.

        Args:
            storage: the storage that they are written to.
            leaves: `[*rows, columns, *item]`.
            skipped: number of first columns that are not written.

        Raises:
            MemoryError: there is not enough memory for the values kept outside the storage.
        """

    def write(self, storage: FrameStore, leaves: Leaves, claim: Claim, prepared: Any) -> None:
        """Keep the values that cannot be rebuilt, after all others were written to the claimed columns."""

    def complete(self, storage: FrameStore, places: Tensor, leaves: Leaves) -> Leaves:
        """Add the values that are not stored to values taken from these places."""
        return leaves

    def editing(self, storage: FrameStore, places: Tensor, leaves: Leaves) -> AbstractContextManager[None]:
        """A context in which the storage overwrites the frames at these places with these values `[B, *item]`."""
        return nullcontext()

    def contents(self, storage: FrameStore, columns: int) -> dict[Key, Tensor]:
        """The values that are not stored, `[*rows, columns, *item]`."""
        return {}

    def at(self, storage: FrameStore, index: Any) -> Any:
        """The frames at any index that a tensor accepts."""
        return storage.viewed(index)

    def load(self, storage: FrameStore, frames: Mapping[Key, Tensor], prepared: Any, claimed: int) -> None:
        """Load the frames of another storage, after the stored values were copied.

        Args:
            storage: the storage that loads them.
            frames: `[*rows, columns, *item]` under each key, by place.
            prepared: the result of `prepare` for these frames.
            claimed: number of columns that the other storage had claimed.
        """

    def copy_from(self, other: Any) -> None:
        """Load the values that another such object keeps outside its storage."""
