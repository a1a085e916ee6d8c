"""Claim: the choice of `reap tune` collects at least 85 % of the frames per second of the best set-up that there is.

    python benchmarks/tune.py                                  # about half an hour
    python benchmarks/tune.py --only "CartPole" --seconds 8
    python benchmarks/tune.py --check                          # exit status 1 if an env fails

For each env: all set-ups that `tune` could try collect once; five tunings run, each of which knows nothing of the others; then
the set-ups that could be the best, and all that were chosen, collect in turns, several times. The rate of a set-up is the
median of its turns. A tuning is worth the rate of its choice as a share of the best rate, and an env passes by the median of
its five. The best of many medians is a little too high by chance, which counts against `tune`.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import tyro
from gymnasium.envs.classic_control import CartPoleEnv
from pairs import note
from pong import PixelPolicy, make_pong
from rich import box
from rich.console import Console
from rich.table import Table

import reap
from reap.envs import GymEnv
from reap.system.machine import core_quota, usable_cores
from reap.tuning import Setup, Trial
from reap.tuning.mlp import MLP
from reap.tuning.parts import measure
from reap.tuning.search import PARTS_SHARE, WAITING
from reap.tuning.setups import candidates
from reap.tuning.trials import Track

TARGET = 0.85
TUNINGS = 5
ALL = 5.0
"""Times `seconds`: for the turns of an env's set-ups, while one tuning has `seconds`."""

SCREENING = 0.5
"""Of the time that is not for tunings: for the one turn that each set-up has."""

CONTENDER = 0.75
"""Set-ups whose first turn was this share of the best one collect again, in turns."""

LEAST_ROUNDS = 3
LEAST_TURN = 0.15
"""Seconds of the shortest turn."""

MEDIAN, SIGMA = 5e-4, 1.0
"""Of the lognormal steps, in seconds."""


class Waiting(CartPoleEnv):
    """CartPole whose step waits 5 ms for something that needs no core."""

    def step(self, action: Any) -> Any:
        time.sleep(5e-3)
        return super().step(action)


class Lognormal(CartPoleEnv):
    """CartPole whose step computes for a time that is drawn anew: half of the steps take 0.5 ms, one of 100 takes 5 ms."""

    def step(self, action: Any) -> Any:
        until = time.perf_counter() + random.lognormvariate(math.log(MEDIAN), SIGMA)
        while time.perf_counter() < until:
            pass
        return super().step(action)


def waiting() -> GymEnv:
    return GymEnv(Waiting())


def lognormal() -> GymEnv:
    return GymEnv(Lognormal())


def pong() -> GymEnv:
    return GymEnv(make_pong())


def network(env: Callable[[], GymEnv]) -> Any:
    return MLP(env(), [64, 64])


def pixel_policy(_env: Callable[[], GymEnv]) -> Any:
    return PixelPolicy()


ENVS: dict[str, tuple[Callable[[], GymEnv], Callable[[Any], Any]]] = {
    "CartPole": (partial(GymEnv, "CartPole-v1"), network),
    "Pendulum": (partial(GymEnv, "Pendulum-v1"), network),
    "ALE Pong": (pong, pixel_policy),
    "HalfCheetah": (partial(GymEnv, "HalfCheetah-v5", dtype=torch.float32), network),
    "5 ms a step": (waiting, network),
    "lognormal steps": (lognormal, network),
}
"""What makes an env, and a policy for it."""


@dataclass(frozen=True)
class Options:
    """Compare the choice of `reap tune` with the best of all set-ups."""

    only: tuple[str, ...] = tuple(ENVS)
    """Envs."""
    seconds: float = 20.0
    """Of one tuning; all set-ups together collect for five times as long. Processes that start come on top."""
    frames_per_batch: int = 1000
    """As `tune` has it."""
    check: bool = False
    """Exit with status 1 if an env fails."""


@dataclass
class Result:
    """What was measured of an env.

    Attributes:
        env: its name.
        trials: of all set-ups.
        chosen: the set-ups that the tunings chose.
    """

    env: str
    trials: dict[Setup, Trial]
    chosen: list[Setup] = field(default_factory=list[Setup])

    @property
    def best(self) -> Trial:
        """The set-up that collects most."""
        return max(self.trials.values(), key=lambda trial: trial.rate)

    @property
    def shares(self) -> list[float]:
        """The rate of each choice, as a share of the best one."""
        return [self.trials[setup].rate / self.best.rate for setup in self.chosen]

    @property
    def passes(self) -> bool:
        """Whether the median of the choices reaches the target."""
        return statistics.median(self.shares) >= TARGET


