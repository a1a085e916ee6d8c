"""Workers in jobs that submitit launches: of a SLURM cluster, or of this machine, as here."""

from torch import nn

from reap.collectors.distributed import DistributedSyncDataCollector

policy = nn.Linear(3, 1)
jobs = {"cluster": "local", "folder": "jobs/%j"}  # on a cluster: {"slurm_partition": "cpu", "slurm_cpus_per_task": 2}
options = {"launcher": "submitit", "slurm_kwargs": jobs, "address": "127.0.0.1"}  # on a cluster: this machine's address there
with DistributedSyncDataCollector("Pendulum-v1", policy, num_workers=2, frames_per_batch=400, **options) as collector:
    for _ in range(3):
        print(tuple(collector.next().shape))  # a rollout of every worker, with the latest weights
