"""TD3 with noise on the actions, on batches of whichever worker has finished."""

from typing import Any

import tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the env
import torch
from facts import Facts, run
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import MultiAsyncCollector
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, SerialEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, AdditiveGaussianModule, TanhModule, ValueOperator
from torchrl.objectives import SoftUpdate, TD3Loss


def make_env() -> Any:
    return GymEnv("Reach-v0")


def make_envs() -> Any:
    return SerialEnv(2, make_env)


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), make_env()
    actor = TensorDictSequential(
        TensorDictModule(MLP(in_features=1, out_features=1, num_cells=[32, 32]), ["observation"], ["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=env.action_spec),
    )
    critic = ValueOperator(MLP(in_features=2, out_features=1, num_cells=[32, 32]), in_keys=["observation", "action"])
    noise = AdditiveGaussianModule(env.action_spec, sigma_init=0.5, sigma_end=0.5, annealing_num_steps=1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(2000), sampler=RandomSampler(), batch_size=64, prefetch=2)
    collector = MultiAsyncCollector(
        [make_envs, make_envs], TensorDictSequential(actor, noise), frames_per_batch=40, total_frames=1200
    )
    collector.set_seed(seed)
    loss = TD3Loss(actor, critic, bounds=(-1.0, 1.0), num_qvalue_nets=2)
    loss.make_value_estimator(gamma=0.9)
    target = SoftUpdate(loss, tau=0.05)
    optimizers = {
        "loss_qvalue": torch.optim.Adam(loss.qvalue_network_params.flatten_keys().values(), 3e-3),
        "loss_actor": torch.optim.Adam(loss.actor_network_params.flatten_keys().values(), 3e-3),
    }
    for batch in collector:
        facts.collected(batch)
        buffer.extend(batch.reshape(-1))
        for _ in range(10):
            sample = buffer.sample()
            for name, optimizer in optimizers.items():
                losses = loss(sample)
                loss.zero_grad()
                losses[name].backward()
                optimizer.step()
                facts.trained(losses)
            target.step()
            facts.describe("sample", sample)
        collector.update_policy_weights_()
    collector.shutdown()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", "reward"].sum().item() for _ in range(10)]
    return facts.result(sum(final) / 10, stored=len(buffer))


if __name__ == "__main__":
    run(main)
