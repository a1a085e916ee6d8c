"""The places of values in memory: a `Layout` describes a `Block`, which holds many arrays in one piece of memory.

    offset 0          64-byte aligned                                    nbytes
    | observation     | action | done | terminated | truncated | ids ... |
    '---- key: shape, dtype ---'

One block can be shared between processes, sent, pinned or mapped to a file as a whole, whatever the number of keys in it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cache
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reap.keys import NO_SIZES, Key, Sizes
from reap.specs import Composite
from reap.system.endings import at_end
from reap.system.memory import Bytes, physical_memory, readable, require_memory, shared_memory
from reap.words import counted

ALIGNMENT = 64
SHOWN = 5
"""Number of fields that an error about memory names."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Field:
    """Shape and dtype of one value.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        is_object: the value is a Python object, kept in an array outside the block; shape and dtype are meaningless.
        batch_dims: for each TensorDict around the value, innermost first: the number of the value's leading dimensions that
            are batch dimensions of that TensorDict. Ignored in comparisons, since it does not affect the memory.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_object: bool = False
    batch_dims: tuple[int, ...] = dataclass_field(default=(), compare=False)

    @property
    def nbytes(self) -> int:
        """Number of bytes of one value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def lead(self, *shape: int) -> Field:
        """The field of an array of such values, whose shape is `shape` followed by the value's own."""
        return Field((*shape, *self.shape), self.dtype, self.is_object, self.batch_dims)


OBJECT = Field((1,), torch.uint8, is_object=True)
"""The field of strings, graphs and other values without fixed shape or dtype."""


@cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy dtype with the same bytes; if numpy lacks the dtype, an unsigned integer that is good for copies only.

    Example:
        >>> numpy_dtype(torch.float32), numpy_dtype(torch.bfloat16)
        (dtype('float32'), dtype('uint16'))
    """
    try:
        return torch.zeros((), dtype=dtype).numpy().dtype
    except TypeError:
        return np.dtype(f"u{dtype.itemsize}")


def field_of(spec: Composite, key: Key, lead: int) -> Field:
    """The field of one row's value under a key of a Composite.

    Args:
        spec: specs whose shapes start with the batch dimensions of the rows.
        key: the key of a leaf.
        lead: the number of these dimensions.

    Example:
        >>> from reap.specs import Unbounded
        >>> agents = Composite(reward=Unbounded((4, 3, 1)), shape=(4, 3))
        >>> field_of(Composite(agents=agents, shape=4), ("agents", "reward"), 1).batch_dims
        (1,)
    """
    leaf = spec[key]
    if leaf.dtype is None:
        return OBJECT
    batch_dims = tuple(spec[key[:end]].ndim - lead for end in range(len(key) - 1, 0, -1))
    return Field(tuple(leaf.shape[lead:]), leaf.dtype, batch_dims=batch_dims)


def sizes_of(fields: Mapping[Key, Field], lead: int = 0) -> Sizes:
    """The TensorDicts around values of these fields, with their batch dimensions after the leading ones.

    A nested TensorDict starts with the dimensions of the one around it. If values have fewer dimensions in common than
    their fields declare, the TensorDict has only the common ones.

    Args:
        fields: the fields.
        lead: the number of leading dimensions, if the fields describe arrays of values.

    Example:
        >>> reward = Field((3, 1), torch.float32, batch_dims=(1,))
        >>> sizes_of({("agents", "reward"): reward, ("agents", "action"): Field((3, 2), torch.float32)})
        {('agents',): (3,)}
    """
    sizes: dict[Key, tuple[int, ...]] = {}
    for key, one in fields.items():
        for up, dims in enumerate(one.batch_dims, start=1):
            if dims > len(sizes.get(key[:-up], ())):
                sizes[key[:-up]] = one.shape[lead : lead + dims]
    if not sizes:
        return NO_SIZES
    nodes = dict.fromkeys(key[:end] for key in fields for end in range(len(key)))
    for node in sorted(nodes, key=len):
        sizes[node] = max(sizes.get(node, ()), sizes.get(node[:-1], ()), key=len)
    for key, one in fields.items():
        shape = () if one.is_object else one.shape[lead:]
        for end in range(len(key)):
            sizes[key[:end]] = _in_common(sizes[key[:end]], shape)
    return {node: size for node, size in sizes.items() if size}


def _in_common(size: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The leading dimensions that two shapes have in common."""
    return tuple(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(size, shape, strict=False)))


