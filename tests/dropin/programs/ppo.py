"""PPO with advantages of GAE, minibatches from a buffer without replacement."""

from typing import Any

import tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the env
import torch
from facts import Facts, run
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import GymEnv, SerialEnv
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def make_env() -> Any:
    return GymEnv("ReachBySteps-v0", categorical_action_encoding=True)


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), make_env()
    check_env_specs(env)
    actor = ProbabilisticActor(
        TensorDictModule(MLP(in_features=1, out_features=3, num_cells=[32, 32]), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(in_features=1, out_features=1, num_cells=[32, 32]), in_keys=["observation"])
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2)
    optimizer = torch.optim.Adam(loss.parameters(), 5e-3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(200), sampler=SamplerWithoutReplacement(), batch_size=50)
    collector = Collector(
        SerialEnv(4, make_env),
        actor,
        frames_per_batch=200,
        total_frames=1200,
        exploration_type=ExplorationType.RANDOM,
    )
    collector.set_seed(seed)
    for batch in collector:
        facts.collected(batch)
        for _ in range(4):
            with torch.no_grad():
                advantage(batch)
            buffer.extend(batch.reshape(-1))
            for sample in buffer:
                losses = loss(sample)
                optimizer.zero_grad()
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                optimizer.step()
                facts.describe("sample", sample)
                facts.trained(losses)
    collector.shutdown()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", "reward"].sum().item() for _ in range(10)]
    return facts.result(sum(final) / 10, stored=len(buffer))


if __name__ == "__main__":
    run(main)
