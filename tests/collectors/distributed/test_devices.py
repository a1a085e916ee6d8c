"""Devices of workers on other machines are looked for there; those of the trainer, here."""

from __future__ import annotations

import pytest
import torch
from tensordict.nn import InteractionType

from reap.collectors.options.multi import Plan, make_plan
from reap.errors import OptionError

WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")


def plan(is_here: bool, **options: str) -> Plan:
    given = {"num_workers": 2, "frames_per_batch": 8, **options}
    return make_plan("CartPole-v1", given, InteractionType, is_shared=False, is_here=is_here)


@WITHOUT_CUDA
def test_policies_elsewhere_may_be_on_devices_that_are_not_here() -> None:
    made = plan(False, policy_device="cuda:1", env_device="cuda")
    assert [one.policy_device for one in made.each] == [torch.device("cuda:1")] * 2
    with pytest.raises(OptionError, match="policy_device='cuda'"):
        plan(True, policy_device="cuda")


@WITHOUT_CUDA
def test_batches_are_stored_here() -> None:
    with pytest.raises(OptionError, match="storing_device='cuda': torch finds no CUDA device here"):
        plan(False, storing_device="cuda")
