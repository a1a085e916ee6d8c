"""Episodes again, a campaign: random episodes of five envs from four collectors are recorded, run again and compared.

    python -m tests.again                              # 50 episodes of each, 1,000 in all
    python -m tests.again --episodes 4 --envs Pong
    python -m tests.again --table docs/episodes.md     # puts the table on that page

It exits with 1 if any episode departs from its record.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import reap
from reap import MultiaSyncDataCollector, MultiSyncDataCollector, SerialEnv, SyncDataCollector
from reap.collectors.distributed import RayCollector
from reap.recording.records import EpisodeRecord

ENVS = {
    "CartPole": "CartPole-v1",
    "Pendulum": "Pendulum-v1",
    "HalfCheetah": "HalfCheetah-v5",
    "FrozenLake": "FrozenLake-v1",
    "Pong": "ALE/Pong-v5",
}

ROWS = 2

START, END = "<!-- table of tests/again.py -->", "<!-- end of the table -->"


def sync(env_id: str, **options: Any) -> Any:
    """In this process."""
    return SyncDataCollector(SerialEnv(ROWS, env_id), **options)


def workers(kind: Callable[..., Any], env_id: str, **options: Any) -> Any:
    """Two workers."""
    return kind([partial(SerialEnv, ROWS, env_id)] * 2, **options)


COLLECTORS: dict[str, Callable[..., Any]] = {
    "Sync": sync,
    "MultiSync": partial(workers, MultiSyncDataCollector),
    "MultiaSync": partial(workers, MultiaSyncDataCollector),
    "Ray": partial(workers, RayCollector),
}


def records_of(collector: Any) -> Iterator[EpisodeRecord]:
    """The episodes of a collector, for ever."""
    while True:
        collector.next()
        yield from collector.episodes.take()


def equal_of(name: str, env: str, count: int) -> tuple[int, int, int]:
    """How many of the episodes of a collector are equal when they are run again, how many there were, and their steps."""
    with COLLECTORS[name](ENVS[env], frames_per_batch=400, record_episodes=400, seed=sum(map(ord, name + env))) as collector:
        records = list(islice(records_of(collector), count))
    found = [reap.replay(None, record) for record in records]
    for one in found:
        if not one.equal:
            print(f"{name}, {env}: {one}", file=sys.stderr)
    return sum(one.equal for one in found), len(found), sum(one.steps for one in found)


def main() -> int:
    """The campaign; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=50, help="of each env and collector")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--collectors", nargs="+", choices=COLLECTORS, default=list(COLLECTORS))
    parser.add_argument("--table", type=Path, help="the page whose table is replaced")
    given = parser.parse_args()
    lines = ["| env | " + " | ".join(given.collectors) + " | steps compared |", "|---|" + "---|" * (len(given.collectors) + 1)]
    departed = 0
    for env in given.envs:
        began, cells, steps = perf_counter(), list[str](), 0
        for name in given.collectors:
            equal, count, run = equal_of(name, env, given.episodes)
            departed, steps = departed + count - equal, steps + run
            cells.append(f"{equal} of {count}")
        lines.append(f"| {env} | {' | '.join(cells)} | {steps:,} |")
        print(lines[-1], f"{perf_counter() - began:.0f} s", flush=True)
    if given.table is not None:
        page = given.table.read_text(encoding="utf-8")
        table = "\n".join([START, "", *lines, "", END])
        given.table.write_text(re.sub(f"{START}.*{END}", lambda _: table, page, flags=re.DOTALL), encoding="utf-8")
    return int(departed > 0)


if __name__ == "__main__":
    sys.exit(main())
