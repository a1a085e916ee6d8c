"""Workers in processes of this machine, reached by torch.distributed: the first step towards several machines."""

from torch import nn

from reap.collectors.distributed import DistributedDataCollector

policy = nn.Linear(3, 1)
with DistributedDataCollector("Pendulum-v1", policy, num_workers=2, frames_per_batch=200, total_frames=600) as collector:
    for batch in collector:  # the rollout of one worker, in order of arrival
        print(tuple(batch.shape), batch.names)
        collector.update_policy_weights_()  # your update goes before it
