"""`Composite`: a tree of specs under keys, for the entries of a TensorDict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from reap.errors import OptionError, nearest
from reap.keys import Key, NestedKey, as_key, plain
from reap.optional import tensordict
from reap.specs.base import Destination, DeviceLike, ShapeLike, Spec, as_shape
from reap.specs.faults import Fault, shape_text

if TYPE_CHECKING:
    from tensordict import TensorDict


class Composite(Spec):
    """Specs under names, nested ones included; its values are TensorDicts of batch size `shape`.

    Args:
        specs: name or tuple of names → spec, or → a mapping of such.
        shape: the batch size: the dimensions that every leaf starts with.
        device: moves all leaves there; None: they stay where they are.
        kwargs: further specs, by name.

    Raises:
        OptionError: a leaf does not start with `shape`, or a value is no spec.

    A Composite is immutable, as all specs are: `with_` derives a changed one.

    Example:
        >>> from reap.specs import Bounded, OneHot
        >>> spec = Composite(position=Bounded(-1, 1, shape=2), tool={"kind": OneHot(3)})
        >>> spec["tool", "kind"]
        OneHot(n=3, shape=(3,), dtype=bool)
        >>> [key for key, leaf in spec.leaves()]
        [('position',), ('tool', 'kind')]
        >>> spec.rand((5,))["tool", "kind"].shape
        torch.Size([5, 3])
    """

    _specs: dict[str, Spec]
    _device: torch.device | None

    def __init__(
        self,
        specs: Mapping[Any, Any] | None = None,
        /,
        *,
        shape: ShapeLike = (),
        device: DeviceLike | None = None,
        **kwargs: Any,
    ) -> None:
        size = as_shape(shape)
        place = None if device is None else torch.device(device)
        self._assign(_shape=size, _device=place, _specs=_as_tree({**(specs or {}), **kwargs}, size, place))

    @property
    def dtype(self) -> None:
        """None: the leaves have dtypes of their own."""
        return

    @property
    def device(self) -> torch.device | None:
        """Where all values are made; None: each leaf has a device of its own."""
        return self._device

    @property
    def batch_size(self) -> torch.Size:
        """The same as `shape`."""
        return self._shape

    @property
    def space(self) -> None:
        """None: the leaves have spaces of their own."""
        return

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[NestedKey]:
        """The keys, in the order given: names, and tuples of names for nested specs.

        Args:
            include_nested: include the entries of nested Composites.
            leaves_only: leave out the Composites themselves.
        """
        return [
            plain(key)
            for key, spec in self._walk()
            if (include_nested or len(key) == 1) and not (leaves_only and isinstance(spec, Composite))
        ]

    def values(self) -> list[Spec]:
        """The specs under the names of this level."""
        return list(self._specs.values())

    def items(self) -> list[tuple[str, Spec]]:
        """The names of this level with their specs."""
        return list(self._specs.items())

    def leaves(self) -> Iterator[tuple[Key, Spec]]:
        """Every spec that is no Composite, with its full key as a tuple."""
        return ((key, spec) for key, spec in self._walk() if not isinstance(spec, Composite))

    def get(self, key: NestedKey, default: Spec | None = None) -> Spec | None:
        """The spec under a key, or the default."""
        found: Spec | None = self
        for name in as_key(key):
            found = found._specs.get(name) if isinstance(found, Composite) else None
        return default if found is None else found

    def with_(self, key: NestedKey, spec: Spec | Mapping[Any, Any]) -> Self:
        """A copy with one spec added or replaced; nested Composites are made where the key needs them.

        Raises:
            OptionError: as for the class.

        Example:
            >>> from reap.specs import Unbounded
            >>> Composite().with_(("a", "b"), Unbounded(3)).keys(include_nested=True)
            ['a', ('a', 'b')]
        """
        merged = {**self._specs, **_nest(self._specs, as_key(key), spec)}
        return type(self)(merged, shape=self._shape, device=self._device)

    def rand(
        self,
        shape: ShapeLike = (),
        *,
        generator: torch.Generator | None = None,
        mask: torch.Tensor | None = None,
    ) -> TensorDict:
        """A TensorDict of batch size `(*shape, *self.shape)` with a random value under each key.

        Raises:
            OptionError: a mask; it belongs to one leaf.
        """
        self._refuse(mask)
        return self._made({name: spec.rand(shape, generator=generator) for name, spec in self._specs.items()}, shape)

    def zero(self, shape: ShapeLike = ()) -> TensorDict:
        """A TensorDict of batch size `(*shape, *self.shape)` with zeros under each key."""
        return self._made({name: spec.zero(shape) for name, spec in self._specs.items()}, shape)

    def zeros(self, shape: ShapeLike = ()) -> TensorDict:
        """The same as `zero`."""
        return self.zero(shape)

    def project(self, value: Any) -> Any:
        """A shallow copy of a TensorDict or dict, with the nearest valid value under each key of the spec.

        Raises:
            KeyError: a key is missing.
            SpecMismatch: a value's shape does not end with its spec's.
        """
        copy = value.copy()
        for name, spec in self._specs.items():
            copy[name] = spec.project(value[name])
        return copy

    def to(self, dest: Destination) -> Self:
        """On another device, or with another float dtype: leaves that are no floats keep theirs."""
        if isinstance(dest, torch.dtype):
            return self._rebuilt(dtype=dest)
        return self._rebuilt(device=torch.device(dest))

    def _fault(self, value: Any, *, batched: bool) -> Fault | None:
        for name, spec in self._specs.items():
            try:
                part = value[name]
            except (KeyError, IndexError, TypeError):
                return self._missing(name, value)
            fault = spec._fault(part, batched=batched)
            if fault is not None:
                return fault.below(name)
        return None

    def _missing(self, name: str, value: Any) -> Fault:
        if not hasattr(value, "keys"):
            return Fault(f"a TensorDict or dict with the keys {list(self._specs)}", f"a {type(value).__name__}")
        present = [str(key) for key in value.keys()]
        others = [key for key in present if key not in self._specs]
        return Fault(f"the key {name!r}", f"only the keys {present}", nearest(name, others).lstrip())

    def _rebuilt(
        self,
        *,
        shape: tuple[int, ...] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        size = tuple(self._shape) if shape is None else shape
        specs = {
            name: spec._rebuilt(shape=(*size, *spec.shape[self.ndim :]), device=device, dtype=_dtype_for(spec, dtype))
            for name, spec in self._specs.items()
        }
        return type(self)(specs, shape=size, device=device or self._device)

    def _made(self, values: dict[str, Any], shape: ShapeLike) -> TensorDict:
        return tensordict().TensorDict(values, (*as_shape(shape), *self._shape), device=self._device)

    def _walk(self) -> Iterator[tuple[Key, Spec]]:
        for name, spec in self._specs.items():
            yield (name,), spec
            if isinstance(spec, Composite):
                yield from (((name, *key), leaf) for key, leaf in spec._walk())

    def __getitem__(self, key: NestedKey) -> Spec:
        found = self.get(key)
        if found is None:
            known = self.keys(include_nested=True)
            near = nearest(as_key(key)[-1], [as_key(name)[-1] for name in known])
            raise KeyError(f"Composite: expected one of the keys {known}, found {key!r}.{near}")
        return found

    def __setitem__(self, key: NestedKey, spec: object) -> None:
        raise TypeError(
            f"Composite: expected no assignment to key {key!r}, as specs are immutable. "
            f"Write spec = spec.with_({key!r}, ...), or give all keys to Composite(...) at once."
        )

    def __contains__(self, key: NestedKey) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return len(self._specs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composite):
            return NotImplemented
        return (self._shape, self._device, self._specs) == (other._shape, other._device, other._specs)

    def __hash__(self) -> int:
        return hash((Composite, self._shape, frozenset(self._specs)))

    def __repr__(self) -> str:
        lines = [f"{name}={spec!r}".replace("\n", "\n    ") for name, spec in self._specs.items()]
        if self._shape:
            lines.append(f"shape={shape_text(self._shape)}")
        if self._device is not None:
            lines.append(f"device={str(self._device)!r}")
        return "Composite(" + "".join(f"\n    {line}," for line in lines) + ("\n)" if lines else ")")


def _dtype_for(spec: Spec, dtype: torch.dtype | None) -> torch.dtype | None:
    """The dtype that a leaf is cast to; None leaves it as it is. A Composite passes it on to its own leaves."""
    is_float = spec.dtype is not None and spec.dtype.is_floating_point
    return dtype if is_float or isinstance(spec, Composite) else None


def _as_tree(given: dict[Any, Any], shape: torch.Size, device: torch.device | None) -> dict[str, Spec]:
    """The specs of one level: mappings become Composites, leaves are checked and moved."""
    tree: dict[str, Any] = {}
    for key, spec in given.items():
        path = _checked_key(key)
        tree.update(_nest(tree, path, spec))
    return {name: _as_spec(name, spec, shape, device) for name, spec in tree.items()}


def _checked_key(key: Any) -> Key:
    parts = cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (key,)
    if not parts or not all(isinstance(part, str) for part in parts):
        raise OptionError(f"Composite: expected keys that are strings or tuples of strings, found {key!r}.")
    return parts


def _nest(level: Mapping[str, Any], path: Key, spec: Any) -> dict[str, Any]:
    """The entry that puts a spec under a path, merged with the existing one under the path's first name."""
    name, rest = path[0], path[1:]
    if not rest:
        return {name: spec}
    held = level.get(name, {})
    if isinstance(held, Composite):
        return {name: held.with_(rest, spec)}
    if not isinstance(held, Mapping):
        raise OptionError(
            f"Composite: expected key {path!r} to lead through Composites, found a {type(held).__name__} under {name!r}."
        )
    inner = cast("Mapping[str, Any]", held)
    return {name: {**inner, **_nest(inner, rest, spec)}}


def _as_spec(name: str, spec: Any, shape: torch.Size, device: torch.device | None) -> Spec:
    if isinstance(spec, Mapping):
        return Composite(cast("Mapping[Any, Any]", spec), shape=shape, device=device)
    if isinstance(spec, Composite) and spec.shape[: len(shape)] != shape:
        spec = Composite(dict(spec.items()), shape=shape, device=spec.device)
    if not isinstance(spec, Spec):
        raise OptionError(f"Composite: expected a spec or a mapping under {name!r}, found a {type(spec).__name__}.")
    if spec.shape[: len(shape)] != shape:
        raise OptionError(
            f"Composite: expected the spec under {name!r} to start with the shape {shape_text(shape)}, "
            f"found {shape_text(spec.shape)}. "
            f"Put the batch dimensions in front: spec.expand(*{shape_text(shape)}, *spec.shape)."
        )
    return spec if device is None or spec.device == device else spec.to(device)
