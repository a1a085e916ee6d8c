"""Collects experience with actors of a Ray cluster, or of a Ray of this machine where there is no cluster.

python examples/ray_collector.py
"""

from torch import nn

from reap.collectors.distributed import RayCollector

policy = nn.Linear(3, 1)
with RayCollector("Pendulum-v1", policy, num_collectors=2, frames_per_batch=500, total_frames=4000) as collector:
    for batch in collector:  # [500]: the rollout of one worker, whichever is first; the others go on
        loss = -policy(batch["observation"]).mean()  # your update goes here
        collector.update_policy_weights_()  # for each worker's next rollout
    print(collector.stats())
