"""`SavedPart`: saves a storage, sampler or writer by itself, in the same format as a buffer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from reap.data.saving.folders import real, replaced
from reap.data.saving.frame_files import Frames, write_frames
from reap.data.saving.reading import whole
from reap.data.saving.rest import REST, read_state, refused, write_rest
from reap.keys import NO_SIZES
from reap.system.disk import room

NO_FRAMES = Frames({}, 0, NO_SIZES)


class SavedPart:
    """A part of a buffer. `buffer.dumps` saves all parts together, at one moment."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Its state, as tensors, numbers, strings, lists and dicts."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Resume from a `state_dict`."""

    def dumps(self, path: str | Path) -> None:
        """Save the `state_dict` in a folder, completely or not at all.

        Raises:
            OptionError: something else is at the path.
            DiskFull: there is no room for it.
        """
        save_part(path, {"state": self.state_dict(), "kind": type(self).__name__}, NO_FRAMES)

    def loads(self, path: str | Path) -> None:
        """Load a save of `dumps`; no code from the files is run.

        Raises:
            OptionError: nothing was saved there.
            SpecMismatch: the save is damaged, or from another kind of part; nothing is changed.
        """
        state = load_part(path)
        with refused(str(path)):
            self.load_state_dict(state["state"])


def save_part(path: str | Path, state: Mapping[str, Any], frames: Frames) -> None:
    """Save a state and its frames in a folder.

    Args:
        path: the folder.
        state: plain data.
        frames: the frames that belong to it.
    """
    target, nbytes = real(path), sum(frame.nbytes for frame in frames.values.values())
    with room(target, lambda: nbytes, "replay buffer: a save"), replaced(target, REST) as folder:
        files, checksums = write_frames(folder, frames)
        write_rest(folder, {**state, "files": files}, checksums)


def load_part(path: str | Path) -> dict[str, Any]:
    """Load a save of `save_part`; frames are mapped.

    Raises:
        OptionError: nothing was saved there.
        SpecMismatch: the save is damaged.
    """
    folder = real(path)
    with refused(str(folder)):
        return whole(folder, REST, partial(read_state, verify=True))
