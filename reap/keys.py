"""Names of values in a TensorDict: a string, or a tuple of strings for a nested one.

Inside the library a key is always a tuple of strings; `plain` turns it back into what people write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Key = tuple[str, ...]
NestedKey = str | Key


def as_key(key: NestedKey) -> Key:
    """The tuple form of a key: `"a"` becomes `("a",)`.

    Example:
        >>> as_key("observation"), as_key(("next", "reward"))
        (('observation',), ('next', 'reward'))
    """
    return (key,) if isinstance(key, str) else tuple(key)


def plain(key: Key) -> NestedKey:
    """The form that people write: a string when there is one name only.

    Example:
        >>> plain(("observation",)), plain(("next", "reward"))
        ('observation', ('next', 'reward'))
    """
    return key[0] if len(key) == 1 else key


def nested(values: Mapping[Key, Any]) -> dict[str, Any]:
    """A tree of dictionaries from values under tuple keys, in the order given.

    Example:
        >>> nested({("a",): 1, ("next", "a"): 2, ("next", "b"): 3})
        {'a': 1, 'next': {'a': 2, 'b': 3}}
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        node = tree
        for name in key[:-1]:
            node = node.setdefault(name, {})
        node[key[-1]] = value
    return tree


def is_key(value: Any) -> bool:
    """Whether a value is a name, or a tuple of names.

    Example:
        >>> is_key("a"), is_key(("next", "reward")), is_key((0, "a")), is_key(())
        (True, True, False, False)
    """
    parts = value if isinstance(value, tuple) else (value,)
    return bool(parts) and all(isinstance(part, str) for part in parts)
