"""`Entries`: changes to a Composite, as long as it is not locked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from reap.errors import CallOrderError
from reap.keys import Key, NestedKey, as_key

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from reap.specs.base import Spec

MISSING = object()


class Entries:
    """Sets and removes the specs of a Composite.

    The specs of an env are locked; a new Composite and a clone are not. A change to a nested Composite shows in all that
    contain it.
    """

    _specs: dict[str, Any]
    _locked: bool

    if TYPE_CHECKING:

        def __getitem__(self, key: NestedKey) -> Any: ...
        def _entries(self, given: dict[Any, Any]) -> dict[str, Any]: ...
        def rand(self) -> Any: ...  # noqa: D102
        def zero(self) -> Any: ...  # noqa: D102
        def one(self) -> Any: ...  # noqa: D102

    # ------------------------------------------------------------------ locks

    @property
    def is_locked(self) -> bool:
        """Whether entries are refused."""
        return self._locked

    @property
    def locked(self) -> bool:
        """The same as `is_locked`."""
        return self._locked

    def lock_(self, recurse: bool = True) -> Self:
        """Refuse changes from now on.

        Args:
            recurse: lock nested Composites too.
        """
        return self._set_lock(True, recurse)

    def unlock_(self, recurse: bool = True) -> Self:
        """Allow changes again. To change the spec of an env, change a clone and assign it to the env."""
        return self._set_lock(False, recurse)

    def _set_lock(self, locked: bool, recurse: bool) -> Self:
        vars(self)["_locked"] = locked
        for spec in self._specs.values() if recurse else ():
            if isinstance(spec, Entries):
                spec._set_lock(locked, recurse)
        return self

    def _require_unlocked(self, change: str) -> None:
        if self._locked:
            raise CallOrderError(
                f"Composite: {change}: it is locked, as the specs of an env are. Change a clone, and assign it to the env: "
                "spec = env.observation_spec.clone(); ...; env.observation_spec = spec"
            )

    # ------------------------------------------------------------------ changes

    def set(self, name: NestedKey, spec: Spec | Mapping[Any, Any] | None) -> Self:
        """Put a spec under a key; Composites are made where the key needs them.

        Args:
            name: the key.
            spec: the spec, or a mapping of specs; with None, no values are made for the key.

        Raises:
            CallOrderError: the Composite is locked.
            OptionError: the spec does not start with the Composite's shape.

        Example:
            >>> from reap.specs import Composite, Unbounded
            >>> Composite().set(("a", "b"), Unbounded(3)).keys(True, True)
            [('a', 'b')]
        """
        self._require_unlocked(f"set {name!r}")
        key = as_key(name)
        held = self._specs.get(key[0])
        if len(key) > 1 and isinstance(held, Entries):
            held.set(key[1:], spec)
            return self
        self._specs.update(self._entries({**self._specs, key: spec}))
        return self

    def update(self, dict_or_spec: Mapping[Any, Any] | Entries) -> Self:
        """Set all specs of a mapping or another Composite; nested ones are updated likewise.

        Raises:
            CallOrderError: the Composite is locked.
            OptionError: a spec does not start with the Composite's shape.
        """
        for name, spec in list(dict_or_spec.items()):  # pyright: ignore[reportUnknownVariableType, reportAttributeAccessIssue]
            held = self._specs.get(name) if isinstance(name, str) else None
            if isinstance(held, Entries) and isinstance(spec, Mapping | Entries):
                held.update(spec)
            else:
                self.set(name, spec)  # pyright: ignore[reportUnknownArgumentType]
        return self

    def pop(self, key: NestedKey, default: Any = MISSING) -> Any:
        """Remove the spec under a key, and return it.

        Raises:
            CallOrderError: the Composite is locked.
            KeyError: there is no such key, and no default.
        """
        self._require_unlocked(f"pop {key!r}")
        path = as_key(key)
        holder = self._holder(path)
        if holder is None or path[-1] not in holder._specs:
            if default is MISSING:
                return self[key]  # raises, naming the keys that there are
            return default
        holder._require_unlocked(f"pop {key!r}")
        return holder._specs.pop(path[-1])

    def _holder(self, path: Key) -> Entries | None:
        holder: Any = self
        for name in path[:-1]:
            holder = holder._specs.get(name) if isinstance(holder, Entries) else None
        return holder if isinstance(holder, Entries) else None

    def __setitem__(self, key: NestedKey, spec: Spec | Mapping[Any, Any] | None) -> None:
        self.set(key, spec)

    def __delitem__(self, key: NestedKey) -> None:
        self.pop(key)

    # ------------------------------------------------------------------ values for TensorDicts

    def is_empty(self, recurse: bool = False) -> bool:
        """Whether there are no entries, or with `recurse` none but empty Composites."""
        specs = list(self._specs.values())
        return not specs or (recurse and all(isinstance(spec, Entries) and spec.is_empty(True) for spec in specs))

    def rand_update(self, val: TensorDictBase) -> TensorDictBase:
        """Write random values under the keys of the spec into a TensorDict."""
        return val.update(self.rand())

    def zeros_update(self, val: TensorDictBase) -> TensorDictBase:
        """Write zeros under the keys of the spec into a TensorDict."""
        return val.update(self.zero())

    def ones_update(self, val: TensorDictBase) -> TensorDictBase:
        """Write ones under the keys of the spec into a TensorDict."""
        return val.update(self.one())