def run(name: str, options: Options) -> Result:
    """Measure an env.

    Args:
        name: which one, of `ENVS`.
        options: how long.
    """
    make_env, policy_for = ENVS[name]
    make_policy = partial(policy_for, make_env)
    cores = max(1, int(min(usable_cores(), core_quota())))
    parts = measure(make_env, make_policy, cores, PARTS_SHARE * options.seconds)
    setups = candidates(cores, waits=parts.step_cpu < WAITING * parts.step, threads=parts.threads)
    result = Result(name, {setup: Trial(setup, parts.bound(setup)) for setup in setups})
    track = Track(make_env, make_policy, options.frames_per_batch)
    left = ALL * options.seconds
    screen(track, list(result.trials.values()), SCREENING * left)
    for _ in range(TUNINGS):
        tuning = reap.tune(
            make_env, policy_factory=make_policy, frames_per_batch=options.frames_per_batch, seconds=options.seconds
        )
        result.chosen.append(tuning.best)
        # One that is not among them has another number of torch's threads, by what this tuning has measured.
        result.trials.setdefault(tuning.best, Trial(tuning.best, parts.bound(tuning.best)))
    contest(track, result, (1 - SCREENING) * left)
    return result


def screen(track: Track, trials: Sequence[Trial], seconds: float) -> None:
    """One turn of each set-up, in an order that is drawn."""
    for trial in random.sample(trials, len(trials)):
        track.run(trial, max(LEAST_TURN, 0.5 * seconds / len(trials)))


def contest(track: Track, result: Result, seconds: float) -> None:
    """More turns of those that could be the best and of those that were chosen, one turn of each at a time."""
    best = result.best.rate
    running = [one for one in result.trials.values() if one.rate >= CONTENDER * best or one.setup in result.chosen]
    deadline, rounds = time.perf_counter() + seconds, 0
    turn = max(LEAST_TURN, 0.5 * seconds / len(running) / LEAST_ROUNDS)
    while rounds < LEAST_ROUNDS or time.perf_counter() < deadline:
        for trial in random.sample(running, len(running)):
            track.run(trial, turn)
        rounds += 1


def table(results: Sequence[Result]) -> Table:
    """What was found: the best of all set-ups, what the tunings chose, and how much that is worth."""
    made = Table(title=f"The choice of `reap tune`, as a share of the best set-up (target {TARGET})", box=box.SIMPLE)
    made.add_column("env")
    made.add_column("best of all", overflow="fold")
    made.add_column("frames/s", justify="right")
    made.add_column("chosen most often", overflow="fold")
    for header in ("median", "lowest-highest", "set-ups", ""):
        made.add_column(header, justify="right", no_wrap=True)
    for one in results:
        shares = one.shares
        spread = f"{min(shares):.2f}-{max(shares):.2f}"
        verdict = "[green]PASS[/]" if one.passes else "[red]FAIL[/]"
        names = str(one.best.setup), f"{one.best.rate:,.0f}", str(statistics.mode(one.chosen))
        made.add_row(one.env, *names, f"{statistics.median(shares):.2f}", spread, str(len(one.trials)), verdict)
    return made


def main(options: Options) -> int:
    """Measure, print, and return the exit status."""
    unknown = [name for name in options.only if name not in ENVS]
    if unknown:
        print(f"tune.py: no such env: {', '.join(unknown)}; there are {', '.join(ENVS)}", file=sys.stderr)
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=140)
    results: list[Result] = []
    for name in options.only:
        began = time.perf_counter()
        results.append(run(name, options))
        choices = ", ".join(
            f"{setup} ({share:.2f})" for setup, share in zip(results[-1].chosen, results[-1].shares, strict=True)
        )
        note(f"{name}: {time.perf_counter() - began:.0f} s; chosen: {choices}")
    console.print(table(results))
    return int(options.check and not all(result.passes for result in results))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
