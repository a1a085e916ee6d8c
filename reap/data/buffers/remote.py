"""`RemoteTensorDictReplayBuffer`: a replay buffer in a process of an RPC group, which the other processes call.

    trainer                                                   owner
    rref = rpc.remote("owner", RemoteTensorDictReplayBuffer, ...)  ->  the buffer is made
    rpc.rpc_sync("owner", RemoteTensorDictReplayBuffer.extend, args=(rref, data))  ->  buffer.extend(data)

torch.distributed.rpc calls functions, and a method of a class is one; its first argument is then a reference to the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import getmembers, isfunction
from typing import Any

from reap.data.buffers.tensordict_buffers import TensorDictReplayBuffer

CALLED = ("__len__", "__getitem__", "__setitem__")
"""Special methods that take references, in addition to public methods."""


class RemoteTensorDictReplayBuffer(TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` whose methods accept a reference to a buffer instead of the buffer.

    So `torch.distributed.rpc` can call them where the buffer is: public methods, and `__len__`, `__getitem__` and
    `__setitem__`. In its own process it is an ordinary buffer. Calls may come from several processes at once.

    Args:
        options: options of a `TensorDictReplayBuffer`.

    Raises:
        OptionError: an invalid argument.

    Example:
        >>> from tensordict import TensorDict
        >>> from torch.distributed import rpc
        >>> def train(data: TensorDict) -> TensorDict:
        ...     rref = rpc.remote("owner", RemoteTensorDictReplayBuffer, kwargs={"batch_size": 32})
        ...     rpc.rpc_sync("owner", RemoteTensorDictReplayBuffer.extend, args=(rref, data))
        ...     return rpc.rpc_sync("owner", RemoteTensorDictReplayBuffer.sample, args=(rref,))
    """


def _at_owner(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that takes a reference to a buffer, in the process of the buffer."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        buffer = self if isinstance(self, RemoteTensorDictReplayBuffer) else self.local_value()
        return method(buffer, *args, **kwargs)

    # RPC sends a function by the name under which it is found.
    call.__module__, call.__qualname__ = __name__, f"{RemoteTensorDictReplayBuffer.__qualname__}.{name}"
    return call


for _name, _method in getmembers(TensorDictReplayBuffer, isfunction):
    if _name in CALLED or not _name.startswith("_"):
        setattr(RemoteTensorDictReplayBuffer, _name, _at_owner(_name, _method))
