"""SAC whose collector fills the buffer itself."""

from typing import Any

import tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the env
import torch
from facts import Facts, run
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import DoubleToFloat, GymEnv, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate


def make_env() -> Any:
    return TransformedEnv(GymEnv("Reach-v0"), DoubleToFloat())


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), make_env()
    network = nn.Sequential(MLP(in_features=1, out_features=2, num_cells=[32, 32]), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low, "high": env.action_spec.space.high},
    )
    critic = ValueOperator(MLP(in_features=2, out_features=1, num_cells=[32, 32]), in_keys=["observation", "action"])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(800), batch_size=64)
    # Random actions come without loc and scale, and torchrl's storage takes no frames that have more than its first ones.
    acting = TensorDictSequential(actor, selected_out_keys=["action"])  # pyright: ignore[reportCallIssue]
    collector = Collector(make_env, acting, frames_per_batch=20, total_frames=800, init_random_frames=200, replay_buffer=buffer)
    collector.set_seed(seed)
    loss = SACLoss(actor, critic, num_qvalue_nets=2)
    loss.make_value_estimator(gamma=0.9)
    target = SoftUpdate(loss, tau=0.05)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-3)
    results: list[Any] = []
    for batch in collector:
        results.append(batch)
        if len(buffer) < 200:
            continue
        for _ in range(10):
            sample = buffer.sample()
            losses = loss(sample)
            optimizer.zero_grad()
            (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
            optimizer.step()
            target.step()
            facts.describe("sample", sample)
            facts.trained(losses)
        collector.update_policy_weights_()
    collector.shutdown()
    facts.describe("buffer", buffer[:])
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", "reward"].sum().item() for _ in range(10)]
    return facts.result(sum(final) / 10, stored=len(buffer), written=buffer.write_count, empty=results.count(None))


if __name__ == "__main__":
    run(main)
