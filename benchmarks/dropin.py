"""Claim: a program written for torchrl collects faster with reap's collectors, and never slower, when nothing else is replaced.

    python benchmarks/dropin.py --seconds 1 --repeats 5

Envs, policies and modules are torchrl's; only the collector differs (the first level of `docs/dropin.md`). Both collectors run
in this process, in turns. A rate is frames per second of CPU time, so that other programs of the machine count little.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import Bounded, Categorical, Composite, OneHot, Unbounded
from torchrl.envs import Compose, EnvBase, GymEnv, InitTracker, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.modules import (
    MLP,
    EGreedyModule,
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    QValueModule,
    RandomPolicy,
)

import reap

GOAL, FLOOR = 1.3, 1.0
"""Of all programs together (geometric mean), and of each."""


class Line(EnvBase):
    """An env that costs next to nothing: a tensor that moves, with a flag every 50 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Bounded(-9, 9, (4,)))
        self.action_spec = OneHot(2, dtype=torch.int64)
        self.reward_spec = Unbounded((1,))
        self.done_spec = Composite(
            done=Categorical(2, (1,), dtype=torch.bool), terminated=Categorical(2, (1,), dtype=torch.bool)
        )
        self.observation, self.reward = torch.zeros(4), torch.ones(1)
        self.flags = torch.zeros(1, dtype=torch.bool), torch.ones(1, dtype=torch.bool)
        self.steps = 0

    def _reset(self, tensordict: Any = None, **_: Any) -> TensorDict:
        self.steps = 0
        return TensorDict({"observation": self.observation, "done": self.flags[0], "terminated": self.flags[0]})

    def _step(self, tensordict: Any) -> TensorDict:
        self.steps += 1
        done = self.flags[self.steps == 50]
        values = {"observation": self.observation, "reward": self.reward, "done": done, "terminated": done}
        return TensorDict(values)

    def _set_seed(self, seed: Any) -> None:
        pass


def cartpole() -> Any:
    return GymEnv("CartPole-v1")


def with_transforms() -> Any:
    return TransformedEnv(cartpole(), Compose(StepCounter(), RewardSum(), InitTracker()))


def cartpoles() -> Any:
    return SerialEnv(8, cartpole)


def network(outputs: int = 2) -> Any:
    return MLP(in_features=4, out_features=outputs, num_cells=[64, 64])


def actor(env: Any) -> Any:
    return ProbabilisticActor(
        TensorDictModule(network(), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def q_network(env: Any) -> Any:
    values = QValueActor(network(), in_keys=["observation"], spec=env.action_spec)
    return TensorDictSequential(values, EGreedyModule(env.action_spec))


def recurrent(env: Any) -> Any:
    memory = LSTMModule(input_size=4, hidden_size=32, in_key="observation", out_key="embed")
    env.append_transform(memory.make_tensordict_primer())
    values = TensorDictModule(MLP(in_features=32, out_features=2, num_cells=[]), ["embed"], ["action_value"])
    return TensorDictSequential(memory, values, QValueModule(spec=env.action_spec))


def random_actions(env: Any) -> Any:
    return RandomPolicy(env.full_action_spec)


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], int]] = {
    "GymEnv, random actions": (cartpole, random_actions, 200),
    "GymEnv, actor of PPO": (cartpole, actor, 200),
    "GymEnv, Q-values and ε-greedy": (cartpole, q_network, 200),
    "TransformedEnv, actor of PPO": (with_transforms, actor, 200),
    "TransformedEnv, LSTM": (with_transforms, recurrent, 200),
    "SerialEnv of 8, actor of PPO": (cartpoles, actor, 800),
    "own env, random actions": (Line, random_actions, 200),
    "own env, actor of PPO": (Line, actor, 200),
}
"""Env, policy, and frames of a batch."""


@dataclass(frozen=True)
class Options:
    """Measure reap's collector against torchrl's, with torchrl's envs and modules."""

    seconds: float = 1.0
    """CPU time of one turn of one collector."""
    repeats: int = 5
    """Turns of each."""
    check: bool = False
    """Exit with status 1 if the goal is missed."""


@contextmanager
def loop(cls: Any, make_env: Callable[[], Any], make_policy: Callable[[Any], Any], frames: int) -> Iterator[Callable[[], int]]:
    """A collector that is asked for its next batch."""
    env = make_env()
    collector = cls(env, make_policy(env), frames_per_batch=frames, total_frames=-1)
    batches = iter(collector)
    yield lambda: next(batches).numel()
    collector.shutdown()


def rate(collect: Callable[[], int], seconds: float) -> float:
    """Frames per second of this process's CPU time."""
    frames, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        frames += collect()
    return frames / spent


def measured(name: str, options: Options) -> tuple[list[float], float, float]:
    """Ratios of all turns, and the median rates of reap and of torchrl."""
    torch.manual_seed(0)
    with loop(reap.SyncDataCollector, *PROGRAMS[name]) as ours, loop(Collector, *PROGRAMS[name]) as theirs:
        for collect in (ours, theirs, ours, theirs):
            collect()
        turns = [(rate(ours, options.seconds), rate(theirs, options.seconds)) for _ in range(options.repeats)]
    ratios = [one / other for one, other in turns]
    return ratios, *(statistics.median(rates) for rates in zip(*turns, strict=True))


def main(options: Options) -> int:
    torch.set_num_threads(1)
    table = Table(title="Frames per CPU second: reap's collector, as a ratio to torchrl's")
    for column in ("envs and policy of torchrl", "ratio", "lowest-highest", "reap", "torchrl"):
        table.add_column(column, justify="left" if column.startswith("envs") else "right")
    medians: list[float] = []
    for name in PROGRAMS:
        ratios, ours, theirs = measured(name, options)
        medians.append(statistics.median(ratios))
        table.add_row(name, f"{medians[-1]:.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}", f"{ours:,.0f}", f"{theirs:,.0f}")
    overall = statistics.geometric_mean(medians)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table)
    console.print(f"all together {overall:.2f} (goal {GOAL}), lowest {min(medians):.2f} (goal {FLOOR})")
    return int(options.check and (overall < GOAL or min(medians) < FLOOR))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
