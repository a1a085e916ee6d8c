"""What the page of a running collection costs: `progress(collector, page=True)` with open pages, against `progress(collector)`.

    python benchmarks/page.py --seconds 5 --repeats 6 --pages 1

Two figures, over CartPole × 8 with a small network, the worst case there is (a loop that never waits):

- frames/s with a page, of those without, in turns; the median and the range. It varies by more than the page costs.
- the CPU time of the page's thread, of the time that passed. The loop can lose no more than that: the thread works only
  while it holds the interpreter's lock, or beside the loop.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import torch
import tyro
from ceiling import CartPolePolicy
from rich.console import Console

from reap import SerialEnv, SyncDataCollector, progress

READER = "import sys, urllib.request\nfor line in urllib.request.urlopen(sys.argv[1]): print(flush=True)"
"""An open page, as far as the server can tell."""

MOST_LOST = 0.01
"""Share of frames/s that a page may cost."""


def main(seconds: float = 5.0, repeats: int = 6, pages: int = 1) -> int:
    """Measure.

    Args:
        seconds: length of one turn.
        repeats: turns with a page, and without.
        pages: pages that are open.
    """
    torch.set_num_threads(1)
    ratios, shares = [], []
    for number in range(repeats):
        order = (True, False) if number % 2 else (False, True)
        rates = {}
        for has_page in order:
            rates[has_page], share = turn(has_page, seconds, pages)
            shares += [share] if has_page else []
        ratios.append(rates[True] / rates[False])
    share = statistics.median(shares)
    print(f"frames/s with a page: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of those without")
    print(f"CPU time of its thread: {share:.2%} ({min(shares):.2%} to {max(shares):.2%}) of the time; target: {MOST_LOST:.0%}")
    return int(share > MOST_LOST)


def turn(has_page: bool, seconds: float, pages: int) -> tuple[float, float]:
    """Frames per second, and the share of the time that the page's thread worked."""
    output = StringIO()
    envs = SerialEnv(8, "CartPole-v1")
    with SyncDataCollector(envs, CartPolePolicy(), frames_per_batch=1000) as collector:
        batches = progress(collector, console=Console(file=output, width=500), page=has_page)
        next(batches)
        address = output.getvalue().partition("Page: ")[2].strip()
        with readers(address.replace("/?", "/events?"), pages if has_page else 0):
            start, worked, frames = time.perf_counter(), worked_by_page(), 0
            while (passed := time.perf_counter() - start) < seconds:
                frames += next(batches).numel()
            share = (worked_by_page() - worked) / passed
            batches.close()  # type: ignore[attr-defined]
    return frames / passed, share


def worked_by_page() -> float:
    """CPU seconds of the page's thread; 0 if there is none."""
    clocks = [time.pthread_getcpuclockid(one.ident) for one in threading.enumerate() if one.name == "reap-page" and one.ident]
    return sum(time.clock_gettime(clock) for clock in clocks)


@contextmanager
def readers(address: str, count: int) -> Iterator[None]:
    """Open pages, each in a process of its own, until the page ends."""
    command = [sys.executable, "-c", READER, address]
    open_pages = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for page in open_pages:
            assert page.stdout is not None
            page.stdout.readline()  # it is there
        yield
    finally:
        for page in open_pages:
            page.terminate()
            page.communicate()


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
