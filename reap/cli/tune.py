"""`reap tune`: the best set-up for an env and a policy, from the command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from reap.cli.options import Tune
from reap.cli.plot import target
from reap.cli.policies import load_policy
from reap.envs.make_env import build_env
from reap.errors import OptionError
from reap.tuning import tune

COMPLETE = 0


def run(options: Tune, console: Console) -> int:
    """Tune, and print.

    Args:
        options: the command line.
        console: where to print.

    Returns:
        The exit code.

    Raises:
        OptionError: an option cannot work.
    """
    if options.hidden and options.policy != "random":
        raise OptionError("--hidden: expected it alone, got --policy too")
    plot = None if options.plot is None else target("reap tune --plot", options.plot)
    is_random = options.policy == "random"
    tuning = tune(
        options.env_id,
        policy_factory=None if is_random else partial(_load, options.policy, options.env_id),
        hidden=options.hidden or None,
        frames_per_batch=options.frames_per_batch,
        seconds=options.seconds,
        console=console,
    )
    console.print(tuning)
    if plot is not None:
        tuning.plot(plot)
        console.print(Text(f"Plot: {plot}"), soft_wrap=True)
    return COMPLETE


def _load(text: str, env_id: str) -> Callable[..., Any] | None:
    env = build_env(env_id)
    try:
        return load_policy(text, env)
    finally:
        env.close()
