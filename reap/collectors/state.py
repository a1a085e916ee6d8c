"""The layout of a collector's `state_dict`, and checks of the states, seeds and rows that users pass."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from reap.collectors.stats import COUNTERS
from reap.errors import OptionError, ReapError, SpecMismatch
from reap.policy.contents.held import Held
from reap.weights.base import check_weights
from reap.words import counted

STATE_FORMAT = 1
"""Version of the layout of `state_dict`; increases with each change."""

FIELDS = ("format", "class", "counters", "policy_version", "workers", "policy", "episodes")
"""The keys of a state."""


def policy_state(held: Held) -> dict[str, Any] | None:
    """A copy of a policy's weights, unaffected by further training; None for a policy without weights."""
    if not held:
        return None
    return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in held.state().items()}


def check_state(state: Any, class_name: str, workers: int, held: Held) -> None:
    """Check that a state has this format and comes from a collector of this class, with the same number of workers and weights.

    Raises:
        OptionError: it comes from another collector.
        SpecMismatch: it comes from another policy.
    """
    if not isinstance(state, Mapping):
        raise OptionError(f"state: expected what state_dict() gave, got {type(state).__name__}")
    missing = [name for name in FIELDS if name not in state]
    if missing:
        raise OptionError(f"state: expected what state_dict() gave, with {list(FIELDS)}, found no {missing}")
    has_weights = state["policy"] is not None
    pairs = {
        "format": (STATE_FORMAT, state["format"]),
        "class": (class_name, state["class"]),
        "number of workers": (workers, len(state["workers"])),
        "policy_version": (int, type(state["policy_version"])),
        "policy with weights": (bool(held), has_weights),
    }
    counters = [state["counters"].get(name) for name in COUNTERS] if isinstance(state["counters"], Mapping) else []
    if not counters or any(type(number) is not int or number < 0 for number in counters):
        raise SpecMismatch(f"state: expected the counters {list(COUNTERS)}, found {state['counters']}; nothing was changed")
    differing = [f"{name}: expected {wanted!r}, found {found!r}" for name, (wanted, found) in pairs.items() if wanted != found]
    if differing:
        raise OptionError(f"state: {'; '.join(differing)}; it belongs to another collector")
    if held:
        check_weights(held, state["policy"])


@contextmanager
def as_state_dict_gave() -> Generator[None]:
    """Turn errors inside the `with` block, caused by an altered state, into SpecMismatch. The block must change nothing."""
    try:
        yield
    except ReapError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise SpecMismatch(
            f"state: expected what state_dict() gave, found something else ({type(error).__name__}: {error}); nothing was "
            "changed"
        ) from error


def checked_rows(index: Any) -> list[int]:
    """The rows that an index selects: a row, a list of rows or a mask; raises OptionError for anything else."""
    given = np.atleast_1d(np.asarray(index))
    if given.dtype == np.bool_:
        given = np.flatnonzero(given)
    if given.size and given.dtype.kind not in "iu":
        raise OptionError(f"reset: expected a row, a list of rows or a mask with one bool per row, got {index!r}")
    return given.reshape(-1).astype(np.int64).tolist()


def shares_of_workers(
    index: Any, reset_idx: Any, counts: Sequence[int], options: Mapping[str, Any]
) -> tuple[list[int] | None, list[list[int]]]:
    """The rows to reset (None: all), and each worker's rows, counted from its first.

    Args:
        index: rows counted across all workers, or a mask of them; None for all.
        reset_idx: a mask of the workers, instead of `index`.
        counts: the number of rows of each worker.
        options: unsupported keywords.

    Raises:
        OptionError: both are given, a row or worker does not exist, or there is any other keyword.
    """
    if options:
        raise OptionError(
            f"reset: expected no options, got {sorted(options)}: envs are reset when the next batch is collected; set_seed() "
            "seeds them, and create_env_kwargs or call_env() change them"
        )
    if index is not None and reset_idx is not None:
        raise OptionError("index and reset_idx: expected one of them, got both")
    starts = [sum(counts[:worker]) for worker in range(len(counts))]
    if reset_idx is not None and len(counts) > 1:
        chosen = [bool(one) for one in reset_idx]
        if len(chosen) != len(counts):
            raise OptionError(f"reset_idx: expected one bool for each of {counted(len(counts), 'worker')}, got {len(chosen)}")
        rows = [start + row for start, n, is_it in zip(starts, counts, chosen, strict=True) if is_it for row in range(n)]
    else:
        given = index if reset_idx is None else reset_idx
        rows = None if given is None else checked_rows(given)
    unknown = [row for row in rows or () if not 0 <= row < sum(counts)]
    if unknown:
        raise OptionError(f"reset: expected rows from 0 to {sum(counts) - 1}, got {unknown}")
    return rows, [[row - a for row in rows or () if a <= row < a + n] for a, n in zip(starts, counts, strict=True)]
