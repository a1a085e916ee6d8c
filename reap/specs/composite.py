"""`Composite`: a tree of specs under keys, for the entries of a TensorDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, Self, cast, overload

import torch

from reap.errors import OptionError, nearest
from reap.keys import Key, NestedKey, as_key, plain
from reap.optional import tensordict
from reap.specs.base import Spec
from reap.specs.faults import Fault, shape_text
from reap.specs.parts.arguments import Destination, DeviceLike, ShapeLike, as_shape
from reap.specs.parts.entries import MISSING, Entries
from reap.specs.parts.from_torchrl import as_own
from reap.specs.parts.reshaping import Change
from reap.specs.parts.torchrl import introduce
from reap.specs.parts.values import encoded_tree

if TYPE_CHECKING:
    from tensordict import TensorDict


class Composite(Entries, Spec):
    """Specs under names, nested ones included; its values are TensorDicts of batch size `shape`.

    Args:
        specs: specs, or mappings of specs, by name or tuple of names; no values are made for a name with None instead of a
            spec.
        shape: the batch size: the dimensions that every leaf starts with.
        device: moves all leaves to this device; None leaves them where they are.
        batch_size: another name for `shape`.
        kwargs: further specs, by name.

    Raises:
        OptionError: a leaf does not start with `shape`, or a value is not a spec.

    Entries can be set and removed until the Composite is locked, as the specs of envs are. `with_` derives a changed one.

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

    _specs: dict[str, Any]
    _device: torch.device | None

    def __init__(
        self,
        specs: Mapping[Any, Any] | None = None,
        /,
        *,
        shape: ShapeLike = (),
        device: DeviceLike | None = None,
        batch_size: ShapeLike | None = None,
        **kwargs: Any,
    ) -> None:
        introduce()
        size = as_shape(shape if batch_size is None else batch_size)
        place = None if device is None else torch.device(device)
        self._assign(_shape=size, _device=place, _locked=False, _specs={})
        given = {**dict((specs or {}).items()), **kwargs}
        self._specs.update(self._entries(given))

    def _entries(self, given: dict[Any, Any]) -> dict[str, Any]:
        return _as_tree(given, self._shape, self._device)

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

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[Any]:
        """The specs under the keys that `keys` returns."""
        return [self[key] for key in self.keys(include_nested, leaves_only)]

    def items(self, include_nested: bool = False, leaves_only: bool = False) -> list[tuple[Any, Any]]:
        """The keys that `keys` returns, with their specs."""
        return [(key, self[key]) for key in self.keys(include_nested, leaves_only)]

    def leaves(self) -> Iterator[tuple[Key, Spec]]:
        """Every spec that is not a Composite, with its full key as a tuple."""
        return ((key, spec) for key, spec in self._walk() if not isinstance(spec, Composite | None))

    def get(self, key: NestedKey, default: Any = None) -> Any:
        """The spec under a key, or the default."""
        return self._found(as_key(key), default)

    def _found(self, key: Key, default: Any) -> Any:
        holder = self._holder(key)
        return default if holder is None else holder._specs.get(key[-1], default)

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
        return self._made({name: spec.rand(shape, generator=generator) for name, spec in self._known()}, shape)

    def zero(self, shape: ShapeLike = ()) -> TensorDict:
        """A TensorDict of batch size `(*shape, *self.shape)` with zeros under each key."""
        return self._made({name: spec.zero(shape) for name, spec in self._known()}, shape)

    def one(self, shape: ShapeLike = ()) -> TensorDict:
        """A TensorDict of batch size `(*shape, *self.shape)` with ones under each key."""
        return self._made({name: spec.one(shape) for name, spec in self._known()}, shape)

    def _known(self) -> list[tuple[str, Spec]]:
        """The entries of this level that have a spec."""
        return [(name, spec) for name, spec in self._specs.items() if spec is not None]

    def project(self, value: Any) -> Any:
        """A shallow copy of a TensorDict or dict, with the nearest valid value under each key of the spec.

        Raises:
            KeyError: a key is missing.
            SpecMismatch: a value's shape does not end with its spec's.
        """
        copy = value.copy()
        for name, spec in self._known():
            copy[name] = spec.project(value[name])
        return copy

    @property
    def domain(self) -> str:
        """`"composite"`."""
        return "composite"

    def type_check(self, value: Any, key: NestedKey | Iterable[NestedKey] | None = None) -> None:
        """Raise SpecMismatch unless the values in a TensorDict or dict have the dtypes of their specs.

        Args:
            value: the TensorDict or dict.
            key: the names to check, one or several; None checks all that are present.
        """
        names = {key} if isinstance(key, str) else None if key is None else set(key)
        for name, spec in self._known():
            if name in value.keys() and (names is None or name in names):
                spec.type_check(value[name], name)

    def encode(self, val: Any, *, ignore_device: bool = False) -> TensorDict:
        """A dict of a simulator's values as a TensorDict; see `Values`."""
        values = encoded_tree(self._specs, val, "Composite", ignore_device=ignore_device)
        return tensordict().TensorDict(values, self._shape, device=None if ignore_device else self._device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> dict[str, Any]:
        """A TensorDict as a dict of arrays, and of dicts where it is nested; see `Values`."""
        return {name: spec.to_numpy(val[name], safe) for name, spec in self._known() if name in val.keys()}

    def cardinality(self) -> int | float:
        """The number of combinations of the values of all leaves."""
        return prod(leaf.cardinality() for _, leaf in self.leaves())

    def enumerate(self, use_mask: bool = False) -> TensorDict:
        """All combinations of the values of all leaves, a TensorDict `[cardinality, *shape]`; see `Values`."""
        every = [(plain(key), leaf.enumerate(use_mask)) for key, leaf in self.leaves()]
        counts = torch.cartesian_prod(*(torch.arange(len(values)) for _, values in every)).reshape(-1, len(every))
        made = tensordict().TensorDict({}, (len(counts), *self._shape), device=self._device)
        for (key, values), column in zip(every, counts.unbind(-1), strict=True):
            made.set(key, values[column.to(values.device)])
        return made

    def empty(self) -> Self:
        """A Composite of the same shape and device without entries."""
        return type(self)(shape=self._shape, device=self._device)

    def clear_device_(self) -> Self:
        """Forget the device that new entries are moved to, here and below; returns the Composite itself."""
        self._require_unlocked("clear_device_")
        self._assign(_device=None)
        for spec in self._specs.values():
            if isinstance(spec, Composite):
                spec.clear_device_()
        return self

    def _twin(self) -> Self:
        twins = {name: spec.clone() if isinstance(spec, Composite) else spec for name, spec in self._specs.items()}
        return type(self)(twins, shape=self._shape, device=self._device)

    def _mapped(self, change: Change) -> Self:
        parts = {name: spec if spec is None else spec._mapped(change) for name, spec in self._specs.items()}
        shape = change(torch.empty(self._shape, device="meta")).shape
        return type(self)(parts, shape=shape, device=self._device)

    def _torchrl_call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        entries = {name: spec if spec is None else spec.as_torchrl() for name, spec in self._specs.items()}
        return "Composite", (entries,), {}

    def to(self, dest: Destination) -> Self:
        """On another device, or with another float dtype: leaves that are not floats keep theirs."""
        if isinstance(dest, torch.dtype):
            return self._rebuilt(dtype=dest)
        return self._rebuilt(device=torch.device(dest))

    def _fault(self, value: Any, *, batched: bool) -> Fault | None:
        for name, spec in self._known():
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
            name: None
            if spec is None
            else spec._rebuilt(shape=(*size, *spec.shape[self.ndim :]), device=device, dtype=_dtype_for(spec, dtype))
            for name, spec in self._specs.items()
        }
        return type(self)(specs, shape=size, device=device or self._device)

    def _made(self, values: dict[str, Any], shape: ShapeLike) -> TensorDict:
        return tensordict().TensorDict(values, (*as_shape(shape), *self._shape), device=self._device)

    def _walk(self) -> Iterator[tuple[Key, Any]]:
        for name, spec in self._specs.items():
            yield (name,), spec
            if isinstance(spec, Composite):
                yield from (((name, *key), leaf) for key, leaf in spec._walk())

    @overload
    def __getitem__(self, key: str | tuple[str, ...]) -> Any: ...
    @overload
    def __getitem__(self, key: Any) -> Self: ...
    def __getitem__(self, key: Any) -> Any:
        if not _is_key(key):
            return self._part(key)
        found = self._found(as_key(key), MISSING)
        if found is MISSING:
            known = self.keys(include_nested=True)
            near = nearest(as_key(key)[-1], [as_key(name)[-1] for name in known])
            raise KeyError(f"Composite: expected one of the keys {known}, found {key!r}.{near}")
        return found

    def __copy__(self) -> Self:
        return self.clone()

    def __contains__(self, key: NestedKey) -> bool:
        return self._found(as_key(key), MISSING) is not MISSING

    def __len__(self) -> int:
        return len(self._specs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composite):
            return NotImplemented
        return (self._shape, self._device, self._specs) == (other._shape, other._device, other._specs)

    def __hash__(self) -> int:
        return hash((Composite, self._shape))

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


def _as_tree(given: dict[Any, Any], shape: torch.Size, device: torch.device | None) -> dict[str, Any]:
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
    inner = cast("Mapping[Any, Any]", held)
    return {name: {**inner, **_nest(inner, rest, spec)}}


def _is_key(key: Any) -> bool:
    return isinstance(key, str) or (isinstance(key, tuple) and bool(key) and all(isinstance(part, str) for part in key))  # pyright: ignore[reportUnknownVariableType]


def _as_spec(name: str, spec: Any, shape: torch.Size, device: torch.device | None) -> Spec | None:
    if spec is None:
        return None
    spec = as_own(spec)
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