class Layout(Mapping[Key, Field]):
    """Key to shape, dtype and offset; every field starts on a multiple of 64 bytes, in the order given.

    Example:
        >>> layout = Layout({("a",): Field((3,), torch.float32), ("b",): Field((), torch.bool)})
        >>> layout.offset(("b",)), layout.nbytes
        (64, 128)
    """

    def __init__(self, fields: Mapping[Key, Field]) -> None:
        self._fields = dict(fields)
        self._offsets: dict[Key, int] = {}
        end = 0
        for key, field in self._fields.items():
            self._offsets[key] = end
            end += -(-field.nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes = end

    def __getitem__(self, key: Key) -> Field:
        return self._fields[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        """Whether the other layout places the same fields at the same offsets."""
        return isinstance(other, Layout) and list(self.items()) == list(other.items())

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    def __repr__(self) -> str:
        rows = (f"{self._offsets[k]:>10}  {'.'.join(k)}  {f.shape}  {f.dtype}" for k, f in self._fields.items())
        return "\n".join(("Layout", *rows, f"{self.nbytes:>10}  end"))

    def offset(self, key: Key) -> int:
        """The offset of the field from the start of the block, in bytes."""
        return self._offsets[key]

    def span(self, keys: Iterable[Key]) -> slice:
        """The range of bytes from the first of these fields to the end of the last."""
        chosen = tuple(keys)
        first = min(self._offsets[key] for key in chosen)
        return slice(first, max(self._offsets[key] + self._fields[key].nbytes for key in chosen))


def private_memory(nbytes: int) -> Bytes:
    """Memory of this process, zeroed, its start aligned to 64 bytes."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


class Block:
    """A piece of memory and the arrays that a layout places in it.

    Attributes:
        layout: the places of the arrays.
        memory: the bytes.
        fd: the descriptor of shareable memory, open as long as the block exists; None for memory of this process.
    """

    def __init__(self, layout: Layout, memory: Bytes, fd: int | None = None) -> None:
        self.layout = layout
        self.memory = memory
        self.fd = fd
        if fd is not None:
            at_end(self, os.close, fd)

    @classmethod
    def private(cls, layout: Layout) -> Block:
        """A block in memory of this process, zeroed.

        Raises:
            MemoryError: the layout does not fit into the memory of this machine; the text names its largest fields.
        """
        require_private(layout)
        try:
            return cls(layout, private_memory(layout.nbytes))
        except MemoryError as error:
            raise MemoryError(_too_large(layout, physical_memory())) from error

    @classmethod
    def shared(cls, layout: Layout, fd: int | None = None) -> Block:
        """A block that several processes map: one memfd, whatever the number of fields.

        Args:
            layout: the places of the arrays.
            fd: the descriptor of a block of this layout from another process; it belongs to the new block.

        Raises:
            MemoryError: the layout is larger than the memory that the machine, or the container, has left; the text names its
                largest fields.
        """
        with _naming_largest(layout):
            return cls(layout, *shared_memory(layout.nbytes, fd))

    def array(self, key: Key) -> Array:
        """The field as a numpy array over the block's memory."""
        field, start = self.layout[key], self.layout.offset(key)
        return self.memory[start : start + field.nbytes].view(numpy_dtype(field.dtype)).reshape(field.shape)

    def tensor(self, key: Key, memory: Bytes | None = None) -> torch.Tensor:
        """The field as a tensor, with a separate storage, over the block's memory.

        Args:
            key: the field.
            memory: the object that the tensor keeps alive; the block's memory unless a lease on it is given.
        """
        field = self.layout[key]
        count = math.prod(field.shape)
        if not count:
            return torch.empty(field.shape, dtype=field.dtype)
        source = self.memory if memory is None else memory
        flat = torch.frombuffer(source, dtype=field.dtype, count=count, offset=self.layout.offset(key))
        # No view: those refuse detach_(), which people call on batches.
        return flat.resize_(field.shape)


def require_private(layout: Layout) -> None:
    """Raise MemoryError if a block does not fit into the memory of this machine."""
    limit = physical_memory()
    if layout.nbytes > limit:
        raise MemoryError(_too_large(layout, limit))


def require_shared(layouts: Sequence[Layout]) -> None:
    """Raise MemoryError if shared blocks of these layouts do not fit into the available memory."""
    with _naming_largest(max(layouts, key=lambda layout: layout.nbytes)):
        require_memory(sum(layout.nbytes for layout in layouts))


@contextmanager
def _naming_largest(layout: Layout) -> Generator[None]:
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"{error}\n{_largest(layout)}") from error


def _too_large(layout: Layout, limit: float) -> str:
    machine = "" if math.isinf(limit) else f" of this machine, which has {readable(limit)}"
    text = f"{readable(layout.nbytes)} in one block, of {counted(len(layout), 'field')}, do not fit into the memory{machine}."
    return f"{text} {_largest(layout)}"


def _largest(layout: Layout) -> str:
    """The largest fields of a layout, and a remedy if they are too large."""
    largest = sorted(layout.items(), key=lambda item: -item[1].nbytes)[:SHOWN]
    rows = (f"  {'.'.join(key)}: {field.shape} {field.dtype}, {readable(field.nbytes)}" for key, field in largest)
    advice = "Use fewer frames per batch or fewer envs, smaller values or a smaller dtype, or keep fewer batches alive."
    return "\n".join(("Largest:", *rows, advice))
