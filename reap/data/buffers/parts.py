"""The parts that a buffer is given, or told how to make: storage, sampler, writer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reap.data.samplers.base import Sampler
from reap.data.samplers.uniform import RandomSampler
from reap.data.storages.base import Storage
from reap.data.storages.lazy import LazyTensorStorage
from reap.data.writers import RoundRobinWriter, Writer
from reap.errors import OptionError


def storage_of(given: Storage | Callable[[], Storage] | None) -> Storage:
    """The storage that was given, or that the function given makes; a `LazyTensorStorage(1_000)` for None.

    Raises:
        OptionError: something else.
    """
    return _made(given, Storage, "storage", lambda: LazyTensorStorage(1_000))


def sampler_of(given: Sampler | Callable[[], Sampler] | None) -> Sampler:
    """The sampler that was given, or that the function given makes; a `RandomSampler` for None.

    Raises:
        OptionError: something else.
    """
    return _made(given, Sampler, "sampler", RandomSampler)


def writer_of(given: Writer | Callable[[], Writer] | None) -> Writer:
    """The writer that was given, or that the function given makes; a `RoundRobinWriter` for None.

    Raises:
        OptionError: something else.
    """
    return _made(given, Writer, "writer", RoundRobinWriter)


def _made(given: Any, kind: type[Any], name: str, default: Callable[[], Any]) -> Any:
    made = default() if given is None else given if isinstance(given, kind) or not callable(given) else given()
    if not isinstance(made, kind):
        raise OptionError(f"{name}: expected a {kind.__name__} of reap.data, got {type(made).__name__}: {made!r:.100}")
    return made
