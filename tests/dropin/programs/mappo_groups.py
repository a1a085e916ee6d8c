"""PPO of three agents in an env written with torchrl's `EnvBase`, a batch of two at once."""

from typing import Any

import torch
from facts import Facts, run
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical as Choice
from torchrl.collectors import Collector
from torchrl.data import Bounded, Categorical, Composite, LazyTensorStorage, ReplayBuffer, Unbounded
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

ROWS, AGENTS, LIMIT = 2, 3, 10


class Lines(EnvBase):
    """Each agent moves along a line to its middle; an episode has 10 steps."""

    def __init__(self) -> None:
        super().__init__(batch_size=torch.Size([ROWS]))
        shape = (ROWS, AGENTS)
        agents = {"observation": Bounded(-2, 2, (*shape, 1), dtype=torch.float32)}
        self.observation_spec = Composite(agents=Composite(agents, shape=shape), shape=(ROWS,))
        actions = Composite(action=Categorical(3, shape=shape), shape=shape)
        self.action_spec = Composite(agents=actions, shape=(ROWS,))
        rewards = Composite(reward=Unbounded((*shape, 1)), shape=shape)
        self.reward_spec = Composite(agents=rewards, shape=(ROWS,))
        flags = {name: Categorical(2, shape=(ROWS, 1), dtype=torch.bool) for name in ("done", "terminated")}
        self.done_spec = Composite(flags, shape=(ROWS,))
        self.generator = torch.Generator()

    def _reset(self, tensordict: Any = None, **_: Any) -> TensorDict:
        which = torch.ones(ROWS, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict.keys():
            which = tensordict["_reset"].view(ROWS)
        start = torch.rand((ROWS, AGENTS, 1), generator=self.generator) * 2 - 1
        if which.all():
            self.place, self.steps = start, torch.zeros(ROWS, 1)
        self.place = torch.where(which.view(ROWS, 1, 1), start, self.place)
        self.steps = torch.where(which.view(ROWS, 1), 0.0, self.steps)
        return TensorDict({"agents": self.seen(), **self.flags(torch.zeros(ROWS, 1, dtype=torch.bool))}, [ROWS])

    def _step(self, tensordict: Any) -> TensorDict:
        push = tensordict["agents", "action"].unsqueeze(-1) - 1.0
        self.place, self.steps = (self.place + 0.4 * push).clamp(-2, 2), self.steps + 1
        agents = self.seen().set("reward", (1 - self.place.abs()).clamp(min=0.0))
        return TensorDict({"agents": agents, **self.flags(self.steps >= LIMIT)}, [ROWS])

    def _set_seed(self, seed: Any) -> None:
        self.generator.manual_seed(seed)

    def seen(self) -> TensorDict:
        return TensorDict({"observation": self.place.clone()}, [ROWS, AGENTS])

    def flags(self, done: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"done": done, "terminated": done.clone()}


def network(outputs: int, *, centralised: bool) -> Any:
    return MultiAgentMLP(1, outputs, n_agents=AGENTS, centralised=centralised, share_params=True, depth=2, num_cells=32)


class ForAgents(torch.nn.Module):
    """Gives every agent the reward's flags, as the losses want them."""

    def forward(self, batch: Any) -> Any:
        for name in ("done", "terminated"):
            flag = batch["next", name].unsqueeze(-2).expand(batch["next", "agents", "reward"].shape)
            batch["next", "agents", name] = flag
        return batch


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), Lines()
    actor = ProbabilisticActor(
        TensorDictModule(network(3, centralised=False), [("agents", "observation")], [("agents", "logits")]),
        in_keys=[("agents", "logits")],
        out_keys=[("agents", "action")],
        distribution_class=Choice,
        return_log_prob=True,
        log_prob_key=("agents", "log_prob"),
    )
    value = ("agents", "state_value")
    critic = ValueOperator(network(1, centralised=True), in_keys=[("agents", "observation")], out_keys=[value])
    keys = {name: ("agents", name) for name in ("reward", "done", "terminated")}
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic, average_gae=True)
    advantage.set_keys(value=value, **keys)
    loss = ClipPPOLoss(actor, critic)
    loss.set_keys(action=("agents", "action"), value=value, sample_log_prob=("agents", "log_prob"), **keys)
    optimizer = torch.optim.Adam(loss.parameters(), 5e-3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(200), sampler=SamplerWithoutReplacement(), batch_size=50)
    collector = Collector(env, actor, frames_per_batch=200, total_frames=1200, postproc=ForAgents())
    collector.set_seed(seed)
    for batch in collector:
        facts.collected(batch)
        with torch.no_grad():
            advantage(batch)
        buffer.extend(batch.reshape(-1))
        for sample in (sample for _ in range(5) for sample in buffer):
            losses = loss(sample)
            optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
            optimizer.step()
            facts.describe("sample", sample)
            facts.trained(losses)
    collector.shutdown()
    env = Lines()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", "agents", "reward"].sum(1).mean().item() for _ in range(5)]
    return facts.result(sum(final) / 5, stored=len(buffer))


if __name__ == "__main__":
    run(main)
