"""`reap tune`: finds the best set-up for an env and a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from reap.cli.options import Tune
from reap.cli.plot import target
from reap.cli.policies import explained, explained_env, load_policy
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
    if options.hidden == ():
        raise OptionError("--hidden: expected the widths of the hidden layers, such as --hidden 64 64, got none")
    if options.hidden and options.policy != "random":
        raise OptionError("--hidden: expected it alone, got --policy too")
    plot = None if options.plot is None else target("reap tune --plot", options.plot)
    env_kwargs = {"categorical_action_encoding": True} if options.indices else {}
    with explained_env(options.env_id):
        build_env(options.env_id, env_kwargs).close()
    is_random = options.policy == "random"
    with nullcontext() if is_random else explained(options.policy):
        tuning = tune(
            options.env_id,
            create_env_kwargs=env_kwargs,
            policy_factory=None if is_random else partial(_load, options.policy, options.env_id, env_kwargs),
            hidden=options.hidden,
            frames_per_batch=options.frames_per_batch,
            seconds=options.seconds,
            console=console,
        )
    note = "your network" if options.hidden else "" if is_random else f"the one of {options.policy}"
    console.print(replace(tuning, policy="policy") if note else tuning, soft_wrap=True)  # lines to paste are not broken
    if note:
        console.print(Text(f"\npolicy is {note}.", style="dim"), soft_wrap=True)
    if plot is not None:
        tuning.plot(plot)
        console.print(Text(f"Plot: {plot}"), soft_wrap=True)
    return COMPLETE


def _load(text: str, env_id: str, env_kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    env = build_env(env_id, env_kwargs)
    try:
        return load_policy(text, env)
    finally:
        env.close()
