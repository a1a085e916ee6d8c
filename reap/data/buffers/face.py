"""`BufferFace`: the parts of a buffer, made at construction or on first use, and further methods of torchrl's buffers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from reap.data.buffers.one_by_one import OneByOne
from reap.data.buffers.parts import checkpointed, sampler_of, storage_of, writer_of
from reap.data.buffers.prefetch import Prefetcher
from reap.data.buffers.sample_notes import UNKNOWN, SampleNotes, age_stats
from reap.data.peers import count_as_torchrls, torchrl_class
from reap.data.samplers.base import Sampler, require_size
from reap.data.saving.checkpoint import Checkpointed
from reap.data.storages.base import Storage
from reap.data.storages.edits.fitting import under_key
from reap.data.transforms import Transforms
from reap.data.writers import Writer
from reap.errors import OptionError
from reap.system.sending import SharedWhenSent

BETWEEN_GRAPHS = ("add", "extend", "sample", "update_priority", "update_tensordict_priority")
"""Methods that code under `torch.compile` calls without compiling them."""

_building = RLock()


class BufferFace(OneByOne, Checkpointed, SharedWhenSent):
    """Access to the parts of a buffer, and methods that build on others.

    Attributes:
        batch_size: frames of a sample, unless `sample()` gets a number.
        sampled: counts of the samples taken in this process.
    """

    batch_size: int | None
    sampled: SampleNotes
    _storage: Storage
    _sampler: Sampler
    _writer: Writer
    _transforms: Transforms
    _time: int
    _lock: Any
    _prefetcher: Prefetcher | None

    compilable = False
    """Whether code under `torch.compile` may call the buffer."""

    # ------------------------------------------------------------------ parts

    def _build(self, **options: Any) -> None:
        """Make the parts for these options."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Make the parts of a buffer with `delayed_init`, when one is first needed."""
        if name.startswith("__") or "_unbuilt" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _building:
            options: Mapping[str, Any] | None = vars(self).pop("_unbuilt", None)
            if options is not None:
                try:
                    self._build(**options)
                except BaseException:
                    self._unbuilt = options
                    raise
        return getattr(self, name)

    def _leave_graphs(self, wanted: bool) -> None:
        """Exempt methods from `torch.compile`, if requested; imports torch's compiler only then."""
        self.compilable = wanted
        if wanted:
            for name in BETWEEN_GRAPHS:
                if hasattr(type(self), name):
                    setattr(self, name, torch.compiler.disable(getattr(self, name)))

    @property
    def initialized(self) -> bool:
        """Whether its parts are made; with `delayed_init` they are made on first use."""
        return "_unbuilt" not in vars(self)

    @property
    def dim_extend(self) -> int:
        """The dimension of written data that is time."""
        return self._time

    @property
    def storage(self) -> Storage:
        """The storage of the frames."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """The sampler, which chooses frames."""
        count_as_torchrls(Sampler, "Sampler")
        return self._sampler

    @property
    def writer(self) -> Writer:
        """The writer, which decides where new frames go."""
        return self._writer

    @property
    def transform(self) -> Transforms:
        """Its transforms, in the order in which samples pass through them."""
        return self._transforms

    @property
    def _service_cls(self) -> Any:
        """The torchrl class as which torchrl's own checks accept this buffer; None if torchrl is not loaded."""
        return torchrl_class("ReplayBuffer")

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Choose frames with another sampler from now on. Returns the old one."""
        made, before = sampler_of(sampler), self._sampler
        require_size(made, self.batch_size)
        with self._without_prefetched():
            self._sampler = made
            made.serve(self._storage, self._lock)
        return before

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Replace the storage; its frames stay in the old one, which is returned.

        Args:
            storage: the new one.
            collate_fn: replaces the buffer's own function too, if given.
        """
        made, before = storage_of(storage), self._storage
        self._writer.check(made)
        with self._without_prefetched():
            self._storage = made
            self.sampled.forget_ages()
            if collate_fn is not None:
                self._collate = collate_fn
            self._sampler.empty()
            self._sampler.serve(made, self._lock)
            self._writer.register_storage(made)
            self._writer.empty()
        return before

    def set_writer(self, writer: Writer) -> Writer:
        """Write with another writer from now on. Returns the old one."""
        made, before = writer_of(writer), self._writer
        made.check(self._storage)
        made.register_storage(self._storage)
        self._writer = made
        return before

    def append_transform(self, transform: Any, *, invert: bool = False) -> Self:
        """Append a transform; see `insert_transform`. Returns the buffer."""
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> Self:
        """Insert a transform among the existing ones; see `Transforms`. Returns the buffer.

        Args:
            index: its position, in the order in which samples pass through transforms.
            transform: a function, or an object with `forward` or `inv`.
            invert: its `forward` changes data that are written, and its `inv` samples.

        Raises:
            OptionError: not a transform.
        """
        with self._without_prefetched():
            self._transforms.insert(index, transform, invert=invert)
        return self

    @contextmanager
    def _without_prefetched(self) -> Generator[None]:
        """A context in which no sample is made; samples made ahead are dropped."""
        if self._prefetcher is not None:
            self._prefetcher.close()  # before the lock is taken: the thread may wait for that
        with self._lock:
            yield

    # ------------------------------------------------------------------ what follows from the other calls

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all frames; memory is kept.

        Args:
            empty_write_count: also reset `write_count` to 0.
        """
        with self._without_prefetched():
            self._storage.ring.empty(forget_written=empty_write_count)
            self._sampler.empty()
            self._writer.empty()

    def break_trajectories(self) -> None:
        """Let no trajectory continue into the next write of this process, because frames in between were lost."""
        self._writer.streams.restart()

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether there are frames to sample.

        Args:
            batch_size: frames of the sample; that of the buffer if None.

        Raises:
            OptionError: no size is given, here or at construction.
        """
        size = batch_size if batch_size is not None else self.batch_size
        if size is None:
            raise OptionError("can_sample: expected a batch_size, here or where the buffer is made, got none")
        with self._lock:
            return self._sampler.can_sample(self._storage, size)

    def mark_update(self, index: Any) -> None:
        """Tell the sampler that these frames have been replaced; a prioritized one gives them the priority of new frames."""
        self._sampler.mark_update(index, storage=self._storage)

    def stats(self) -> dict[str, int | float | bool]:
        """Its size, capacity and counts, by name.

        `utilization` is the fraction of the capacity in use; `write_count` counts frames written since it was made or emptied;
        `samples` and `sampled_frames` count what this process has sampled. `sample_age_mean`, `_min` and `_max` are about the
        last sample: frames written between a frame and its sample, 0 for the newest. NaN before the first sample, and with
        a writer that replaces other frames than the oldest. (For a buffer of trajectories, read items for frames.)
        """
        if not self.initialized:
            return {"size": 0, "write_count": 0, "initialized": False}
        size, capacity = len(self), self._storage.max_size
        return {
            "size": size,
            "capacity": capacity,
            "utilization": size / capacity,
            "write_count": self._storage.ring.written,
            "initialized": True,
            **self.sampled.counts(),
            **age_stats(self._ages()),
        }

    def _ages(self) -> Tensor:
        """Ages of the frames in the last sample, `[n]`; empty if unknown."""
        return UNKNOWN if not self.initialized or self._writer.replaces else self.sampled.ages(self._storage)

    def read_all_in_order(self, end: int | None = None) -> Any:
        """All frames in storage order, or the first `end`."""
        return self[:] if end is None else self[:end]

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first frames: as many as in the data, or `end`."""
        self[: len(data) if end is None else end] = data

    def set_(self, key: Any, value: Any) -> Self:
        """Overwrite the values of all frames under a key. Returns the buffer."""
        self[key] = value
        return self

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Overwrite the values of the frames at an index under a key. Returns the buffer."""
        self[index] = under_key(key, value, self[index].batch_size)
        return self

    def update_(self, data: Mapping[Any, Any] | TensorDictBase) -> Self:
        """Overwrite the values of all frames under the keys of data. Returns the buffer."""
        self[:] = data if isinstance(data, TensorDictBase) else TensorDict(dict(data), self[:].batch_size)
        return self

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: Any, data: Any) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    # ------------------------------------------------------------------ saving

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Call a function before frames are written to files; see `StorageCheckpointerBase`."""
        self._storage.register_save_hook(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Call a function after frames were read from files; see `StorageCheckpointerBase`."""
        self._storage.register_load_hook(hook)

    def _set_checkpointer(self, given: Any) -> None:
        if given is not None:
            self._storage.checkpointer = checkpointed(given, self._storage)
