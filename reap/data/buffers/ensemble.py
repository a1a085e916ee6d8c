"""`ReplayBufferEnsemble`: one sample from several buffers.

buffers   0: online   1: expert   2: ...
             |            |
chosen    [1, 0, 1]       by p, or each once
             |
sample    [chosen, frames of each]   stacked; "index" says which buffer, and which of its frames
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from reap.data.buffers.member_index import index_of, inner_of, numbers_of, weights_of, with_index
from reap.data.buffers.one_by_one import OneByOne
from reap.data.buffers.prefetch import Prefetcher, Sample
from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.sample_notes import SampleNotes, Stats, summed
from reap.data.buffers.saved_together import SavedTogether
from reap.data.buffers.tensordict_buffers import by_item
from reap.data.peers import conversion
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.storages.base import Storage
from reap.data.storages.lists import ListStorage, collated
from reap.data.transforms import on_samples
from reap.errors import CallOrderError, OptionError, shown
from reap.option_values import positive, switch


class ReplayBufferEnsemble(SavedTogether, OneByOne):
    """Samples from several buffers, each with its own storage, sampler, writer and transforms.

    A sample is `[buffers, frames]`, with `batch_size` divided by the number of chosen buffers from each. If the buffers
    hold different keys or shapes, it is stacked lazily.

    Args:
        buffers: the buffers, or storages to sample from uniformly.
        transform: changes the sample as a whole.
        batch_size: default number of frames in a sample.
        collate_fn: makes a sample from the list of the buffers' samples; by default stacks them.
        p: relative probability of each buffer; equal by default.
        sample_from_all: each buffer is sampled from, once.
        num_buffer_sampled: number of buffers chosen for a sample, with replacement; by default the number of buffers.
        prefetch: number of samples that a thread makes ahead; None or 0 for none.
        generator: the source of random numbers, for the buffers too; None leaves the buffers' generators alone.

    Raises:
        OptionError: an invalid argument.

    Example:
        >>> from tensordict import TensorDict
        >>> buffers = [ReplayBuffer(), ReplayBuffer()]
        >>> for number, buffer in enumerate(buffers):
        ...     _ = buffer.extend(TensorDict({"a": torch.full((5,), number)}, [5]))
        >>> ensemble = ReplayBufferEnsemble(*buffers, batch_size=4, sample_from_all=True)
        >>> ensemble.sample()["a"]
        tensor([[0, 0],
                [1, 1]])
    """

    def __init__(
        self,
        *buffers: ReplayBuffer | Storage,
        transform: Any = None,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        p: Tensor | Sequence[float] | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        prefetch: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.buffers = tuple(map(_as_buffer, buffers))
        """The buffers, in order."""
        if not self.buffers:
            raise OptionError("ReplayBufferEnsemble: expected at least one buffer, got none")
        if switch(sample_from_all, "sample_from_all") and p is not None:
            raise OptionError("ReplayBufferEnsemble: expected either p or sample_from_all=True, got both")
        self.batch_size = None if batch_size is None else positive(batch_size, "batch_size")
        self._weights = None if sample_from_all else weights_of(p, len(self.buffers))
        count = len(self.buffers) if sample_from_all or num_buffer_sampled is None else num_buffer_sampled
        self._count = positive(count, "num_buffer_sampled")
        self._collate, self.sampled = collate_fn, SampleNotes()
        self._transforms: list[Callable[[Any], Any]] = []
        self._prefetch = positive(prefetch, "prefetch") if prefetch else 0
        self._prefetcher = self._make_prefetcher()
        if transform is not None:
            self.append_transform(transform)
        self._generator = generator
        if generator is not None:
            self.set_rng(generator)

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Use this generator, in the buffers too; None for torch's own."""
        self._generator = generator
        for buffer in self.buffers:
            buffer.set_rng(generator)

    def share(self) -> ReplayBufferEnsemble:
        """Let other processes write to the buffers and sample from them; see `ReplayBuffer.share`. Returns the ensemble."""
        for buffer in self.buffers:
            buffer.share()
        return self

    def _make_prefetcher(self) -> Prefetcher | None:
        return Prefetcher(self._sample, self._prefetch) if self._prefetch else None

    # ------------------------------------------------------------------ sampling

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A sample `[buffers, frames]`, in new memory; TensorDicts include `"index"`.

        Args:
            batch_size: number of frames over all buffers; the ensemble's default if None.
            return_info: return a dictionary with it; under `"index"` a TensorDict of `"buffer_ids"` and `"index"`, which
                `update_priority` takes, and the information that the samplers of all buffers have about each frame.

        Raises:
            OptionError: no size is given, here or before, or it is not a multiple of the number of buffers chosen.
            CallOrderError: a buffer holds too few frames.
        """
        gives_info = switch(return_info, "return_info")
        size = batch_size if batch_size is not None else self.batch_size
        if size is None:
            raise OptionError("sample: expected a batch_size, here or where the ensemble is made, got none")
        if positive(size, "batch_size") % self._count:
            raise OptionError(f"batch_size: expected a multiple of {self._count}, the number of buffers sampled, got {size}")
        for buffer in self.buffers:
            buffer.feeders.check()
        sample = self._sample(size) if self._prefetcher is None else self._prefetcher.next(size)
        self.sampled.note(sample)
        return (sample.data, sample.info) if gives_info else sample.data

    def _sample(self, size: int) -> Sample:
        chosen = self._chosen()
        parts = [self.buffers[number].sample(size // self._count, return_info=True) for number in chosen]
        infos = [{**info, "index": index_of(number, info["index"])} for number, (_, info) in zip(chosen, parts, strict=True)]
        info = {key: collated([one[key] for one in infos]) for key in infos[0] if all(key in one for one in infos)}
        samples = [with_index(data, one["index"]) for (data, _), one in zip(parts, infos, strict=True)]
        sample = self._stacked(samples, chosen) if self._collate is None else self._collate(samples)
        for function in self._transforms:
            sample = function(sample)
        return Sample(sample, info, is_last=False)

    def _stacked(self, samples: list[Any], chosen: list[int]) -> Any:
        """Join the buffers' samples into one; a list if one of them is a list of items that cannot be stacked."""
        storages = [self.buffers[number].storage for number in chosen]
        if any(isinstance(data, list) and isinstance(of, ListStorage) for data, of in zip(samples, storages, strict=True)):
            return samples
        return collated(samples)

    def _chosen(self) -> list[int]:
        """Choose the buffers for a sample."""
        if self._weights is None:
            return list(range(self._count))
        return torch.multinomial(self._weights, self._count, replacement=True, generator=self._generator).tolist()

    def __iter__(self) -> Iterator[Any]:
        """Samples of `batch_size` without end."""
        while True:
            yield self.sample()

    def update_priority(self, index: TensorDictBase, priority: Any) -> None:
        """Set the priorities of frames; only buffers whose samplers have priorities use them.

        Args:
            index: the entry `"index"` of samples, or a part of it.
            priority: a number for all, or one for each. Where items are trajectories, those of the frames of one are reduced
                as its sampler says.

        Raises:
            OptionError: a priority that is negative or not a number.
        """
        values = torch.as_tensor(priority, dtype=torch.float64)
        values = values.reshape(*values.shape, *[1] * (index.ndim - values.ndim)).expand(index.batch_size)
        if isinstance(index, LazyStackedTensorDict):
            for part, value in zip(index.unbind(0), values.unbind(0), strict=True):
                self.update_priority(part, value)
            return
        ids: Any = index["buffer_ids"].reshape(-1)
        places: Any = index["index"].flatten(0, max(0, index.ndim - 1))
        for number in ids.unique().tolist():
            here, buffer = ids == number, self.buffers[number]
            if buffer.storage.item_dims and isinstance(buffer.sampler, PrioritizedSampler):
                buffer.update_priority(*by_item(buffer, places[here], values.reshape(-1)[here]))
            else:
                buffer.update_priority(places[here], values.reshape(-1)[here])

    def append_transform(self, transform: Any) -> ReplayBufferEnsemble:
        """Change samples by another function, or the `forward` of an object, after the existing ones. Returns the ensemble."""
        return self.insert_transform(len(self._transforms), transform)

    def insert_transform(self, index: int, transform: Any) -> ReplayBufferEnsemble:
        """Change samples by another function at a place among the existing ones; see `append_transform`."""
        function = on_samples(transform)
        self._drop_prefetched()
        self._transforms.insert(index, function)
        return self

    @property
    def transform(self) -> tuple[Callable[[Any], Any], ...]:
        """The functions that change samples, in order."""
        return tuple(self._transforms)

    def _drop_prefetched(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()

    # ------------------------------------------------------------------ contents

    def __len__(self) -> int:
        """The number of buffers."""
        return len(self.buffers)

    def __getitem__(self, index: Any) -> Any:
        """A buffer for a number; an ensemble for several, or for `...`; with a second index, the frames there, stacked.

        Args:
            index: a number, slice, range, list, array or tensor, or `...`; or a tuple of one of these, and an index of the
                buffers' contents.

        Raises:
            OptionError: another kind of index.
            IndexError: there is no such buffer.
        """
        if isinstance(index, tuple):
            chosen, inner = numbers_of(index[0], len(self)), inner_of(index)
            if isinstance(chosen, int):
                return self.buffers[chosen][inner]
            return collated([self.buffers[number][inner] for number in chosen])
        chosen = numbers_of(index, len(self))
        return self.buffers[chosen] if isinstance(chosen, int) else self._part(chosen)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrite frames of one buffer, `ensemble[0, 2] = data`, or of several, each with its part of the data.

        Raises:
            CallOrderError: the index selects buffers only, not their frames.
        """
        if not isinstance(index, tuple) or len(index) < 2:
            raise CallOrderError(
                "ReplayBufferEnsemble: expected two indices, of a buffer and of its contents: ensemble[0, 2] = data"
            )
        chosen, inner = numbers_of(index[0], len(self)), inner_of(index)
        if isinstance(chosen, int):
            self.buffers[chosen][inner] = data
            return
        for number, part in zip(chosen, data, strict=True):
            self.buffers[number][inner] = part

    def _part(self, numbers: list[int]) -> ReplayBufferEnsemble:
        weights = None if self._weights is None else self._weights[numbers]
        part = ReplayBufferEnsemble(
            *[self.buffers[number] for number in numbers],
            batch_size=self.batch_size,
            collate_fn=self._collate,
            p=weights,
            sample_from_all=weights is None,
            prefetch=self._prefetch,
        )
        part._transforms, part._generator = list(self._transforms), self._generator
        return part

    @property
    def write_count(self) -> int:
        """Frames written to all buffers."""
        return sum(buffer.write_count for buffer in self.buffers)

    def stats(self) -> Stats:
        """Sums over the buffers, and the ages of the frames of the last sample of each; see `ReplayBuffer.stats`."""
        ages = [buffer._ages() for buffer in self.buffers]  # pyright: ignore[reportPrivateUsage]
        return summed([buffer.stats() for buffer in self.buffers], ages, self.sampled.counts())

    def extend(self, data: Any) -> None:
        """Raise CallOrderError: write to the buffers instead.

        Raises:
            CallOrderError: always.
        """
        raise CallOrderError("ReplayBufferEnsemble: expected data for one of its buffers; write ensemble[0].extend(data)")

    add = extend

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all frames from all buffers; see `ReplayBuffer.empty`."""
        switch(empty_write_count, "empty_write_count")
        self._drop_prefetched()
        for buffer in self.buffers:
            buffer.empty(empty_write_count)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_iterator"} | {"_prefetcher": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prefetcher = self._make_prefetcher()

    def __repr__(self) -> str:
        choice = "all" if self._weights is None else f"{self._count} by {self._weights.tolist()}"
        return f"ReplayBufferEnsemble({', '.join(map(repr, self.buffers))}, sampled from: {choice})"


def _as_buffer(given: Any) -> ReplayBuffer:
    if isinstance(given, Storage):
        return ReplayBuffer(storage=given)
    if isinstance(given, ReplayBuffer):
        return given
    raise OptionError(
        f"ReplayBufferEnsemble: expected buffers or storages of reap.data, got {type(given).__name__}: {shown(given):.100}"
        f"{conversion(given)}"
    )
