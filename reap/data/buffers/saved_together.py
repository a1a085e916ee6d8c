"""`SavedTogether`: several buffers that are saved as one.

    folder   0/ 1/ ...   a save of each buffer
             rest        their number, the generator, samples made ahead

Loading changes all buffers, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reap.data.buffers.prefetch import Prefetcher, Sample
from reap.data.buffers.replay import ReplayBuffer
from reap.data.saving.folders import real, replaced
from reap.data.saving.manifest import MANIFEST, check
from reap.data.saving.plain import decoded, encoded
from reap.data.saving.reading import SavedFolder, whole
from reap.data.saving.rest import REST, read_rest, read_state, write_rest
from reap.errors import SpecMismatch
from reap.option_values import switch
from reap.words import counted


class SavedTogether:
    """Saves and loads buffers with what they have in common.

    Attributes:
        buffers: the buffers, in order.
    """

    buffers: tuple[ReplayBuffer, ...]
    _generator: torch.Generator | None
    _prefetcher: Prefetcher | None

    def state_dict(self) -> dict[str, Any]:
        """The states of the buffers and the generator, and samples made ahead; see `ReplayBuffer.state_dict`."""
        with self._at_rest():
            return {"buffers": [buffer.state_dict() for buffer in self.buffers], **self._rest()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`.

        Raises:
            SpecMismatch: a state of other buffers, or not a state; nothing is changed.
        """
        states = state.get("buffers", ())
        if len(states) != len(self.buffers):
            raise SpecMismatch(
                f"ReplayBufferEnsemble: expected the states of {counted(len(self.buffers), 'buffer')}, got {len(states)}"
            )
        self._load([lambda buffer, one=one: buffer.load_state_dict(one) for one in states], state)

    def dumps(self, path: str | Path) -> None:
        """Save all buffers in a folder, one folder each; see `ReplayBuffer.dumps`."""
        with self._at_rest(), replaced(real(path), REST) as folder:
            for number, buffer in enumerate(self.buffers):
                buffer.dumps(folder / str(number))
            write_rest(folder, {"buffers": len(self.buffers), **self._rest()}, {})

    def loads(self, path: str | Path, verify: bool = True) -> None:
        """Load a save of `dumps`; see `ReplayBuffer.loads`."""
        switch(verify, "verify")
        states, rest = whole(real(path), REST, partial(self._read, verify=verify))
        self._load([lambda buffer, one=one: buffer.load_state_dict(one) for one in states], rest)

    def _read(self, folder: SavedFolder, *, verify: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Read the states of the buffers, and the rest, from a folder that `dumps` wrote."""
        rest, manifest = read_rest(folder, verify=verify)
        if rest.get("buffers") != len(self.buffers):
            raise SpecMismatch(f"ReplayBufferEnsemble: expected {len(self.buffers)} saved buffers, found {rest.get('buffers')}")
        names = [str(number) for number in range(len(self.buffers))]
        if manifest is not None:
            for name in names:
                check(folder, manifest, f"{name}/{MANIFEST}")
        return [read_state(folder.folder(name), verify=verify) for name in names], rest

    save = dump = dumps
    load = loads

    def _at_rest(self) -> AbstractContextManager[None]:
        return self._prefetcher.at_rest() if self._prefetcher else nullcontext()

    def _rest(self) -> dict[str, Any]:
        """The state of everything except the buffers, while no sample is being made."""
        size, samples = self._prefetcher.made() if self._prefetcher else (0, [])
        return {
            "generator": None if self._generator is None else self._generator.get_state(),
            "ahead": {"size": size, "samples": [encoded(tuple(sample)) for sample in samples]},
        }

    def _load(self, loaders: Sequence[Callable[[ReplayBuffer], None]], state: Mapping[str, Any]) -> None:
        """Load all buffers, or none."""
        if not {"generator", "ahead"} <= state.keys():
            raise SpecMismatch("ReplayBufferEnsemble: expected a state from state_dict or dumps, found something else")
        with self._at_rest():
            before = [buffer.state_dict() for buffer in self.buffers]
            try:
                for buffer, load in zip(self.buffers, loaders, strict=True):
                    load(buffer)
                known = {name: kind for buffer in self.buffers for name, kind in buffer.storage.classes.items()}
                ahead = [Sample(*decoded(sample, known)) for sample in state["ahead"]["samples"]]
            except BaseException:
                for buffer, own in zip(self.buffers, before, strict=True):
                    buffer.load_state_dict(own)
                raise
            if self._prefetcher is not None:
                self._prefetcher.put(state["ahead"]["size"], ahead)
            generator = state["generator"]
            if generator is not None:
                self._generator = (self._generator or torch.Generator()).set_state(generator)
                for buffer in self.buffers:
                    buffer.set_rng(self._generator)
