"""What one test leaves running for those after it that use it too, because it takes seconds to start.

keep("ray", stop) ----> kept until a test of another kind begins, or the tests end ----> stop()
"""

from __future__ import annotations

from collections.abc import Callable

_STOPS: dict[str, Callable[[], object]] = {}


def keep(name: str, stop: Callable[[], object]) -> None:
    """Leave something running.

    Args:
        name: of it, for `is_kept`.
        stop: ends it.
    """
    _STOPS[name] = stop


def is_kept(name: str) -> bool:
    """Whether it runs."""
    return name in _STOPS


def stop_all() -> None:
    """End all that is kept."""
    while _STOPS:
        _STOPS.popitem()[1]()
