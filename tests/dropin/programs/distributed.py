"""DQN on the batches of two workers of torch.distributed, launched as processes of this machine."""

from typing import Any

import tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the env
import torch
from facts import Facts, run
from tensordict.nn import TensorDictSequential
from torchrl.collectors.distributed import DistributedCollector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss


def make_env() -> Any:
    return GymEnv("ReachBySteps-v0")


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), make_env()
    network = MLP(in_features=1, out_features=3, num_cells=[32, 32])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, eps_init=0.5, eps_end=0.5)
    collector = DistributedCollector(
        [make_env, make_env],
        TensorDictSequential(actor, explore),
        frames_per_batch=100,
        total_frames=1500,
        sync=True,
        launcher="mp",
        backend="gloo",
        update_after_each_batch=True,
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1500), batch_size=64)
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=False)
    loss.make_value_estimator(gamma=0.9)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-3)
    for batch in collector:
        facts.collected(batch)
        buffer.extend(batch.reshape(-1))
        for _ in range(25):
            sample = buffer.sample()
            losses = loss(sample)
            optimizer.zero_grad()
            losses["loss"].backward()
            optimizer.step()
            facts.describe("sample", sample)
            facts.trained(losses)
    collector.shutdown()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", "reward"].sum().item() for _ in range(10)]
    return facts.result(sum(final) / 10, stored=len(buffer))


if __name__ == "__main__":
    run(main)
