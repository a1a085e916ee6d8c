"""Checkpoints: saves and restores the whole state of a buffer at one moment.

    format | storage: control (ring, origins), schema, objects | sampler | writer | generator | samples made ahead
           | frames: tensors [*rows, columns, *item], by key

In a folder each field of the frames is a file that `TensorDict.load_memmap` reads, the rest is one file that
`torch.load(weights_only=True)` reads, and a manifest holds their checksums. Loading runs no code from the files.

The ring's lock is held while a state is taken: writers wait before they claim columns. Claimed columns count as never
written, so the state holds published columns only.
"""

from __future__ import annotations

import copy
import logging
from abc import abstractmethod
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reap.data.buffers.prefetch import Prefetcher, Sample
from reap.data.samplers.base import Sampler
from reap.data.saving.folders import real, replaced
from reap.data.saving.frame_files import Frames, write_frames
from reap.data.saving.plain import decoded, encoded
from reap.data.saving.reading import whole
from reap.data.saving.rest import REST, RUBBISH, read_state, refused, write_rest
from reap.data.storages.base import Storage
from reap.data.storages.schema import sizes_from
from reap.data.writers import Writer
from reap.errors import OptionError, SpecMismatch, text_of
from reap.keys import Key
from reap.option_values import switch
from reap.system.disk import room
from reap.system.interrupts import deferring_interrupts

log = logging.getLogger("reap.data")

FORMAT = 1


@dataclass
class BufferParts:
    """The parts of a buffer while it is not being sampled.

    Attributes:
        storage: holds the frames.
        sampler: chooses frames.
        writer: decides where new frames go.
        generator: the source of random numbers; None for torch's own, which does not belong to the buffer.
        prefetcher: holds samples that were made ahead.
    """

    storage: Storage
    sampler: Sampler
    writer: Writer
    generator: torch.Generator | None
    prefetcher: Prefetcher


