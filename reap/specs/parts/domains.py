"""Names for specs of one domain: a `BoundedContinuous` is a `Bounded` of floats, an `UnboundedDiscrete` of integers."""

from __future__ import annotations

from typing import Any

import torch

from reap.specs.continuous import Bounded, Unbounded


class _OfDomain(type):
    """A name for the specs of a class that have one domain."""

    kind: type
    own: str
    dtype: torch.dtype | None

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.dtype is not None and len(args) < 3:
            kwargs.setdefault("dtype", cls.dtype)
        return cls.kind(*args, domain=cls.own, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.kind) and instance.domain == cls.own


class BoundedContinuous(metaclass=_OfDomain):
    """`Bounded` of a floating dtype.

    Example:
        >>> isinstance(Bounded(-1, 1, shape=2), BoundedContinuous)
        True
    """

    kind, own, dtype = Bounded, "continuous", None


class BoundedDiscrete(metaclass=_OfDomain):
    """`Bounded` of an integer dtype, which has to be given."""

    kind, own, dtype = Bounded, "discrete", None


class UnboundedContinuous(metaclass=_OfDomain):
    """`Unbounded` of a floating dtype."""

    kind, own, dtype = Unbounded, "continuous", None


class UnboundedDiscrete(metaclass=_OfDomain):
    """`Unbounded` of integers, int64 by default.

    Example:
        >>> UnboundedDiscrete(2).dtype
        torch.int64
    """

    kind, own, dtype = Unbounded, "discrete", torch.int64
