"""torchrl's `Trainer` with a replay buffer, DQN."""

import tempfile
from pathlib import Path
from typing import Any

import tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]  registers the env
import torch
from facts import Facts, run
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss
from torchrl.trainers import LogScalar, ReplayBufferTrainer, Trainer, UpdateWeights


def main(seed: int) -> dict[str, Any]:
    facts, env = Facts(), GymEnv("ReachBySteps-v0")
    network = MLP(in_features=1, out_features=3, num_cells=[32, 32])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    policy = TensorDictSequential(actor, EGreedyModule(env.action_spec, eps_init=0.3, eps_end=0.3))
    collector = Collector(GymEnv("ReachBySteps-v0"), policy, frames_per_batch=50, total_frames=1000, init_random_frames=200)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=64)
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=False)
    loss.make_value_estimator(gamma=0.9)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            collector=collector,
            total_frames=1000,
            frame_skip=1,
            loss_module=loss,
            optimizer=torch.optim.Adam(loss.parameters(), 3e-3),
            optim_steps_per_batch=15,
            progress_bar=False,
            save_trainer_interval=500,
            save_trainer_file=Path(folder) / "trainer.pt",
            seed=seed,
        )
        ReplayBufferTrainer(buffer, flatten_tensordicts=True).register(trainer)
        UpdateWeights(collector, 1).register(trainer)
        LogScalar(("next", "reward")).register(trainer)
        trainer.register_op("batch_process", lambda batch: [facts.collected(batch), batch][1])
        trainer.register_op("post_loss", lambda sample: [facts.describe("sample", sample), sample][1])
        trainer.train()
        saved = sorted(torch.load(Path(folder) / "trainer.pt", weights_only=False))
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        final = [env.rollout(10, actor)["next", "reward"].sum().item() for _ in range(10)]
    counts = {"collected": trainer.collected_frames, "saved": len(saved)}
    return facts.result(sum(final) / 10, stored=len(buffer), **counts)


if __name__ == "__main__":
    run(main)