class Checkpointed:
    """A buffer that can be saved and loaded."""

    @abstractmethod
    def _at_rest(self) -> AbstractContextManager[BufferParts]:
        """A context with the parts of the buffer, in which no sample is taken."""

    @abstractmethod
    def set_rng(self, generator: torch.Generator | None) -> None:
        """Use this generator from now on; None for torch's own. Samples made ahead are kept."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: contents, counts, priorities and more, as tensors, numbers, strings, lists and dicts.

        Torch's own generator, which a buffer without `generator=` uses, is not included; see `torch.get_rng_state`.

        Raises:
            OptionError: the buffer holds Python objects that are not plain data.
        """
        with self._at_rest() as parts, _taken(parts) as (state, frames):
            return {**state, "frames": {key: frame.to("cpu", copy=True) for key, frame in frames.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict` of a buffer with parts of the same kind and the same `max_size`.

        Raises:
            SpecMismatch: a state of another kind of buffer, or not a state; nothing is changed.
            CallOrderError: a process is writing.
        """
        with deferring_interrupts(), self._at_rest() as parts, refused("the state"):
            self.set_rng(_restored(parts, state))

    def dumps(self, path: str | Path) -> None:
        """Save the `state_dict` in a folder: one file per key, which `TensorDict.load_memmap` reads, and one of the rest.

        The folder is written completely or not at all: an interrupted save, or one on a full disk, leaves the previous one.

        Raises:
            OptionError: something else is at the path, or the buffer holds Python objects that are not plain data.
            DiskFull: there is no room for it.
        """
        target, nbytes = real(path), 0
        with self._at_rest() as parts, room(target, lambda: nbytes, "replay buffer: a save"), replaced(target, REST) as folder:
            with _taken(parts) as (state, frames):
                nbytes = sum(frame.nbytes for frame in frames.values())
                given = Frames(frames, parts.storage.ndim, parts.storage.sizes)
                files, checksums = write_frames(folder, parts.storage.checkpointer.before_save(given, folder))
            write_rest(folder, {**state, "files": files}, checksums)

    def loads(self, path: str | Path, verify: bool = True) -> None:
        """Load a save of `dumps` from a buffer with parts of the same kind and the same `max_size`.

        No code from the files is run. All data are from one save, even if another process saves to the path at the same time.

        Args:
            path: the folder.
            verify: compare the checksum of each file first, which takes a second for each GB or so, and reads all of it.

        Raises:
            OptionError: no buffer was saved there, or `verify` is not a bool.
            SpecMismatch: the save is damaged, or from another kind of buffer; nothing is changed.
            CallOrderError: a process is writing.
        """
        folder = real(path)
        switch(verify, "verify")
        with refused(str(folder)):
            state = whole(folder, REST, partial(read_state, verify=verify))
        with deferring_interrupts(), self._at_rest() as parts, refused(str(folder)):
            read = Frames(state["frames"], parts.storage.ndim, sizes_from(state["storage"]))
            frames = parts.storage.checkpointer.after_load(read)
            self.set_rng(_restored(parts, {**state, "frames": frames}))

    save = dump = dumps
    load = loads


@contextmanager
def _taken(parts: BufferParts) -> Generator[tuple[dict[str, Any], dict[Key, Tensor]]]:
    """The state without frames, and the frames as views of the storage; they do not change in this context."""
    storage = parts.storage
    has_frames = storage.is_initialised  # maps the first write of another process, which takes the lock
    with storage.control.lock:
        yield _rest(parts), storage.frames() if has_frames else {}


def _rest(parts: BufferParts) -> dict[str, Any]:
    size, samples = parts.prefetcher.made()
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
            f"replay buffer: expected tensors, TensorDicts or plain data to save, found something else: {text_of(error)}"
        ) from error


def _restored(parts: BufferParts, state: Mapping[str, Any]) -> torch.Generator | None:
    """Replace the state of a buffer; return its new generator.

    The whole state is checked before any of it is loaded. The storage, which also checks that no process writes, is loaded
    first, because it cannot be restored; everything loaded after it is known to fit.
    """
    _expect(state["format"], FORMAT, "the format")
    _expect(state["sampler"]["kind"], type(parts.sampler).__name__, "a sampler of the kind")
    _expect(state["writer"]["kind"], type(parts.writer).__name__, "a writer of the kind")
    parts.storage.ring.require_unwritten()
    generator = _generator(state["generator"])
    size = state["ahead"]["size"]
    ahead = [Sample(*decoded(sample, parts.storage.classes)) for sample in state["ahead"]["samples"]]
    before = parts.sampler.state_dict(), parts.writer.state_dict()
    try:
        parts.sampler.load_state_dict(copy.deepcopy(state["sampler"]["state"]))
        parts.writer.load_state_dict(copy.deepcopy(state["writer"]["state"]))
        parts.storage.load_state(state["storage"], state["frames"])
    except BaseException:
        parts.sampler.load_state_dict(before[0])
        parts.writer.load_state_dict(before[1])
        raise
    _resume(parts)
    parts.prefetcher.put(size, ahead)
    if generator is None or parts.generator is None:
        return generator or parts.generator
    return parts.generator.set_state(generator.get_state())


def _resume(parts: BufferParts) -> None:
    """Tell the sampler about the loaded frames: from its state, or by reading them all."""
    try:
        parts.sampler.resume(parts.storage)
    except RUBBISH:
        log.warning("%r: its state does not fit the frames of the loaded buffer; it reads all of them again", parts.sampler)
        parts.sampler.repair()


def _expect(given: Any, expected: Any, name: str) -> None:
    if given != expected:
        raise SpecMismatch(f"replay buffer: expected {name} {expected!r} in the state, got {given!r}; nothing was changed")


def _generator(saved: Tensor | None) -> torch.Generator | None:
    """A generator in the state of the buffer's generator when it was saved; None if it had none."""
    return None if saved is None else torch.Generator().set_state(saved.clone())
