"""`WeightStrategy`: weights out of models and into others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from reap.errors import OptionError, SpecMismatch
from reap.weight_update import WeightStrategy


def net(value: float) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    for tensor in made.state_dict().values():
        tensor.fill_(value)
    return made


def values(module: nn.Module) -> set[float]:
    return {float(value) for tensor in module.state_dict().values() for value in tensor.flatten()}


@pytest.mark.parametrize("form", ["tensordict", "state_dict"])
@pytest.mark.parametrize("target", ["module", "TensorDict", "dict"])
def test_weights_of_one_are_those_of_another(form: Any, target: str) -> None:
    strategy, module = WeightStrategy(extract_as=form), net(1.0)
    given: dict[str, Any] = {"module": module, "TensorDict": TensorDict.from_module(module).data, "dict": module.state_dict()}
    strategy.apply_weights(given[target], strategy.extract_weights(net(2.0)))
    assert values(module) == {2.0}


def test_forms() -> None:
    module = net(1.0)
    nested, flat = WeightStrategy().extract_weights(module), WeightStrategy("state_dict").extract_weights(module)
    assert isinstance(nested, TensorDict)
    assert nested["0", "weight"].data_ptr() == module[0].weight.data_ptr()
    assert isinstance(flat, dict)
    assert list(flat) == list(module.state_dict())


def test_one_form_as_the_other() -> None:
    module = net(1.0)
    assert WeightStrategy().extract_weights(module.state_dict())["0", "bias"].tolist() == [1.0]
    assert WeightStrategy().extract_weights(TensorDict.from_module(module)) is not None
    flat = WeightStrategy("state_dict").extract_weights(TensorDict.from_module(module))
    assert set(flat.keys()) == set(module.state_dict())
    assert WeightStrategy("state_dict").extract_weights({"w": torch.ones(1)}) == {"w": torch.ones(1)}


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match=r"extract_as: expected one of \['tensordict', 'state_dict'\], got 'numpy'"):
        WeightStrategy("numpy")
    with pytest.raises(OptionError, match="weights: expected a module, a TensorDict or a state dict, got int"):
        WeightStrategy().extract_weights(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(SpecMismatch):
        WeightStrategy().apply_weights(net(1.0), {"other": torch.ones(1)})
    module = net(1.0)
    WeightStrategy().apply_weights(module, None)
    assert values(module) == {1.0}
