"""Warnings as events: what a test does when one is shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def on_warning(act: Callable[[str, type[Warning]], Any]) -> Generator[None]:
    """In the body each warning is handed over, text and category, and raises nothing; of this process, from all its threads."""

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        act(str(message), category)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield
