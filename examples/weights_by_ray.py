"""Weights from one process to actors that act with copies, without a collector.

python examples/weights_by_ray.py
"""

from typing import Any

import ray
import torch
from torch import nn

from reap.weight_update import RayWeightSyncScheme


class Actor:
    """Has a policy of its own, whose weights come by the scheme that it is given."""

    def __init__(self, scheme: RayWeightSyncScheme, number: int) -> None:
        self.policy, self.scheme = nn.Linear(3, 1), scheme
        scheme.init_on_receiver(model=self.policy, worker_idx=number)
        scheme.connect()  # waits for the first weights

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        self.scheme.receive()  # the newest weights, if there are newer ones
        with torch.no_grad():
            return self.policy(observation)


def main() -> None:
    policy, scheme = nn.Linear(3, 1), RayWeightSyncScheme(ray_init_config={"log_to_driver": False})
    scheme.init_on_sender(model=policy, num_workers=2)
    actors: list[Any] = [ray.remote(Actor).remote(scheme, number) for number in range(2)]
    scheme.connect()
    for step in range(3):
        with torch.no_grad():
            policy.weight.fill_(step)
        scheme.send()  # returns at once
    observation = torch.ones(3)
    expected = policy(observation).detach()
    while not all(torch.equal(found, expected) for found in ray.get([one.act.remote(observation) for one in actors])):
        pass  # the weights are on their way
    print("both actors have the newest weights")
    scheme.shutdown()


if __name__ == "__main__":
    main()
