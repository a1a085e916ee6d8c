"""The process-wide generators of Python, numpy and torch. Values that an env draws from them cannot be repeated."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

NAMES = ("Python's random", "numpy's np.random", "torch's")


class GlobalGenerators:
    """The states of these generators at the time of construction."""

    def __init__(self) -> None:
        self._states = _states()

    def drawn_from(self) -> list[str]:
        """The generators that have been used since."""
        return [name for name, before, now in zip(NAMES, self._states, _states(), strict=True) if before != now]


def _states() -> tuple[Any, ...]:
    of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    state = of_numpy["state"]
    return random.getstate(), (state["key"].tobytes(), state["pos"], of_numpy["gauss"]), torch.get_rng_state().numpy().tobytes()


@contextmanager
def left_alone() -> Generator[None]:
    """Restore the states of these generators after the `with` block."""
    of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        torch.set_rng_state(of_torch)
