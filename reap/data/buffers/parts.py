"""Makes the parts of a buffer: storage, sampler, writer, each given as such or by a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reap.data.peers import conversion
from reap.data.samplers.base import Sampler
from reap.data.samplers.uniform import RandomSampler
from reap.data.saving.hooks import StorageCheckpointerBase
from reap.data.storages.base import Storage
from reap.data.storages.lazy import LazyTensorStorage
from reap.data.writers import RoundRobinWriter, Writer
from reap.errors import OptionError, shown


def storage_of(given: Storage | Callable[[], Storage] | None, default: Callable[[int], Storage] = LazyTensorStorage) -> Storage:
    """The storage, given as such or by a function; for None, one of 1,000 frames.

    Args:
        given: the storage, or a function.
        default: the kind of storage for None.

    Raises:
        OptionError: anything else.
    """
    return _made(given, Storage, "storage", lambda: default(1_000))


def sampler_of(given: Sampler | Callable[[], Sampler] | None) -> Sampler:
    """The sampler, given as such or by a function; a `RandomSampler` for None.

    Raises:
        OptionError: anything else.
    """
    return _made(given, Sampler, "sampler", RandomSampler)


def writer_of(given: Writer | Callable[[], Writer] | None) -> Writer:
    """The writer, given as such or by a function; a `RoundRobinWriter` for None.

    Raises:
        OptionError: anything else.
    """
    return _made(given, Writer, "writer", RoundRobinWriter)


def checkpointed(given: Any, storage: Storage) -> StorageCheckpointerBase:
    """The checkpointer for a buffer's storage, given as such or by a function.

    Raises:
        OptionError: anything else, or a checkpointer with its own format.
    """
    made = _made(given, StorageCheckpointerBase, "checkpointer", storage.default_checkpointer)
    if type(made).dumps is not StorageCheckpointerBase.dumps or type(made).loads is not StorageCheckpointerBase.loads:
        raise OptionError(
            f"checkpointer: expected the format of reap, got {made!r}, which writes another: a buffer saves all its parts at "
            "one moment, in one folder. Use hooks, which change the frames, or call checkpointer.dumps(buffer.storage, path)"
        )
    return made


def _made(given: Any, kind: type[Any], name: str, default: Callable[[], Any]) -> Any:
    made = default() if given is None else given if isinstance(given, kind) or not callable(given) else given()
    if not isinstance(made, kind):
        raise OptionError(
            f"{name}: expected a {kind.__name__} of reap.data, got {type(made).__name__}: {shown(made):.100}{conversion(made)}"
        )
    return made
