"""What `reap` does with a CUDA device, in one run of a few minutes: PASS and FAIL lines, and ratios.

    python benchmarks/gpu_check.py [--device cuda:0] [--seconds 1.0]

Frames are compared with those of the same collector without the device. `--device cpu` runs all that needs none, to
see that the script itself works. The exit code is 1 if a line says FAIL, 2 if there is no such device.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from ceiling import CartPolePolicy, hand_loop
from tensordict import TensorDict
from torch import nn

from reap import GymEnv, MultiaSyncDataCollector, MultiSyncDataCollector, ParallelEnv, SerialEnv, SyncDataCollector
from reap.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer, SliceSampler
from reap.testing import Id

ENVS, COLUMNS, BATCHES = 4, 16, 3
FRAMES = ENVS * COLUMNS


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Attributes:
        name: what was checked.
        problem: what is wrong; empty if nothing is.
        detail: a figure.
    """

    name: str
    problem: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return f"{'FAIL' if self.problem else 'PASS'}  {self.name:64} {self.problem or self.detail}".rstrip()


class Actor(nn.Module):
    """One action of a row, the same on every device: its observation's sum, cut to [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((), 0.25))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return (self.weight * observation.sum(-1, keepdim=True)).clamp(-1, 1)


def env_of(worker: int = 0) -> SerialEnv:
    """Envs whose observations say which env, episode and step they are from."""
    return SerialEnv(ENVS, [lambda b=b: GymEnv(Id(ENVS * worker + b)) for b in range(ENVS)])


CLASSES: dict[str, Callable[..., Any]] = {
    "Sync": lambda policy, **options: SyncDataCollector(env_of(), policy, **options),
    "Sync over ParallelEnv": lambda policy, **options: SyncDataCollector(
        ParallelEnv(ENVS, [lambda b=b: GymEnv(Id(b)) for b in range(ENVS)]), policy, **options
    ),
    "Sync, overlap": lambda policy, **options: SyncDataCollector(
        ParallelEnv(ENVS, [lambda b=b: GymEnv(Id(b)) for b in range(ENVS)], overlap=True), policy, **options
    ),
    "MultiSync": lambda policy, **options: MultiSyncDataCollector([env_of], policy, **options),
    "MultiaSync": lambda policy, **options: MultiaSyncDataCollector([env_of], policy, **options),
}


def batches_of(name: str, policy: nn.Module, **options: Any) -> list[TensorDict]:
    """The first batches of a collector."""
    collector = CLASSES[name](policy, frames_per_batch=FRAMES, total_frames=BATCHES * FRAMES, **options)
    try:
        return [batch.clone() for batch in collector]
    finally:
        collector.shutdown()


def devices(device: torch.device) -> Iterator[Line]:
    """Every class, with the policy, the batches, or both on the device; from the first frame, and after random ones."""
    placements = {"policy": {"policy_device": device}, "batches": {"storing_device": device}, "both": {"device": device}}
    for name, (where, places), warm_up in itertools.product(CLASSES, placements.items(), (0, FRAMES)):
        line = f"{name}: {where} on the device{', after random frames' if warm_up else ''}"
        yield checked(line, lambda n=name, w=where, p=places, u=warm_up: placement_problem(device, n, w, p, u))


def placement_problem(device: torch.device, name: str, where: str, places: dict[str, Any], warm_up: int) -> str:
    """What is wrong with the batches of one placement."""
    options = {"init_random_frames": warm_up} if warm_up else {}
    here, there = batches_of(name, Actor(), **options), batches_of(name, Actor(), **places, **options)
    skipped = warm_up // FRAMES  # random actions come from the generator of another device
    for expected, found in list(zip(here, there, strict=True))[skipped:]:
        wanted = device if where in ("batches", "both") else torch.device("cpu")
        wrong = [key for key, value in found.items(True, True) if value.device.type != wanted.type]
        if wrong:
            return f"expected all values on {wanted}, found others: {wrong}"
        for key, value in expected.items(True, True):
            if not warm_up and not torch.allclose(found[key].cpu().double(), value.double(), atol=1e-5):
                return f"{key} differs from a collector without the device"
    return ""


def updates(device: torch.device) -> Iterator[Line]:
    """New weights reach policies on the device, wherever they act, compiled or in a CUDA graph."""
    kinds: dict[str, dict[str, Any]] = {"": {}}
    if device.type == "cuda":
        kinds |= {", compiled": {"compile_policy": True}, ", CUDA graph": {"cudagraph_policy": True}}
    for name, (kind, options) in itertools.product(("Sync", "MultiSync"), kinds.items()):
        yield checked(f"{name}{kind}: an update is acted on", lambda n=name, o=options: update_problem(device, n, o))


def update_problem(device: torch.device, name: str, options: dict[str, Any]) -> str:
    """What is wrong with the actions after an update."""
    policy = Actor().to(device)
    collector = CLASSES[name](policy, frames_per_batch=FRAMES, policy_device=device, storing_device="cpu", **options)
    try:
        for weight in (0.25, 0.125, -0.25):
            with torch.no_grad():
                policy.weight.fill_(weight)
            collector.update_policy_weights_()
            batch = collector.next()
            expected = (weight * batch["observation"].sum(-1, keepdim=True)).clamp(-1, 1)
            if not torch.allclose(batch["action"].double(), expected.double(), atol=1e-5):
                return f"actions are not those of weight {weight}"
    finally:
        collector.shutdown()
    return ""


def storages(device: torch.device) -> Iterator[Line]:
    """Buffers whose frames are on the device."""
    samplers: dict[str, Callable[[], Any]] = {
        "uniform": lambda: None,
        "prioritised": lambda: PrioritizedSampler(max_capacity=64, alpha=0.7, beta=0.5),
        "slices": lambda: SliceSampler(num_slices=2, end_key=("next", "done")),
    }
    for name, make in samplers.items():
        yield checked(f"LazyTensorStorage on the device, {name}", lambda m=make: storage_problem(device, m()))


def storage_problem(device: torch.device, sampler: Any) -> str:
    """What is wrong with a buffer on the device."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(64, device=device), batch_size=8, sampler=sampler)
    collector = SyncDataCollector(env_of(), Actor(), frames_per_batch=16, policy_device=device, storing_device=device)
    for _ in range(2):
        buffer.extend(collector.next().reshape(-1))
    sample = buffer.sample()
    stored, known = sample["observation"], buffer[:]["observation"]
    if stored.device.type != device.type:
        return f"expected samples on {device}, found {stored.device}"
    if not all((frame == known).all(-1).any() for frame in stored):
        return "a sample holds a frame that was not written"
    return ""


