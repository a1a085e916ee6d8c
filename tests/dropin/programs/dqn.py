"""DQN with n-step returns and a target network; the buffer samples ahead."""

from typing import Any

import tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the env
import torch
from facts import Facts, run
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, MultiStep, TensorDictReplayBuffer
from torchrl.envs import GymEnv, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate


def make_env() -> Any:
    env = TransformedEnv(GymEnv("ReachBySteps-v0"), StepCounter())
    env.append_transform(RewardSum())
    return env


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), make_env()
    network = MLP(in_features=1, out_features=3, num_cells=[32, 32])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, annealing_num_steps=600, eps_end=0.05)
    collector = Collector(
        make_env,
        TensorDictSequential(actor, explore),
        frames_per_batch=50,
        total_frames=1000,
        init_random_frames=200,
        postproc=MultiStep(gamma=0.9, n_steps=2),
    )
    collector.set_seed(seed)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=64, prefetch=2)
    loss = DQNLoss(actor, delay_value=True, action_space=env.action_spec)
    loss.make_value_estimator(gamma=0.9)
    target = SoftUpdate(loss, eps=0.95)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-3)
    for batch in collector:
        facts.collected(batch)
        explore.step(batch.numel())
        buffer.extend(batch.reshape(-1))
        for _ in range(10):
            sample = buffer.sample()
            losses = loss(sample)
            optimizer.zero_grad()
            losses["loss"].backward()
            optimizer.step()
            target.step()
            facts.describe("sample", sample)
            facts.trained(losses)
        collector.update_policy_weights_()
    collector.shutdown()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", "episode_reward"][-1].item() for _ in range(10)]
    return facts.result(sum(final) / 10, stored=len(buffer))


if __name__ == "__main__":
    run(main)
