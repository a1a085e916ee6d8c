"""Workers that call this process by torch.distributed.rpc; an RPC agent that runs already is used."""

from torch import nn

from reap.collectors.distributed import RPCDataCollector

policy = nn.Linear(3, 1)
with RPCDataCollector("Pendulum-v1", policy, num_workers=2, frames_per_batch=400, total_frames=1200, sync=True) as collector:
    for batch in collector:  # a rollout of every worker
        print(tuple(batch.shape), batch.names)
        collector.update_policy_weights_()
