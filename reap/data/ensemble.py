"""`ReplayBufferEnsemble`: one sample from several buffers.

buffers   0: online   1: expert   2: ...
             |            |
chosen    [1, 0, 1]       by p, or each once
             |
sample    [chosen, frames of each]   stacked; "index" says which buffer, and which of its frames
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from reap.data.replay import ReplayBuffer
from reap.data.saving.checkpoint import REST, read_rest, read_state, write_rest
from reap.data.saving.folders import real, replaced
from reap.data.saving.manifest import MANIFEST, check
from reap.data.saving.reading import SavedFolder, whole
from reap.data.storages.base import Storage, positive
from reap.data.storages.lists import collated
from reap.data.transforms import on_samples
from reap.errors import CallOrderError, OptionError, SpecMismatch


class ReplayBufferEnsemble:
    """Samples from several buffers, each with its own storage, sampler, writer and transforms.

    A sample is `[buffers, frames]`: of each buffer that was chosen, `batch_size` divided by their number. Where the buffers
    hold different keys or shapes it is stacked lazily.

    Args:
        buffers: the buffers, or storages to sample from uniformly.
        transform: changes the sample as a whole.
        batch_size: frames of a sample where `sample()` is not told.
        collate_fn: makes a sample of the list of those of the buffers; the default stacks them.
        p: how likely each buffer is, up to a factor; all alike unless given.
        sample_from_all: each buffer is sampled from, once.
        num_buffer_sampled: how many buffers are chosen for a sample, the same one several times perhaps; as many as there are
            unless given.
        generator: where the random numbers come from, those of the buffers too; theirs are left alone unless given.

    Raises:
        OptionError: an argument that cannot work.

    Example:
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
        generator: torch.Generator | None = None,
    ) -> None:
        self.buffers = tuple(map(_as_buffer, buffers))
        """The buffers, in order."""
        if not self.buffers:
            raise OptionError("ReplayBufferEnsemble: expected at least one buffer, got none")
        if sample_from_all and p is not None:
            raise OptionError("ReplayBufferEnsemble: expected either p or sample_from_all=True, got both")
        self.batch_size = None if batch_size is None else positive(batch_size, "batch_size")
        self._weights = None if sample_from_all else _checked(p, len(self.buffers))
        count = len(self.buffers) if sample_from_all or num_buffer_sampled is None else num_buffer_sampled
        self._count = positive(count, "num_buffer_sampled")
        self._collate = collate_fn or collated
        self._transforms: list[Callable[[Any], Any]] = []
        if transform is not None:
            self.append_transform(transform)
        self._generator = generator
        if generator is not None:
            for buffer in self.buffers:
                buffer.set_rng(generator)

    # ------------------------------------------------------------------ sampling

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A sample `[buffers, frames]`, in memory of its own.

        Args:
            batch_size: frames in it, over all buffers; that of the ensemble if None.
            return_info: return a dictionary with it; under `"index"` a TensorDict of `"buffer_ids"` and `"index"`, which
                `update_priority` takes, and what the samplers of all buffers know of each frame.

        Raises:
            OptionError: no size is given, here or before, or it is not a multiple of the number of buffers chosen.
            CallOrderError: there is too little in a buffer.
        """
        size = batch_size if batch_size is not None else self.batch_size
        if size is None:
            raise OptionError("sample: expected a batch_size, here or where the ensemble is made, got none")
        if positive(size, "batch_size") % self._count:
            raise OptionError(f"batch_size: expected a multiple of {self._count}, the number of buffers sampled, got {size}")
        chosen = self._chosen()
        parts = [self.buffers[number].sample(size // self._count, return_info=True) for number in chosen]
        infos = [{**info, "index": _index(number, info["index"])} for number, (_, info) in zip(chosen, parts, strict=True)]
        info = {key: collated([one[key] for one in infos]) for key in infos[0] if all(key in one for one in infos)}
        sample = self._collate([_with_index(data, one["index"]) for (data, _), one in zip(parts, infos, strict=True)])
        for function in self._transforms:
            sample = function(sample)
        return (sample, info) if return_info else sample

    def _chosen(self) -> list[int]:
        """The numbers of the buffers that a sample is made of."""
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
            index: what samples have under `"index"`, or a part of it.
            priority: a number for all, or one for each.

        Raises:
            OptionError: a priority that is negative or no number.
        """
        values = torch.as_tensor(priority, dtype=torch.float64).expand(index.batch_size)
        if isinstance(index, LazyStackedTensorDict):
            for part, value in zip(index.unbind(0), values.unbind(0), strict=True):
                self.update_priority(part, value)
            return
        ids: Any = index["buffer_ids"].reshape(-1)
        places: Any = index["index"].flatten(0, max(0, index.ndim - 1))
        for number in ids.unique().tolist():
            here = ids == number
            self.buffers[number].update_priority(places[here], values.reshape(-1)[here])

    def append_transform(self, transform: Any) -> ReplayBufferEnsemble:
        """Change samples by another function, or the `forward` of an object, behind those there are. Returns the ensemble."""
        self._transforms.append(on_samples(transform))
        return self

    # ------------------------------------------------------------------ contents

    def __len__(self) -> int:
        """How many buffers there are."""
        return len(self.buffers)

    def __getitem__(self, index: Any) -> Any:
        """A buffer for a number, an ensemble for a slice; with a second index, what lies there in each of them, stacked."""
        if isinstance(index, tuple):
            number, *rest = index
            inner = rest[0] if len(rest) == 1 else tuple(rest)
            chosen = self.buffers[number]
            return chosen[inner] if isinstance(chosen, ReplayBuffer) else collated([buffer[inner] for buffer in chosen])
        if not isinstance(index, slice):
            return self.buffers[index]
        weights = None if self._weights is None else self._weights[index]
        part = ReplayBufferEnsemble(
            *self.buffers[index],
            batch_size=self.batch_size,
            collate_fn=self._collate,
            p=weights,
            sample_from_all=weights is None,
        )
        part._transforms, part._generator = list(self._transforms), self._generator
        return part

    @property
    def write_count(self) -> int:
        """Frames written to all buffers."""
        return sum(buffer.write_count for buffer in self.buffers)

    def extend(self, data: Any) -> None:
        """Refuse: each buffer is written by itself.

        Raises:
            CallOrderError: always.
        """
        raise CallOrderError("ReplayBufferEnsemble: expected data for one of its buffers; write ensemble[0].extend(data)")

    add = extend

    def empty(self, empty_write_count: bool = True) -> None:
        """Forget all frames of all buffers."""
        for buffer in self.buffers:
            buffer.empty(empty_write_count)

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """The states of the buffers, and of the generator; see `ReplayBuffer.state_dict`."""
        generator = None if self._generator is None else self._generator.get_state()
        return {"buffers": [buffer.state_dict() for buffer in self.buffers], "generator": generator}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        Raises:
            SpecMismatch: it is that of other buffers, or no state; nothing is changed.
        """
        states = state.get("buffers", ())
        if len(states) != len(self.buffers):
            raise SpecMismatch(f"ReplayBufferEnsemble: expected the states of {len(self)} buffers, got {len(states)}")
        self._load([lambda buffer, one=one: buffer.load_state_dict(one) for one in states], state["generator"])

    def dumps(self, path: str | Path) -> None:
        """Save all buffers in a folder, one folder each; see `ReplayBuffer.dumps`."""
        with replaced(real(path), REST) as folder:
            for number, buffer in enumerate(self.buffers):
                buffer.dumps(folder / str(number))
            generator = None if self._generator is None else self._generator.get_state()
            write_rest(folder, {"buffers": len(self), "generator": generator}, {})

    def loads(self, path: str | Path, verify: bool = True) -> None:
        """Go on from what `dumps` saved; see `ReplayBuffer.loads`."""
        states, generator = whole(real(path), REST, partial(self._read, verify=verify))
        self._load([lambda buffer, one=one: buffer.load_state_dict(one) for one in states], generator)

    def _read(self, folder: SavedFolder, *, verify: bool) -> tuple[list[dict[str, Any]], Tensor | None]:
        """The states of the buffers, and of the generator, in a folder that `dumps` wrote."""
        rest, manifest = read_rest(folder, verify=verify)
        if rest.get("buffers") != len(self):
            raise SpecMismatch(f"ReplayBufferEnsemble: expected {len(self)} saved buffers, found {rest.get('buffers')}")
        names = [str(number) for number in range(len(self))]
        if manifest is not None:
            for name in names:
                check(folder, manifest, f"{name}/{MANIFEST}")
        return [read_state(folder.folder(name), verify=verify) for name in names], rest["generator"]

    save, load = dumps, loads

    def _load(self, loaders: Sequence[Callable[[ReplayBuffer], None]], generator: Tensor | None) -> None:
        """Load each buffer, or none."""
        before = [buffer.state_dict() for buffer in self.buffers]
        try:
            for buffer, load in zip(self.buffers, loaders, strict=True):
                load(buffer)
        except BaseException:
            for buffer, state in zip(self.buffers, before, strict=True):
                buffer.load_state_dict(state)
            raise
        if generator is not None:
            self._generator = (self._generator or torch.Generator()).set_state(generator)
            for buffer in self.buffers:
                buffer.set_rng(self._generator)

    def __repr__(self) -> str:
        choice = "all" if self._weights is None else f"{self._count} by {self._weights.tolist()}"
        return f"ReplayBufferEnsemble({', '.join(map(repr, self.buffers))}, sampled from: {choice})"


def _as_buffer(given: Any) -> ReplayBuffer:
    if isinstance(given, Storage):
        return ReplayBuffer(storage=given)
    if isinstance(given, ReplayBuffer):
        return given
    raise OptionError(
        f"ReplayBufferEnsemble: expected buffers or storages of reap.data, got {type(given).__name__}: {given!r:.100}"
    )


def _checked(p: Tensor | Sequence[float] | None, count: int) -> Tensor:
    weights = torch.ones(count, dtype=torch.float64) if p is None else torch.as_tensor(p, dtype=torch.float64).reshape(-1)
    if len(weights) != count or not (weights >= 0).all() or not 0 < float(weights.sum()) < math.inf:
        raise OptionError(f"p: expected {count} numbers from 0 on, one for each buffer, got {p!r}")
    return weights / weights.sum()


def _index(number: int, index: Tensor) -> TensorDict:
    """Which buffer frames are of, and which of its frames."""
    ids = torch.full(index.shape[:1], number)
    return TensorDict({"buffer_ids": ids, "index": index}, index.shape[:1])


def _with_index(data: Any, index: TensorDict) -> Any:
    """A sample with this index, if it had one of its own."""
    if isinstance(data, TensorDictBase) and "index" in data.keys():
        return data.exclude("index").set("index", index)
    return data
