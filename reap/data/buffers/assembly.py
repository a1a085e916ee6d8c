"""`Assembly`: a buffer as a set of parts, made from options at construction or on first use, replaced, copied and pickled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any, Self

import torch

from reap.data.buffers.parts import checkpointed, sampler_of, storage_of, writer_of
from reap.data.buffers.prefetch import Prefetcher, Sample
from reap.data.buffers.sample_notes import SampleNotes
from reap.data.peers import count_as_torchrls, torchrl_class
from reap.data.rows import checked_time
from reap.data.samplers.base import Sampler, require_size
from reap.data.saving.checkpoint import Checkpointed
from reap.data.storages.base import Storage
from reap.data.storages.lazy import LazyTensorStorage
from reap.data.storages.lists import ListStorage
from reap.data.transforms import Transforms
from reap.data.writers import Writer
from reap.option_values import switch
from reap.system.forks import ForkedLocks
from reap.system.sending import SharedWhenSent

BETWEEN_GRAPHS = ("add", "extend", "sample", "update_priority", "update_tensordict_priority")
"""Methods that code under `torch.compile` calls without compiling them."""

_building = RLock()

_forked = ForkedLocks()


class Assembly(Checkpointed, SharedWhenSent):
    """The parts of a buffer.

    Attributes:
        batch_size: frames of a sample, unless `sample()` gets a number.
        sampled: counts of the samples taken in this process.
    """

    batch_size: int | None
    sampled: SampleNotes
    _collate: Callable[[Any], Any] | None
    _prefetch: int
    _storage: Storage
    _sampler: Sampler
    _writer: Writer
    _transforms: Transforms
    _time: int
    _lock: Any
    _prefetcher: Prefetcher | None

    compilable = False
    """Whether code under `torch.compile` may call the buffer."""

    @abstractmethod
    def _sample(self, size: int) -> Sample:
        """Take a sample of this number of frames."""

    # ------------------------------------------------------------------ made

    def _build(self, **options: Any) -> None:
        """Make the parts for these options."""
        self._storage = storage_of(options["storage"], LazyTensorStorage if self._collate is None else ListStorage)
        self._set_checkpointer(options["checkpointer"])
        self._sampler = sampler_of(options["sampler"])
        require_size(self._sampler, self.batch_size)
        self._writer = writer_of(options["writer"])
        self._writer.check(self._storage)
        self._writer.register_storage(self._storage)
        self._time = checked_time(options["dim_extend"], self._storage.ndim)
        factory = options["transform_factory"]
        self._transforms = Transforms(options["transform"] if factory is None else factory(), options["write_transform"])
        self._lock = _forked.add(RLock())
        self._sampler.serve(self._storage, self._lock)
        self._prefetcher = self._make_prefetcher()
        wanted, implied = options["compilable"], self._storage.compilable or self._writer.compilable
        self._leave_graphs(implied if wanted is None else wanted)
        if options["shared"]:
            self.share()

    def _make_prefetcher(self) -> Prefetcher | None:
        return Prefetcher(self._sample, self._prefetch) if self._prefetch else None

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

    # ------------------------------------------------------------------ read

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

    # ------------------------------------------------------------------ replaced

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
            OptionError: not a transform, or `invert` is not a bool.
        """
        switch(invert, "invert")
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

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Call a function before frames are written to files; see `StorageCheckpointerBase`."""
        self._storage.register_save_hook(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Call a function after frames were read from files; see `StorageCheckpointerBase`."""
        self._storage.register_load_hook(hook)

    def _set_checkpointer(self, given: Any) -> None:
        if given is not None:
            self._storage.checkpointer = checkpointed(given, self._storage)

    # ------------------------------------------------------------------ copied and pickled

    def __getstate__(self) -> dict[str, Any]:
        if not self.initialized:
            return vars(self)
        with self._at_rest() as parts:
            ahead = None if self._storage.control.is_shared else parts.prefetcher.made()
        own = {name: value for name, value in vars(self).items() if name not in (*BETWEEN_GRAPHS, "_iterator")}
        return {**own, "_prefetcher": ahead, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if not self.initialized:
            return
        ahead = state["_prefetcher"]
        self._lock = _forked.add(RLock())
        self._writer.register_storage(self._storage)
        self._sampler.serve(self._storage, self._lock)
        self._prefetcher = self._make_prefetcher()
        self._leave_graphs(self.compilable)
        if ahead is not None:
            with self._at_rest() as parts:
                parts.prefetcher.put(*ahead)
