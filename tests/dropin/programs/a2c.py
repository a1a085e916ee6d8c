"""A2C on the batches of two workers."""

from typing import Any

import tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the env
import torch
from facts import Facts, run
from tensordict.nn import TensorDictModule
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import A2CLoss
from torchrl.objectives.value import GAE


def make_env() -> Any:
    return GymEnv("ReachBySteps-v0")


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), make_env()
    actor = ProbabilisticActor(
        TensorDictModule(MLP(in_features=1, out_features=3, num_cells=[32, 32]), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(in_features=1, out_features=1, num_cells=[32, 32]), in_keys=["observation"])
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic, average_gae=True)
    loss = A2CLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 2e-2)
    collector = MultiSyncCollector(
        [make_env, make_env], actor, frames_per_batch=80, total_frames=2400, cat_results="stack", device="cpu"
    )
    collector.set_seed(seed)
    for batch in collector:
        facts.collected(batch)
        with torch.no_grad():
            advantage(batch)
        losses = loss(batch)
        optimizer.zero_grad()
        (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
        optimizer.step()
        facts.trained(losses)
        collector.update_policy_weights_()
    collector.shutdown()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", "reward"].sum().item() for _ in range(10)]
    return facts.result(sum(final) / 10)


if __name__ == "__main__":
    run(main)
