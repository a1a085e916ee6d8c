"""`tune`: measures the parts of a collection, races the reasonable set-ups, and finds the fastest."""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import rich
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from reap.envs.base import EnvBase
from reap.envs.make_env import build_env, is_env
from reap.errors import OptionError
from reap.option_values import not_negative, positive
from reap.optional import load
from reap.system.machine import core_quota, usable_cores
from reap.tuning.mlp import MLP
from reap.tuning.parts import Parts, measure
from reap.tuning.setups import Setup, candidates
from reap.tuning.trials import Track, Trial, race
from reap.words import counted

PARTS_SHARE = 0.15
"""Fraction of the time that is spent on the parts."""

WAITING = 0.5
"""An env counts as waiting if less than this fraction of its steps is CPU time."""

SHOWN, DRAWN = 12, 20
"""Set-ups in the table and in the plot."""


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`. `print` shows the table and the lines to paste.

    Attributes:
        env: what a batch of envs is made from, as Python.
        policy: the policy, as Python.
        frames_per_batch: maximum number of frames in a batch of the trials.
        parts: durations of the parts of a collection.
        trials: the trials, best first.
    """

    env: str
    policy: str
    frames_per_batch: int
    parts: Parts
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Setup:
        """The fastest set-up."""
        return self.trials[0].setup

    @property
    def best_synchronous(self) -> Setup:
        """The fastest one in which all frames of a batch come from the same, latest weights."""
        return next(trial.setup for trial in self.trials if trial.setup.is_synchronous)

    @property
    def code(self) -> str:
        """Lines of Python that make the collector of the best set-up, and of the best synchronous one if that differs."""
        lines = [self.best.code(self.env, self.policy, self.frames_per_batch)]
        if self.best_synchronous != self.best:
            lines += ["", "# on-policy, where all frames of a batch are to be by the latest weights:"]
            lines += [self.best_synchronous.code(self.env, self.policy, self.frames_per_batch)]
        return "\n".join(lines)

    def __str__(self) -> str:
        console = Console(width=100, no_color=True)
        with console.capture() as captured:
            console.print(self, soft_wrap=True)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def __rich__(self) -> RenderableType:
        return Group(_parts_line(self.parts), Text(""), _table(self.trials[:SHOWN]), Text(""), Text(self.code))

    def plot(self, path: str | Path) -> None:
        """Draw the frames per second of all set-ups that were tried, and the estimate for each.

        Args:
            path: the file, whose suffix chooses the format.

        Raises:
            ImportError: matplotlib is not installed.
        """
        trials = self.trials[:DRAWN]
        figure: Any = load("matplotlib.figure", "Tuning.plot").Figure(
            figsize=(9, 1.5 + 0.28 * len(trials)), dpi=140, layout="constrained"
        )
        axes = figure.subplots()
        names = [str(trial.setup) for trial in trials]
        axes.barh(names, [trial.bound for trial in trials], color="#e3e8ef", label="estimate from the parts alone")
        axes.barh(names, [trial.rate for trial in trials], color="#1f4e8c", height=0.5, label="measured")
        axes.invert_yaxis()
        axes.margins(y=0.01)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("frames per second")
        policy = "random actions" if self.policy == "None" else f"policy: {self.policy}"
        title = f"{self.env}, {policy}, {counted(self.parts.cores, 'core')}"
        axes.set_title(title, loc="left", fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        figure.savefig(path)


def tune(
    create_env_fn: Any,
    policy: Callable[..., Any] | None = None,
    *,
    create_env_kwargs: Mapping[str, Any] | None = None,
    policy_factory: Callable[[], Any] | None = None,
    hidden: Sequence[int] | None = None,
    frames_per_batch: int = 1000,
    seconds: float = 60.0,
    cores: int | None = None,
    console: Console | None = None,
) -> Tuning:
    """Find the collector, the number of workers, and the number of envs in each that collect the most frames per second here.

    Steps of the env, resets and calls of the policy are measured first, which gives an estimate for each set-up. Then the
    set-ups race: all that could win collect for a moment, the best for longer. Training is not included: if it takes long,
    `MultiaSyncDataCollector` collects meanwhile, which the table does not show.

    Args:
        create_env_fn: a gymnasium id, or a factory of one env (not of a batch).
        policy: module or function; None for random actions.
        create_env_kwargs: keywords for the factory, or for `GymEnv` with an id.
        policy_factory: builds the policy, instead of `policy`.
        hidden: widths of an `MLP`, instead of `policy`: a network for the env, for tuning before there is a policy.
        frames_per_batch: frames of a batch of the collector that you will use.
        seconds: approximate time to spend; up to four times as much where processes start slowly.
        cores: number of cores to plan for; None for those that this process may use, within the container's limits.
        console: where progress is shown; by default rich's, and only on a terminal.

    Returns:
        The table, the best set-up, and lines of Python that make it.

    Raises:
        OptionError: an env instead of a factory, a batch of envs, more than one policy, or a number that is not positive.

    Example:
        >>> tuning = tune("CartPole-v1", hidden=[64, 64], seconds=2)  # doctest: +SKIP
        >>> print(tuning.best)  # doctest: +SKIP
        MultiSyncDataCollector, 2 workers × 16 envs
    """
    if not not_negative(seconds, "seconds"):
        raise OptionError(f"seconds: expected a positive number, got {seconds!r}")
    positive(frames_per_batch, "frames_per_batch")
    if cores is not None:
        positive(cores, "cores")
    make_env, shown_env = _env(create_env_fn, create_env_kwargs)
    with warnings.catch_warnings(record=True) as told:
        make_policy, shown = _policy(make_env, policy, policy_factory, hidden)
    usable = max(1, int(min(usable_cores(), core_quota()))) if cores is None else cores
    with _once(told), _display(console) as show:
        show(Text("Measuring the parts ..."))
        parts = measure(make_env, make_policy, usable, PARTS_SHARE * seconds)
        setups = list(candidates(usable, waits=parts.step_cpu < WAITING * parts.step, threads=parts.threads))
        trials: list[Trial] = []
        track = Track(make_env, make_policy, frames_per_batch)
        for trials in race(track, setups, parts, (1 - PARTS_SHARE) * seconds):
            show(Group(_parts_line(parts), Text(""), _table(trials[:SHOWN])))
    tried = tuple(trial for trial in trials if trial.rates)
    return Tuning(shown_env, shown, frames_per_batch, parts, tried)


def _env(create_env_fn: Any, kwargs: Mapping[str, Any] | None) -> tuple[Any, str]:
    """The id or the factory of one env, and the arguments of a batch of such envs as Python."""
    if is_env(create_env_fn):
        raise OptionError(f"create_env_fn: expected a gymnasium id or a factory, got an env: {create_env_fn!r}")
    shown = _quoted(create_env_fn) if isinstance(create_env_fn, str) else _name(create_env_fn, "make_env")
    if not kwargs:
        return create_env_fn, shown
    return partial(build_env, create_env_fn, kwargs), f"{shown}, create_env_kwargs={_quoted(dict(kwargs))}"


def _policy(make_env: Any, policy: Any, factory: Any, hidden: Any) -> tuple[Callable[[], Any], str]:
    """The factory of each trial's policy, and the policy as Python."""
    given = [name for name, value in (("policy", policy), ("policy_factory", factory), ("hidden", hidden)) if value is not None]
    if len(given) > 1:
        raise OptionError(f"expected one of policy, policy_factory and hidden, got {' and '.join(given)}")
    env: EnvBase = build_env(make_env)
    try:
        if len(env.batch_size):
            raise OptionError(f"create_env_fn: expected a factory of one env, found a batch of {list(env.batch_size)}")
        if hidden is not None:
            network = MLP(env, hidden)
            return lambda: copy.deepcopy(network), "policy"
    finally:
        env.close()
    if factory is not None:
        return factory, f"{_name(factory, 'make_policy')}()"
    return lambda: policy, "policy" if policy is not None else "None"


def _name(factory: Any, otherwise: str) -> str:
    """A name for a factory in lines of Python; a lambda and a partial have none."""
    name = getattr(factory, "__name__", otherwise)
    return name if name.isidentifier() else otherwise


def _quoted(given: Any) -> str:
    return repr(given).replace("'", '"')


@contextlib.contextmanager
def _once(told: Sequence[warnings.WarningMessage]) -> Generator[None]:
    """Show the warnings of an env that was made, and not again where envs of set-ups are made, in workers as here."""
    for one in told:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)
    with warnings.catch_warnings():
        for one in told:
            warnings.filterwarnings("ignore", re.escape(str(one.message)), one.category)
        yield


@contextlib.contextmanager
def _display(console: Console | None) -> Generator[Callable[[RenderableType], None]]:
    console = console or rich.get_console()
    if not console.is_terminal:
        yield lambda _view: None
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda view: live.update(view, refresh=True)


def _parts_line(parts: Parts) -> Text:
    policies = ", ".join(f"{_time(parts.policy_of(rows))} for {rows}" for rows in (1, 64))
    return Text(
        f"step {_time(parts.step)} ({min(1.0, parts.step_cpu / parts.step):.0%} of it CPU), reset {_time(parts.reset)}, "
        f"policy {policies}; {counted(parts.cores, 'core')}"
    )


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} µs" if seconds < 1e-3 else f"{1e3 * seconds:.1f} ms"


def _table(trials: Sequence[Trial]) -> Table:
    table = Table("collector", "processes", "envs", box=None, padding=(0, 2, 0, 0))
    table.add_column("frames/s", justify="right")
    table.add_column("of the estimate", justify="right")
    for number, trial in enumerate(trials):
        if trial.rates:
            setup, style = trial.setup, "bold" if number == 0 else ""
            cells = setup.kind.value, setup.processes, setup.sizes, f"{trial.rate:,.0f}", f"{trial.share:.0%}"
            table.add_row(*cells, style=style)
    return table
