"""`ReplayBuffer`: experience that is written in a ring and sampled from.

    extend(data) -> transforms -> writer -> storage   [*rows, columns, *item]
    sample(n)    <- transforms <- take   <- sampler: places

A sample is taken, then checked: frames in columns that were being written at the same time are drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from reap.data.buffers.face import BufferFace
from reap.data.buffers.feeders import Feeders
from reap.data.buffers.own_index import read_with_index, without_index
from reap.data.buffers.prefetch import Prefetcher, Sample
from reap.data.buffers.sample_notes import SampleNotes
from reap.data.consistent_sample import pinned, spread, take_sample
from reap.data.rows import time_last, valid_rows
from reap.data.samplers.base import Sampler
from reap.data.saving.checkpoint import BufferParts
from reap.data.storages.base import Storage
from reap.data.storages.core import require_dims
from reap.data.storages.edits.fitting import under_key
from reap.data.writers import RoundRobinWriter, Writer
from reap.errors import OptionError
from reap.keys import is_key
from reap.option_values import positive, switch

Index = Any


class ReplayBuffer(BufferFace):
    """A ring of frames from which samples are drawn.

    Args:
        storage: holds the frames; a `LazyTensorStorage(1_000)` unless given, or a `ListStorage(1_000)` for a `collate_fn`.
        sampler: chooses the frames of a sample; a `RandomSampler` unless given.
        writer: decides where new frames go; a `RoundRobinWriter` unless given.
        transform: changes samples, written data, or both; see `Transforms`.
        write_transform: a function that changes written data.
        batch_size: frames of a sample, unless `sample()` gets a number.
        prefetch: number of samples that a thread makes ahead; None or 0 for none.
        pin_memory: put samples into page-locked memory, from which CUDA devices can copy; no effect without such a device.
        collate_fn: changes frames from the storage before transforms.
        shared: let other processes write and sample.
        dim_extend: the dimension of written data that is time; the last of the storage's `ndim` unless given.
        generator: the source of random numbers; torch's own unless given.
        transform_factory: a function that makes the transform, in the process that uses the buffer first.
        checkpointer: saves the storage, and holds the hooks of saves; a `TensorStorageCheckpointer` unless given.
        compilable: code under `torch.compile` may write to it, sample from it and set priorities: these calls are made as they
            are, between its graphs (`fullgraph=True` cannot hold them). As the storage or the writer says unless given.
        delayed_init: make storage, sampler, writer and transform at the first use; with a `transform_factory` unless given.

    Raises:
        OptionError: an invalid argument.

    Example:
        >>> from tensordict import TensorDict
        >>> from reap.data import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
        >>> buffer.extend(TensorDict({"a": torch.arange(6)}, [6]))
        tensor([2, 3, 0, 1, 2, 3])
        >>> buffer[:]["a"], buffer.sample().shape
        (tensor([2, 3, 4, 5]), torch.Size([2]))
    """

    def __init__(
        self,
        *,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: Writer | Callable[[], Writer] | None = None,
        transform: Any = None,
        write_transform: Callable[[Any], Any] | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        shared: bool = False,
        dim_extend: int | None = None,
        generator: torch.Generator | None = None,
        transform_factory: Callable[[], Any] | None = None,
        checkpointer: Any = None,
        compilable: bool | None = None,
        delayed_init: bool | None = None,
    ) -> None:
        self.batch_size = positive(batch_size, "batch_size") if batch_size is not None else None
        if transform is not None and transform_factory is not None:
            raise OptionError("ReplayBuffer: expected either transform or transform_factory, got both")
        if collate_fn is not None and not callable(collate_fn):
            raise OptionError(f"collate_fn: expected a function, got {collate_fn!r}")
        self._collate, self._generator = collate_fn, generator
        self._pins = switch(pin_memory, "pin_memory") and torch.cuda.is_available()
        self.feeders, self.sampled = Feeders(), SampleNotes()
        self._prefetch = positive(prefetch, "prefetch") if prefetch else 0
        parts = {
            "storage": storage,
            "sampler": sampler,
            "writer": writer,
            "transform": transform,
            "write_transform": write_transform,
            "transform_factory": transform_factory,
            "checkpointer": checkpointer,
            "dim_extend": dim_extend,
            "shared": switch(shared, "shared"),
            "compilable": None if compilable is None else switch(compilable, "compilable"),
        }
        if transform_factory is not None if delayed_init is None else switch(delayed_init, "delayed_init"):
            self._unbuilt = parts
        else:
            self._build(**parts)

    # ------------------------------------------------------------------ writing

    def add(self, data: Any) -> Index:
        """Write one item, or one column of a storage with several rows.

        Args:
            data: `[*item]`, or `[*rows]` for a storage with `ndim > 1`.

        Returns:
            Its index.

        Raises:
            SpecMismatch: it differs in form from the first write.
        """
        self.feeders.check()
        return self._write(self._storage.single(data))

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Index:
        """Write several items along the time dimension.

        Args:
            data: a TensorDict, tensorclass or tensor `[*rows, time]`, dicts and tuples of tensors with these first dimensions,
                or a list of items. Frames with a False `("collector", "mask")` are left out of a storage with one dimension.
            update_priority: for a `TensorDictReplayBuffer`.

        Returns:
            Their indices `[n]`, or `[n, ndim]` for a storage with several dimensions, row by row.

        Raises:
            SpecMismatch: they differ in form from the first write; nothing is written.
            OptionError: `update_priority` is given, and this buffer reads no priorities from data.
        """
        if update_priority is not None:
            raise OptionError("extend: update_priority is for a TensorDictReplayBuffer; this one reads no priorities from data")
        return self._extend(data)

    def _extend(self, data: Any) -> Index:
        self.feeders.check()
        return self._write(time_last(self._storage.together(data), self._time, self._storage.ndim))

    def _write(self, data: Any) -> Index:
        """Write data whose time is the last of the storage's dimensions."""
        storage = self._storage
        written = self._prepared(data)
        if written is None:
            return torch.zeros((0,) if storage.ndim == 1 else (0, storage.ndim), dtype=torch.int64)
        require_dims(written, storage.ndim)
        places = self._writer.write(storage, *valid_rows(data, written, storage.ndim))
        if self._writer.replaces:
            self._note_replaced(places)
        return storage.as_index(places)

    def _note_replaced(self, places: Tensor) -> None:
        with self._lock:
            self._sampler.replaced(places, self._storage)

    def _prepared(self, data: Any) -> Any:
        """Data after the write transforms."""
        written = self._transforms.before_write(data, self._storage)
        return without_index(written) if self._writer.tells_index else written

    def _edited(self, data: Any, dims: int) -> Any:
        """Data with this number of batch dimensions, after the write transforms, which replace others."""
        written = self._transforms.before_edit(data, self._storage, dims)
        return without_index(written) if self._writer.tells_index else written

    # ------------------------------------------------------------------ sampling

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A sample, in new memory.

        Args:
            batch_size: number of frames; the buffer's default if None.
            return_info: also return a dictionary, with `"index"` and the sampler's information about each frame. With several
                dimensions the index is a tuple, with a tensor for each of them.

        Raises:
            OptionError: no size is given, here or at construction; or an argument of another type.
            CallOrderError: the buffer holds too few frames.
        """
        gives_info = switch(return_info, "return_info")
        sample = self._next(batch_size)
        return (sample.data, sample.info) if gives_info else sample.data

    def _next(self, batch_size: int | None = None) -> Sample:
        self.feeders.check()
        size = self._size_of_sample(batch_size)
        sample = self._sample(size) if self._prefetcher is None else self._prefetcher.next(size)
        self.feeders.note_sampled(size)
        self.sampled.note(sample)
        return sample

    def _size_of_sample(self, batch_size: int | None) -> int:
        size = batch_size if batch_size is not None else self.batch_size or self._sampler.default_size
        if size is None:
            raise OptionError("sample: expected a batch_size, here or where the buffer is made, got none")
        return positive(size, "batch_size")

    def _sample(self, size: int) -> Sample:
        with self._lock:
            draw, data = take_sample(self._storage, self._sampler, size, self._generator)
            is_last, claimed = self._sampler.ran_out, self._storage.ring.claimed
        collate = self._collate or self._storage.collate
        if collate is not None:
            data = collate(data)
        if self._pins:
            data = pinned(data)
        index = self._storage.as_index(draw.places)
        info = {"index": index if index.ndim == 1 else tuple(index.unbind(-1)), **draw.info}
        data = self._noted(data, {"index": index, **draw.info})
        if self._transforms.reads:
            data = self._transforms.after_read(data, self._storage)
        return Sample(data, info, is_last, claimed)

    def _noted(self, data: Any, info: Mapping[str, Any]) -> Any:
        """The sample with information about its frames."""
        if self._writer.tells_index and isinstance(data, TensorDictBase):
            data.set("index", spread(info["index"], data))
        return data

    def __iter__(self) -> Iterator[Any]:
        """Samples of `batch_size`, endlessly; with a sampler without replacement, until each frame was sampled once."""
        is_last = False
        while not is_last:
            data, _, is_last, _ = self._next()
            yield data

    def update_priority(self, index: Index, priority: Any) -> None:
        """Set the priorities of frames; only samplers with priorities use them.

        Args:
            index: their indices, as `extend` and `sample(return_info=True)` give them.
            priority: one number for all frames, or one for each; not negative.

        Raises:
            OptionError: a priority is negative or not a number, or there are too few or too many; nothing is changed then.
        """
        self.feeders.check()
        self._sampler.update_priority(index, priority, self._storage)

    # ------------------------------------------------------------------ contents

    def __len__(self) -> int:
        """Number of frames that can be sampled."""
        self.feeders.check()
        return len(self._storage)

    @property
    def write_count(self) -> int:
        """Number of frames written since it was made or emptied, including overwritten ones."""
        self.feeders.check()
        return self._storage.ring.written

    def __getitem__(self, index: Any) -> Any:
        """The contents `[*rows, time]` at an index of any kind that a tensor takes.

        Slices and numbers give views of the memory of the buffer, which later writes change. A key gives the values under it.
        """
        self.feeders.check()
        if is_key(index):
            return self[:][index]
        return read_with_index(self._storage, index) if self._writer.tells_index else self._storage.at(index)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrite frames, or the values of all frames under a key.

        Args:
            index: of any kind that a tensor takes, or a key.
            data: broadcast to the index. A TensorDict may lack keys, whose values stay; new keys get zeros in all other frames,
                which only a storage in RAM that is not shared can do.

        Raises:
            SpecMismatch: the data differ in form from the first write; nothing is changed.
        """
        self.feeders.check()
        if is_key(index):
            data, index = under_key(index, data, self[:].batch_size), slice(None)
        storage = self._storage
        places = storage.places_at(index)
        written = self._edited(storage.at_places(places, data), max(1, places.ndim))
        self._note_replaced(storage.put_at(places, written))

    # ------------------------------------------------------------------ processes

    def share(self) -> ReplayBuffer:
        """Let other processes write to it and sample from it: those that get it by pickling. Returns the buffer.

        A buffer that `multiprocessing` sends to another process, as an argument or in a queue, is shared automatically.

        Raises:
            OptionError: its storage cannot be shared.
        """
        with self._lock:
            self._storage.share()
        return self

    def check_sending(self) -> None:
        """Raise OptionError if its writer cannot write to a shared buffer; see `reap.system.sending`."""
        self._writer.check_sharing()

    def for_writers(self) -> ReplayBuffer:
        """A buffer over the same frames for processes that only write, without the parts needed for sampling.

        Raises:
            OptionError: its storage, or its writer, cannot be shared.
        """
        if not isinstance(self._writer, RoundRobinWriter):
            raise OptionError(f"replay buffer: a {type(self._writer).__name__} writes in one process")
        end = ReplayBuffer(storage=self.share().storage, writer=self._writer, dim_extend=self._time)
        end._transforms = self._transforms
        return end

    @contextmanager
    def _at_rest(self) -> Generator[BufferParts]:
        prefetcher = self._prefetcher or Prefetcher(self._sample, 0)
        with prefetcher.at_rest(), self._lock:
            yield BufferParts(self._storage, self._sampler, self._writer, self._generator, prefetcher)
            if prefetcher.made()[1]:
                self._prefetcher = prefetcher

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Use this generator from now on; None for torch's own. Samples made ahead are kept."""
        with self._lock:
            self._generator = generator

    def __repr__(self) -> str:
        if not self.initialized:
            return f"{type(self).__name__}(made at first use, batch_size={self.batch_size})"
        parts = f"storage={self._storage!r}, sampler={self._sampler!r}, writer={self._writer!r}"
        return f"{type(self).__name__}({len(self._storage)} frames, {parts}, batch_size={self.batch_size})"
