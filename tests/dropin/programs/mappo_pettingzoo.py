"""PPO of two agents of PettingZoo that share a network; the critic sees both."""

from typing import Any

import torch
from facts import Facts, run
from tasks import Team
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import PettingZooWrapper, RewardSum, TransformedEnv
from torchrl.envs.utils import ExplorationType, MarlGroupMapType, set_exploration_type
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

GROUP = "agent"


def make_env() -> Any:
    env = PettingZooWrapper(Team(), group_map={GROUP: ["agent_0", "agent_1"]}, categorical_actions=True)
    return TransformedEnv(env, RewardSum(in_keys=[(GROUP, "reward")], out_keys=[(GROUP, "episode_reward")]))


def network(outputs: int, *, centralised: bool) -> Any:
    return MultiAgentMLP(1, outputs, n_agents=2, centralised=centralised, share_params=True, depth=2, num_cells=32)


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), make_env()
    assert MarlGroupMapType.ALL_IN_ONE_GROUP.name == "ALL_IN_ONE_GROUP"
    observation, action, reward = (GROUP, "observation"), env.action_key, env.reward_key
    actor = ProbabilisticActor(
        TensorDictModule(network(3, centralised=False), [observation], [(GROUP, "logits")]),
        in_keys=[(GROUP, "logits")],
        out_keys=[action],
        spec=env.action_spec,
        distribution_class=Categorical,
        return_log_prob=True,
        log_prob_key=(GROUP, "log_prob"),
    )
    value = ValueOperator(network(1, centralised=True), in_keys=[observation], out_keys=[(GROUP, "state_value")])
    loss = ClipPPOLoss(actor, value, normalize_advantage=True, entropy_coeff=0.01)
    flags = {name: (GROUP, name) for name in ("done", "terminated")}
    loss.set_keys(reward=reward, action=action, value=(GROUP, "state_value"), sample_log_prob=(GROUP, "log_prob"), **flags)
    loss.make_value_estimator(gamma=0.9, lmbda=0.9)
    optimizer = torch.optim.Adam(loss.parameters(), 5e-3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(200), sampler=SamplerWithoutReplacement(), batch_size=50)
    collector = Collector(env, actor, frames_per_batch=200, total_frames=1200)
    collector.set_seed(seed)
    for batch in collector:
        facts.collected(batch)
        with torch.no_grad():
            loss.value_estimator(batch, params=loss.critic_network_params, target_params=loss.target_critic_network_params)
        buffer.extend(batch.reshape(-1))
        for sample in (sample for _ in range(5) for sample in buffer):
            losses = loss(sample)
            optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
            optimizer.step()
            facts.describe("sample", sample)
            facts.trained(losses)
    collector.shutdown()
    env = make_env()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", GROUP, "episode_reward"][-1].mean().item() for _ in range(10)]
    return facts.result(sum(final) / 10, stored=len(buffer))


if __name__ == "__main__":
    run(main)
