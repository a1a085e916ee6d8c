"""DQN with an LSTM, trained on slices of episodes."""

from typing import Any

import tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the env
import torch
from facts import Facts, run
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, EGreedyModule, LSTMModule, QValueModule, set_recurrent_mode
from torchrl.objectives import DQNLoss, SoftUpdate


def main(seed: int) -> dict[str, Any]:
    facts = Facts()
    memory = LSTMModule(input_size=2, hidden_size=16, in_key="observation", out_key="embed")
    transforms = Compose(InitTracker(), memory.make_tensordict_primer())  # pyright: ignore[reportCallIssue]
    env = TransformedEnv(GymEnv("Recall-v0"), transforms)
    values = TensorDictModule(MLP(in_features=16, out_features=2, num_cells=[16]), ["embed"], ["action_value"])
    actor = TensorDictSequential(memory, values, QValueModule(spec=env.action_spec))
    explore = EGreedyModule(env.action_spec, annealing_num_steps=600, eps_end=0.05)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1200),
        sampler=SliceSampler(slice_len=5, end_key=("next", "done"), strict_length=True),
        batch_size=160,
    )
    collector = Collector(env, TensorDictSequential(actor, explore), frames_per_batch=50, total_frames=1200)
    collector.set_seed(seed)
    loss = DQNLoss(actor, delay_value=True, action_space=env.action_spec)
    loss.make_value_estimator(gamma=0.5)
    target = SoftUpdate(loss, tau=0.1)
    optimizer = torch.optim.Adam(loss.parameters(), 5e-3)
    for batch in collector:
        facts.collected(batch)
        explore.step(batch.numel())
        buffer.extend(batch)
        for _ in range(6):
            sample = buffer.sample()
            with set_recurrent_mode(True):
                losses = loss(sample.reshape(-1, 5))
            optimizer.zero_grad()
            losses["loss"].backward()
            optimizer.step()
            target.step()
            facts.describe("sample", sample)
            facts.trained(losses)
        collector.update_policy_weights_()
    collector.shutdown(close_env=False)
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(5, actor)["next", "reward"].sum().item() for _ in range(10)]
    return facts.result(sum(final) / 10, stored=len(buffer))


if __name__ == "__main__":
    run(main)
