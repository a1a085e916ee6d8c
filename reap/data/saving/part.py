"""`SavedPart`: a storage, sampler or writer that is saved by itself, in a folder of the same form as a save of a buffer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from reap.data.saving.folders import real, replaced
from reap.data.saving.frame_files import write_frames
from reap.data.saving.reading import whole
from reap.data.saving.rest import REST, read_state, refused, write_rest
from reap.keys import Key
from reap.system.disk import room

NO_FRAMES: Mapping[Key, Tensor] = {}


class SavedPart:
    """A part of a buffer. `buffer.dumps` saves all parts together, at one moment."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Its state, as tensors, numbers, strings, lists and dicts."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Go on from a `state_dict`."""

    def dumps(self, path: str | Path) -> None:
        """Save the `state_dict` in a folder, which is there in full or not at all.

        Raises:
            OptionError: something else is at the path.
            DiskFull: there is no room for it.
        """
        with self._to_save() as (state, frames, dims):
            save_part(path, {**state, "kind": type(self).__name__}, frames, dims)

    def loads(self, path: str | Path) -> None:
        """Load a save of `dumps`; no code from the files is run.

        Raises:
            OptionError: nothing was saved there.
            SpecMismatch: the save is damaged, or of another kind of part; nothing is changed.
        """
        state = load_part(path)
        with refused(str(path)):
            self._from_save(state)

    @contextmanager
    def _to_save(self) -> Generator[tuple[dict[str, Any], Mapping[Key, Tensor], int]]:
        """A context with the state, the frames in it, and how many of their dimensions are the batch's."""
        yield {"state": self.state_dict()}, NO_FRAMES, 0

    def _from_save(self, state: Mapping[str, Any]) -> None:
        self.load_state_dict(state["state"])


def save_part(path: str | Path, state: Mapping[str, Any], frames: Mapping[Key, Tensor], dims: int) -> None:
    """Save a state and its frames in a folder.

    Args:
        path: the folder.
        state: plain data.
        frames: `[*batch, *item]` under each key.
        dims: how many dimensions are the batch's.
    """
    target, nbytes = real(path), sum(frame.nbytes for frame in frames.values())
    with room(target, lambda: nbytes, "replay buffer: a save"), replaced(target, REST) as folder:
        files, checksums = write_frames(folder, frames, dims)
        write_rest(folder, {**state, "files": files}, checksums)


def load_part(path: str | Path) -> dict[str, Any]:
    """What `save_part` saved; frames are mapped.

    Raises:
        OptionError: nothing was saved there.
        SpecMismatch: the save is damaged.
    """
    folder = real(path)
    with refused(str(folder)):
        return whole(folder, REST, partial(read_state, verify=True))
