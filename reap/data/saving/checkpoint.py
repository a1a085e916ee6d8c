"""What a buffer needs to go on as if it had never stopped, taken at one moment and put back.

    format | storage: control (ring, origins), schema, objects | sampler | writer | generator | samples made ahead
           | frames: tensors [*rows, columns, *item], by key

In a folder each field of the frames is a file that `TensorDict.load_memmap` reads, and the rest is one file that
`torch.load(weights_only=True)` reads: loading runs no code of the file's.

The ring's lock is held while a state is taken: writers wait before they claim columns. What they had claimed counts as never
written, so that the state holds published columns only.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reap.data.prefetch import Prefetcher, Sample
from reap.data.samplers.base import Sampler
from reap.data.saving.folders import found, replaced
from reap.data.saving.frame_files import mapped_frames, write_frames
from reap.data.saving.plain import decoded, encoded
from reap.data.storages.base import Storage
from reap.data.writers import Writer
from reap.errors import CallOrderError, OptionError, ReapError, SpecMismatch
from reap.keys import Key
from reap.shield import uninterrupted

FORMAT = 1
REST = "reap.pt"
"""The file of all that is no frame."""

_RUBBISH = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, AssertionError)
"""What code raises that is given something else than what it wrote."""


@dataclass
class Parts:
    """What a buffer consists of, while nobody samples.

    Attributes:
        storage: where frames lie.
        sampler: what chooses them.
        writer: what says where they go.
        generator: where the random numbers come from; None for torch's own, which is not the buffer's to keep.
        prefetcher: what makes samples ahead, if anything does.
    """

    storage: Storage
    sampler: Sampler
    writer: Writer
    generator: torch.Generator | None
    prefetcher: Prefetcher | None


class Checkpointed:
    """A buffer that can be saved, and go on from what was saved."""

    @abstractmethod
    def _at_rest(self) -> AbstractContextManager[Parts]:
        """In the body nobody samples; what the buffer consists of."""

    @abstractmethod
    def set_rng(self, generator: torch.Generator | None) -> None:
        """Take random numbers from this generator from now on; None for torch's own. Samples made ahead stay."""

    def state_dict(self) -> dict[str, Any]:
        """Contents, counts, priorities and whatever else it takes to go on, as tensors, numbers, strings, lists and dicts.

        Torch's own generator is not in it, which a buffer without `generator=` uses: `torch.get_rng_state` has that.

        Raises:
            OptionError: the buffer holds Python objects that are no plain data.
        """
        with self._at_rest() as parts, _taken(parts) as (state, frames):
            return {**state, "frames": {key: frame.to("cpu", copy=True) for key, frame in frames.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of a buffer with parts of the same kind and the same `max_size`.

        Raises:
            SpecMismatch: it is that of another kind of buffer, or no state; nothing is changed.
            CallOrderError: somebody is writing.
        """
        with uninterrupted(), self._at_rest() as parts, _refused("the state"):
            self.set_rng(_restored(parts, state))

    def dumps(self, path: str | Path) -> None:
        """Save the `state_dict` in a folder: one file per key, which `TensorDict.load_memmap` reads, and one of the rest.

        The folder is there in full or not at all: a save that is interrupted leaves the one before.

        Raises:
            OptionError: something else lies at the path, or the buffer holds Python objects that are no plain data.
        """
        with self._at_rest() as parts, replaced(Path(path).resolve(), REST) as folder:
            with _taken(parts) as (state, frames):
                files = write_frames(folder, frames, parts.storage.ndim)
            torch.save({**state, "files": files}, folder / REST)

    def loads(self, path: str | Path) -> None:
        """Go on from what `dumps` saved in a buffer with parts of the same kind and the same `max_size`.

        No code of the files is run.

        Raises:
            OptionError: no buffer was saved there.
            SpecMismatch: what lies there is damaged, or of another kind of buffer; nothing is changed.
            CallOrderError: somebody is writing.
        """
        folder = found(Path(path).resolve(), REST)
        with uninterrupted(), self._at_rest() as parts, _refused(str(folder)):
            state = read_rest(folder)
            self.set_rng(_restored(parts, {**state, "frames": mapped_frames(folder, state["files"])}))

    save, load = dumps, loads


@contextmanager
def _taken(parts: Parts) -> Generator[tuple[dict[str, Any], dict[Key, Tensor]]]:
    """The state without frames, and these as views of the storage, which nobody changes in the body."""
    storage = parts.storage
    has_frames = storage.is_initialised  # what another process wrote first is mapped now: that takes the lock
    with storage.control.lock:
        yield _rest(parts), storage.frames() if has_frames else {}


def _rest(parts: Parts) -> dict[str, Any]:
    size, samples = parts.prefetcher.made() if parts.prefetcher else (0, [])
    try:
        return {
            "format": FORMAT,
            "storage": parts.storage.state(),
            "sampler": {"kind": type(parts.sampler).__name__, "state": copy.deepcopy(parts.sampler.state_dict())},
            "writer": {"kind": type(parts.writer).__name__, "state": copy.deepcopy(parts.writer.state_dict())},
            "generator": None if parts.generator is None else parts.generator.get_state(),
            "ahead": {"size": size, "samples": [encoded(tuple(sample)) for sample in samples]},
        }
    except TypeError as error:
        raise OptionError(
            f"replay buffer: expected tensors, TensorDicts or plain data to save, found something else: {error}"
        ) from error


def _restored(parts: Parts, state: Mapping[str, Any]) -> torch.Generator | None:
    _expect(state["format"], FORMAT, "the format")
    _expect(state["sampler"]["kind"], type(parts.sampler).__name__, "a sampler of the kind")
    _expect(state["writer"]["kind"], type(parts.writer).__name__, "a writer of the kind")
    if parts.storage.ring.is_being_written:
        raise CallOrderError("replay buffer: expected nobody to write while it is loaded; pause or stop the collector first")
    generator = _generator(parts, state["generator"])
    ahead = [Sample(*decoded(sample, parts.storage.classes)) for sample in state["ahead"]["samples"]]
    before = parts.sampler.state_dict(), parts.writer.state_dict()
    try:
        parts.sampler.load_state_dict(copy.deepcopy(state["sampler"]["state"]))
        parts.writer.load_state_dict(copy.deepcopy(state["writer"]["state"]))
        parts.storage.load_state(state["storage"], state["frames"])
        parts.sampler.resume(parts.storage)
    except BaseException:
        parts.sampler.load_state_dict(before[0])
        parts.writer.load_state_dict(before[1])
        raise
    if parts.prefetcher is not None:
        parts.prefetcher.put(state["ahead"]["size"], ahead)
    return generator


def _expect(given: Any, expected: Any, what: str) -> None:
    if given != expected:
        raise SpecMismatch(f"replay buffer: expected {what} {expected!r} in the state, got {given!r}; nothing was changed")


def _generator(parts: Parts, saved: Tensor | None) -> torch.Generator | None:
    """The buffer's generator as it was when the state was taken; the buffer's own if it had none then."""
    if saved is None:
        return parts.generator
    return (parts.generator or torch.Generator()).set_state(saved.clone())


def read_rest(folder: Path) -> dict[str, Any]:
    """All that is no frame in a folder that `dumps` wrote.

    Raises:
        SpecMismatch: the file is damaged.
    """
    file = folder / REST
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise SpecMismatch(f"{file}: expected what dumps wrote, found it damaged ({error}); nothing was changed") from error


@contextmanager
def _refused(source: str) -> Generator[None]:
    """In the body, what a state causes that nobody wrote is a SpecMismatch."""
    try:
        yield
    except (ReapError, MemoryError):
        raise
    except _RUBBISH as error:
        raise SpecMismatch(
            f"replay buffer: expected what state_dict or dumps gave, found something else in {source} "
            f"({type(error).__name__}: {error}); nothing was changed"
        ) from error
