"""SAC that trains while its collector fills the buffer in the background."""

import time
from typing import Any

import tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the env
import torch
from facts import Facts, run
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import MultiAsyncCollector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate


def make_env() -> Any:
    return GymEnv("Reach-v0")


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), make_env()
    network = nn.Sequential(MLP(in_features=1, out_features=2, num_cells=[32, 32]), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
    )
    critic = ValueOperator(MLP(in_features=2, out_features=1, num_cells=[32, 32]), in_keys=["observation", "action"])
    buffer = ReplayBuffer(storage=LazyTensorStorage(5000), batch_size=64, shared=True)
    collector = MultiAsyncCollector(
        [make_env, make_env],
        actor,
        frames_per_batch=20,
        total_frames=-1,
        init_random_frames=100,
        replay_buffer=buffer,
    )
    collector.set_seed(seed)
    loss = SACLoss(actor, critic, num_qvalue_nets=2)
    loss.make_value_estimator(gamma=0.9)
    target = SoftUpdate(loss, tau=0.05)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-3)
    collector.start()
    while len(buffer) < 200:
        time.sleep(0.01)
    for update in range(300):
        sample = buffer.sample()
        losses = loss(sample)
        optimizer.zero_grad()
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        optimizer.step()
        target.step()
        facts.describe("sample", sample)
        facts.trained(losses)
        if update % 20 == 0:
            collector.update_policy_weights_()
    collector.async_shutdown()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", "reward"].sum().item() for _ in range(10)]
    return facts.result(sum(final) / 10, whole_rollouts=buffer.write_count % 20)


if __name__ == "__main__":
    run(main)
