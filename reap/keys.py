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


def is_private(key: Key) -> bool:
    """Whether a value is left out of batches: a name of its key begins with an underscore.

    Example:
        >>> is_private(("agents", "_hidden")), is_private(("observation",))
        (True, False)
    """
    return any(name.startswith("_") for name in key)


class Branch(dict[str, Any]):
    """Values and further branches by name, as a nested TensorDict holds them.

    Attributes:
        size: the batch dimensions of its own, after those that all values have.
    """

    size: tuple[int, ...] = ()


Sizes = Mapping[Key, tuple[int, ...]]
"""TensorDicts by their key, `()` for the root, with the batch dimensions of their own."""

NO_SIZES: Sizes = {}


def nested(values: Mapping[Key, Any], sizes: Sizes = NO_SIZES) -> Branch:
    """A tree of dictionaries from values under tuple keys, in the order given.

    Args:
        values: the values.
        sizes: the branches that have batch dimensions of their own.

    Example:
        >>> nested({("a",): 1, ("next", "a"): 2, ("next", "b"): 3})
        {'a': 1, 'next': {'a': 2, 'b': 3}}
        >>> nested({("agents", "reward"): 1}, {("agents",): (3,)})["agents"].size
        (3,)
    """
    tree = Branch()
    for key, value in values.items():
        node = tree
        for name in key[:-1]:
            node = node.setdefault(name, Branch())
        node[key[-1]] = value
    for key, size in sizes.items():
        node = tree
        for name in key:
            node = node.get(name)
            if node is None:
                break
        else:
            node.size = size
    return tree


def is_key(value: Any) -> bool:
    """Whether a value is a name, or a tuple of names.

    Example:
        >>> is_key("a"), is_key(("next", "reward")), is_key((0, "a")), is_key(())
        (True, True, False, False)
    """
    parts = value if isinstance(value, tuple) else (value,)
    return bool(parts) and all(isinstance(part, str) for part in parts)
