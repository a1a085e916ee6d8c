"""Pickles values for other processes, by cloudpickle; an error names the path to the part that cannot be pickled.

Functions and classes of `__main__`, lambdas, closures and local classes are sent by value; everything else by name.
"""

from __future__ import annotations

import dis
import io
import pickle
from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, ClassVar

import cloudpickle
import torch
from tensordict.nn import TensorDictModule

from reap.errors import OptionError, guarded, headline, shown
from reap.system.sending import reducers
from reap.workers.messages import Encoded

DEPTH = 12
"""Maximum depth of the search for the part that cannot be pickled."""


def _reduce_code(code: CodeType) -> Any:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)[:2]
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in arguments)


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    """Reduce the memory of a tensor of uint16, uint32, uint64 or an 8-bit float: torch cannot read its own pickles of these."""
    numbers = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return _storage_of, (bytearray(numbers.cpu().numpy()), str(storage.device))


def _storage_of(data: bytearray, device: str) -> torch.TypedStorage:
    """The storage from which torch makes a tensor."""
    numbers = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return torch.TypedStorage(wrap_storage=numbers.to(device).untyped_storage(), dtype=torch.uint8, _internal=True)


class ByValuePickler(cloudpickle.Pickler):
    """cloudpickle's pickler, but functions keep their file name, so that tracebacks in workers show their source lines.

    Objects shared by several parts of a value are still shared after unpickling.
    """

    dispatch_table: ClassVar[Any] = {
        **cloudpickle.Pickler.dispatch_table,
        CodeType: _reduce_code,
        torch.UntypedStorage: _reduce_storage,
    }

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object; `NotImplemented` leaves that to the object."""
        if calls_function(obj):
            return object.__new__, (type(obj),), vars(obj), None, None, give_attributes
        return super().reducer_override(obj)


def calls_function(value: Any) -> bool:
    """Whether a value is a tensordict module that wraps a non-module, such as a bound method.

    These pickle their function separately, which would duplicate anything it shares with the rest of a policy.
    """
    is_theirs = isinstance(value, TensorDictModule) and type(value).__getstate__ is TensorDictModule.__getstate__
    return is_theirs and "module" in vars(value)


def give_attributes(value: Any, attributes: Mapping[str, Any]) -> None:
    """Set these attributes on an empty object."""
    vars(value).update(attributes)


class _Pickler(ByValuePickler):
    """The same, but shareable objects are shared; see `reap.system.sending`."""

    dispatch_table: ClassVar[Any] = ChainMap[Any, Any](reducers, ByValuePickler.dispatch_table)


def pickled(value: Any) -> bytes:
    """Pickle a value by cloudpickle."""
    with io.BytesIO() as file:
        _Pickler(file, protocol=5).dump(value)
        return file.getvalue()


def dumps(value: Any, what: str) -> bytes:
    """Pickle a value that is to be sent to a worker.

    Args:
        value: anything.
        what: the user's name for it, for the error message.

    Raises:
        OptionError: it cannot be pickled; the message names the part, and the path to it.

    Example:
        >>> pickle.loads(dumps(lambda: 3, "make"))()
        3
        >>> import threading
        >>> lock = threading.Lock()
        >>> dumps({"a": [lock]}, "options")
        Traceback (most recent call last):
            ...
        reap.errors.OptionError: options: cannot be sent to a worker: its item 'a', item 0 is a _thread.lock ...
    """
    try:
        return pickled(value)
    except Exception as error:  # noqa: BLE001  pickling runs the user's code, which may raise anything
        failure = error
    also = ". A policy_factory builds the policy in the worker" if what == "policy" else ""
    try:
        raise OptionError(f"{what}: cannot be sent to a worker: {_complaint(value, failure)}{also}") from failure
    finally:
        del failure  # its traceback holds this frame, and with it the frames of all callers: they would be a cycle


@contextmanager
def blaming(parts: Iterable[tuple[str, Any]]) -> Generator[None]:
    """Inside the `with` block, errors about unpicklable values name the part that causes them, by the user's name for it."""
    try:
        yield
    except OptionError:
        for what, value in parts:
            dumps(value, what)
        raise


