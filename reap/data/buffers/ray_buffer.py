"""`RayReplayBuffer`: a replay buffer in a Ray actor, which any process of the cluster writes to and samples from.

    process, actor, task                  actor
    RayReplayBuffer.extend(data)  ----->  _Held: buffer.extend(data)
    RayReplayBuffer.sample()      <-----  _Held: buffer.sample()

One call at a time reaches the buffer. A copy in another process, by pickle, finds the actor by its name. The workers of a
`RayCollector` have such copies, and write their rollouts themselves.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any, Self

from reap import optional
from reap.data.buffers.one_by_one import OneByOne
from reap.data.buffers.ray_transport import Memory, put_together, taken_apart
from reap.data.buffers.replay import Index, ReplayBuffer
from reap.errors import ClosedError
from reap.ray_start import start_ray


class RayReplayBuffer(OneByOne):
    """A replay buffer in a Ray actor, with the methods of a `ReplayBuffer`.

    It can be sent to other processes, actors and tasks, which all share the buffer. Paths of `dumps` and `loads` are on the
    machine where the actor runs. Closing the buffer leaves Ray running.

    Args:
        ray_init_config: arguments of `ray.init`, which is called if Ray is not running.
        remote_config: options of the actor: `{"num_cpus": 1}`.
        replay_buffer_cls: the class of the actor's buffer.
        options: its arguments. Give storages of files, and other parts that cannot be sent, as functions that make them.

    Raises:
        ImportError: Ray is not installed.
        OptionError: an invalid argument, or no Ray at the address.

    Example (starts Ray)::

        buffer = RayReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
        buffer.extend(TensorDict({"a": torch.arange(8)}, [8]))
        buffer.sample().shape, len(buffer)  # (torch.Size([4]), 8)
        buffer.close()
    """

    def __init__(
        self,
        *,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_config: Mapping[str, Any] | None = None,
        replay_buffer_cls: type[ReplayBuffer] = ReplayBuffer,
        **options: Any,
    ) -> None:
        ray = _ray()
        if not ray.is_initialized():
            start_ray("RayReplayBuffer", ray_init_config or {}, {})
        self._name = f"reap-replay-{secrets.token_hex(8)}"
        context = ray.get_runtime_context()
        self._cluster, self._namespace = context.gcs_address, context.namespace
        self._actor: Any = ray.remote(_Held).options(name=self._name, **(remote_config or {})).remote()
        try:
            self._get(self._actor.build.remote(replay_buffer_cls, options))
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ frames

    def add(self, data: Any) -> Index:
        """Write one item; see `ReplayBuffer.add`."""
        return self._call("add", data)

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Index:
        """Write several items; see `ReplayBuffer.extend`, or that of the actor's buffer."""
        return self._call("extend", data, update_priority=update_priority)

    def break_trajectories(self) -> None:
        """Let no trajectory continue into the next write; see `ReplayBuffer.break_trajectories`."""
        self._call("break_trajectories")

    def sample(self, batch_size: int | None = None, return_info: bool = False, **options: Any) -> Any:
        """A sample; see `ReplayBuffer.sample`, or that of the actor's buffer, whose other options it takes."""
        return self._call("sample", batch_size, return_info, **options)

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether there are frames to sample; see `ReplayBuffer.can_sample`."""
        return self._call("can_sample", batch_size)

    def mark_update(self, index: Index) -> None:
        """Tell the sampler that these frames have been replaced; see `ReplayBuffer.mark_update`."""
        self._call("mark_update", index)

    def stats(self) -> dict[str, int | float | bool]:
        """Its size, capacity and counts, by name; see `ReplayBuffer.stats`. Samples of all processes count."""
        return self._call("stats")

    def read_all_in_order(self, end: int | None = None) -> Any:
        """A copy of all frames in storage order, or of the first `end`."""
        return self._call("read_all_in_order", end)

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first frames; see `ReplayBuffer.write_all`."""
        self._call("write_all", data, end)

    def set_(self, key: Any, value: Any) -> Self:
        """Overwrite the values of all frames under a key. Returns the buffer."""
        self._call("set_", key, value)
        return self

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Overwrite the values of the frames at an index under a key. Returns the buffer."""
        self._call("set_at_", key, value, index)
        return self

    def update_(self, data: Any) -> Self:
        """Overwrite the values of all frames under the keys of data. Returns the buffer."""
        self._call("update_", data)
        return self

    def update_priority(self, index: Index, priority: Any) -> None:
        """Set the priorities of frames; see `ReplayBuffer.update_priority`."""
        self._call("update_priority", index, priority)

    def update_tensordict_priority(self, data: Any) -> None:
        """Set the priorities of frames; see `TensorDictReplayBuffer.update_tensordict_priority`."""
        self._call("update_tensordict_priority", data)

    def __len__(self) -> int:
        """Number of frames that can be sampled."""
        return self._call("__len__")

    def __getitem__(self, index: Any) -> Any:
        """A copy of the contents at this index."""
        return self._call("__getitem__", index)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrite frames."""
        self._call("__setitem__", index, data)

    def __iter__(self) -> Iterator[Any]:
        """Samples of `batch_size`; see `ReplayBuffer.__iter__`."""
        number = self._get(self._handle().begin.remote())
        while samples := put_together(*self._get(self._handle().following.remote(number))):
            yield samples[0]

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all frames; see `ReplayBuffer.empty`."""
        self._call("empty", empty_write_count)

    @property
    def write_count(self) -> int:
        """Number of frames written since it was made or emptied, including overwritten ones."""
        return self._get(self._handle().read.remote("write_count"))

    @property
    def batch_size(self) -> int | None:
        """Default number of frames in a sample."""
        return self._get(self._handle().read.remote("batch_size"))

    @property
    def initialized(self) -> bool:
        """Whether the parts of the actor's buffer are made; see `ReplayBuffer`."""
        return self._get(self._handle().read.remote("initialized"))

    @property
    def dim_extend(self) -> int:
        """The dimension of written data that is time; see `ReplayBuffer`."""
        return self._get(self._handle().read.remote("dim_extend"))

    # ------------------------------------------------------------------ parts

    @cached_property
    def storage(self) -> Any:
        """The information about the storage that writers need: its number of dimensions, as `ndim`."""
        return SimpleNamespace(ndim=self._get(self._handle().read.remote("storage.ndim")), control=SimpleNamespace(tally=None))

    def for_writers(self) -> Self:
        """The buffer itself, for processes that only write."""
        return self

    def set_sampler(self, sampler: Any) -> None:
        """Replace the sampler."""
        self._call("set_sampler", sampler)

    def set_storage(self, storage: Any) -> None:
        """Replace the storage."""
        self._call("set_storage", storage)

    def set_writer(self, writer: Any) -> None:
        """Replace the writer."""
        self._call("set_writer", writer)

    def append_transform(self, transform: Any, *, invert: bool = False) -> Self:
        """Append a transform; see `ReplayBuffer.insert_transform`. Returns the buffer."""
        self._call("append_transform", transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> Self:
        """Insert a transform among the existing ones; see `ReplayBuffer.insert_transform`. Returns the buffer."""
        self._call("insert_transform", index, transform, invert=invert)
        return self

    def set_rng(self, generator: Any) -> None:
        """Use a copy of this generator, in the actor."""
        self._call("set_rng", generator)

    def register_save_hook(self, hook: Any) -> None:
        """Call a function in the actor before frames are written to files; see `ReplayBuffer.register_save_hook`."""
        self._call("register_save_hook", hook)

    def register_load_hook(self, hook: Any) -> None:
        """Call a function in the actor after frames were read from files; see `ReplayBuffer.register_load_hook`."""
        self._call("register_load_hook", hook)

    def share(self) -> Self:
        """Do nothing: all processes of the cluster can use it already. Returns the buffer."""
        return self

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """The state of the buffer; see `ReplayBuffer.state_dict`."""
        return self._call("state_dict")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`."""
        self._call("load_state_dict", state)

    def dumps(self, path: str | Path) -> None:
        """Save it in a folder of the actor's machine; see `ReplayBuffer.dumps`."""
        self._call("dumps", path)

    def loads(self, path: str | Path, verify: bool = True) -> None:
        """Load a save of `dumps`; see `ReplayBuffer.loads`."""
        self._call("loads", path, verify)

    save = dump = dumps
    load = loads

    # ------------------------------------------------------------------ the actor

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        body, memory = taken_apart((arguments, options))
        return put_together(*self._get(self._handle().call.remote(method, body, *memory)))

    def _handle(self) -> Any:
        if self._actor is None:
            raise ClosedError("RayReplayBuffer: expected an open buffer, this one was closed; make another")
        return self._actor

    def _get(self, reference: Any) -> Any:
        """Call the actor; return its result.

        Raises:
            Exception: raised in the actor.
            ClosedError: it has ended.
        """
        ray = _ray()
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayActorError as error:
            raise ClosedError(
                f"RayReplayBuffer: the actor that holds the buffer has ended, and its frames with it: {error}\nLikely causes: "
                "close() elsewhere, the end of the program that made it, or too little memory (see ray's logs)"
            ) from error

    def close(self) -> None:
        """End the actor; its frames are lost for all processes. A second call does nothing."""
        if self._actor is not None:
            actor, self._actor = self._actor, None
            _ray().kill(actor)

    shutdown = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        self._handle()
        return {name: value for name, value in vars(self).items() if name not in {"storage", "_iterator"}} | {"_actor": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        ray = _ray()
        if not ray.is_initialized():
            ray.init(address=self._cluster, log_to_driver=False)
        try:
            self._actor = ray.get_actor(self._name, namespace=self._namespace)
        except ValueError as error:
            raise ClosedError("RayReplayBuffer: the actor that held the buffer has ended, and its frames with it") from error

    def __repr__(self) -> str:
        return f"RayReplayBuffer({'closed' if self._actor is None else self._name})"


class _Held:
    """The buffer, in the actor."""

    def __init__(self) -> None:
        self._iterators: list[Iterator[Any]] = []

    def build(self, cls: type[ReplayBuffer], options: Mapping[str, Any]) -> None:
        self._buffer = cls(**options)

    def call(self, method: str, body: bytes, *memory: Any) -> tuple[bytes, Memory]:
        arguments, options = put_together(body, memory)
        result = getattr(self._buffer, method)(*arguments, **options)
        return taken_apart(None if result is self._buffer else result)

    def read(self, name: str) -> Any:
        return attrgetter(name)(self._buffer)

    def begin(self) -> int:
        self._iterators.append(iter(self._buffer))
        return len(self._iterators) - 1

    def following(self, number: int) -> tuple[bytes, Memory]:
        """The next sample of an iteration, in a list; an empty list after the last."""
        return taken_apart([sample for _, sample in zip(range(1), self._iterators[number], strict=False)])


def _ray() -> ModuleType:
    return optional.load("ray", "RayReplayBuffer")