def memory(device: torch.device) -> Iterator[Line]:
    """No memory of the device is kept from batch to batch."""
    if device.type != "cuda":
        return

    def problem() -> str:
        collector = SyncDataCollector(env_of(), Actor(), frames_per_batch=FRAMES, device=device)
        for _ in range(5):
            collector.next()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(device)
        for _ in range(100):
            collector.next()
        torch.cuda.synchronize()
        grown = torch.cuda.memory_allocated(device) - before
        return f"100 batches left {grown:,} bytes" if grown > 0 else ""

    yield checked("100 batches leave nothing on the device", problem)


def speed(device: torch.device, seconds: float) -> Iterator[Line]:
    """CPU envs with a policy on the device, against the loop that one would write by hand."""
    for envs, columns in ((8, 64), (64, 32)):
        policy = CartPolePolicy().to(device)
        ours = SyncDataCollector(SerialEnv(envs, "CartPole-v1"), policy, frames_per_batch=envs * columns, policy_device=device)
        theirs = hand_loop(envs, columns, lambda observation, p=policy: p(observation.to(device)).cpu())
        ratios = [rate(lambda c=ours: c.next().numel(), seconds) / rate(theirs, seconds) for _ in range(5)]
        ours.shutdown()
        yield Line(
            f"CartPole × {envs}, policy on the device", detail=f"{statistics.median(ratios):.2f} of the hand-written loop"
        )


def rate(loop: Callable[[], int], seconds: float) -> float:
    """Frames per second."""
    loop()
    frames, began = 0, time.perf_counter()
    while (lasted := time.perf_counter() - began) < seconds:
        frames += loop()
    return frames / lasted


def checked(name: str, problem: Callable[[], str]) -> Line:
    """A line about what a function returns or raises."""
    began = time.perf_counter()
    try:
        found = problem()
    except Exception as error:  # noqa: BLE001  it is a finding, and the others go on
        traceback.print_exc()
        found = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return Line(name, found, f"{time.perf_counter() - began:.1f} s")


def main() -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("gpu_check: torch finds no CUDA device", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no CUDA device: the script checks itself"
    print(f"torch {torch.__version__}, {name}")
    lines = itertools.chain(devices(device), updates(device), storages(device), memory(device), speed(device, options.seconds))
    failed = 0
    for line in lines:
        print(line, flush=True)
        failed += bool(line.problem)
    print(f"{failed} failed" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