def encode(value: Any, what: str) -> Encoded:
    """Encode a value in one piece, by plain pickle if both sides understand that, else by `dumps`.

    Plain pickle sends objects of `__main__` by name, but the other side has a different `__main__`; it copies buffers that
    should be shared; and torch cannot read its pickles of some tensors (see `_reduce_storage`).
    """
    return Encoded(_plain(value, None) or dumps(value, what))


def encode_apart(value: Any, what: str) -> Encoded:
    """Like `encode`, but contiguous arrays are not copied into the pickle: they are sent next to it."""
    buffers: list[pickle.PickleBuffer] = []
    data = _plain(value, buffers.append)
    return Encoded(data, [buffer.raw() for buffer in buffers]) if data else Encoded(dumps(value, what))


def _plain(value: Any, take_buffer: Callable[[pickle.PickleBuffer], Any] | None) -> bytes | None:
    """The plain pickle of a value if that is sufficient, else None."""
    try:
        data = pickle.dumps(value, protocol=5, buffer_callback=take_buffer)
    except Exception:  # noqa: BLE001  as above
        return None
    return None if any(name in data for name in (b"__main__", b"reap.data", b"UntypedStorage")) else data


def _complaint(value: Any, failure: Exception) -> str:
    steps, culprit = [], value
    with guarded():  # the search looks into objects of the user's
        steps, culprit = _culprit(value)
    kind = f"a {type(culprit).__module__}.{type(culprit).__qualname__}".replace("a builtins.", "a ")
    where = f"its {', '.join(steps)}" if steps else "it"
    inside = bool(steps) and steps[0].startswith(("variable", "global"))
    remedy = "create it inside the function" if inside else "leave it out, or build it in the worker"
    return f"{where} is {kind} ({headline(failure)}); {remedy}"


def _culprit(value: Any) -> tuple[list[str], Any]:
    """The innermost part that cannot be pickled by itself, and the path to it."""
    steps: list[str] = []
    seen: set[int] = set()
    while len(steps) < DEPTH:
        seen.add(id(value))
        bad = next(((step, part) for step, part in _parts(value) if id(part) not in seen and not _pickles(part)), None)
        if bad is None:
            break
        step, value = bad
        steps.append(step)
    return steps, value


def _pickles(value: Any) -> bool:
    with guarded(), io.BytesIO() as file:
        ByValuePickler(file, protocol=5).dump(value)
        return True
    return False


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, MethodType):
        yield "object", value.__self__
        yield "function", value.__func__
    elif isinstance(value, partial):
        yield "function", value.func
        yield from ((f"argument {index}", part) for index, part in enumerate(value.args))
        yield from ((f"argument {name!r}", part) for name, part in value.keywords.items())
    elif isinstance(value, Mapping):
        yield from ((f"item {shown(key)}", part) for key, part in value.items())
        yield from ((f"key {shown(key)}", key) for key in value)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {index}", part) for index, part in enumerate(value))
    elif isinstance(value, type):
        yield from ((f"member {name!r}", part) for name, part in vars(value).items() if not name.startswith("__weakref"))
    else:
        yield from _parts_of_object(value)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"variable {name!r}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    names = dict.fromkeys(global_names(function.__code__))
    yield from ((f"global {name!r}", function.__globals__[name]) for name in names if name in function.__globals__)
    yield from ((f"default {index}", part) for index, part in enumerate(function.__defaults__ or ()))
    yield from ((f"default of {name!r}", part) for name, part in (function.__kwdefaults__ or {}).items())
    yield from ((f"attribute {name!r}", part) for name, part in vars(function).items())


def global_names(code: CodeType) -> Iterator[str]:
    """The globals that a function reads, including those of nested functions."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from global_names(constant)


def _parts_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
    named = dict(getattr(value, "__dict__", {}))
    named.update({name: getattr(value, name) for name in slots if isinstance(name, str) and hasattr(value, name)})
    yield from ((f"attribute {name!r}", part) for name, part in named.items())
    yield "class", type(value)
