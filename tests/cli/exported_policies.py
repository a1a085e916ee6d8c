"""Modules as policies are made of, each with inputs: what programs of `torch.export` call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Beta, Categorical, Normal
from torch.nn import functional


class Case(NamedTuple):
    """A module in eval, and what it is called with."""

    module: nn.Module
    inputs: tuple[Any, ...]


class Calls(nn.Module):
    """A function of a net's output."""

    def __init__(self, net: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.net, self.function = net, function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.net, *inputs)


def _discrete(net: nn.Module, data: Tensor) -> Any:
    choice = Categorical(logits=net(data), validate_args=False)
    action = choice.sample()
    best = functional.one_hot(choice.probs.argmax(-1), 4)
    return (
        action,
        choice.log_prob(action),
        choice.entropy(),
        torch.where(torch.rand(2) < 0.1, torch.randint(0, 4, (2,)), action),
        best,
    )


def _continuous(net: nn.Module, data: Tensor) -> Any:
    mean, scale = net(data).chunk(2, -1)
    normal = Normal(mean, functional.softplus(scale) + 1e-3, validate_args=False)
    action = normal.rsample()
    return (
        action.tanh(),
        normal.log_prob(action).sum(-1) - torch.log1p(-action.tanh().square() + 1e-6).sum(-1),
        normal.entropy(),
    )


def _bounded(net: nn.Module, data: Tensor) -> Tensor:
    return Beta(*functional.softplus(net(data)).chunk(2, -1), validate_args=False).rsample()


def _indexed(net: nn.Module, data: Tensor) -> Any:
    values = net(data)
    changed = values.clone()
    changed[:, 0] = 1.0
    changed[0] = values[1]
    changed[values > 0] = 0.0
    at = torch.tensor([[0], [1]])
    views = values.view(2, 2, 2), values.unsqueeze(1).expand(2, 3, 4), values.T.contiguous(), values.flip(0)
    taken = values.gather(1, at), values[:, [0, 2]], values.index_select(1, at[:, 0]), values[..., 1:3]
    copies = values.roll(1, 1), torch.take_along_dim(values, at, 1), torch.cat([values, values], -1)
    return changed, *views, *taken, *copies, values.topk(2).values, values.masked_fill(values > 0, -1.0)


def _attended(net: nn.Module, data: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(net(data), data, data, attn_mask=torch.ones(5, 5).tril().bool())


def policies() -> dict[str, Callable[[], Case]]:
    """How each is made, by name."""
    row, frames, times = torch.rand(2, 8), torch.randint(0, 255, (2, 36, 36, 3), dtype=torch.uint8), torch.rand(2, 5, 8)
    state = torch.zeros(1, 2, 6)
    pixels = nn.Sequential(nn.Conv2d(3, 8, 8, 4), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding="same"))
    heads = nn.MultiheadAttention(8, 2, batch_first=True)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return {
        "mlp": lambda: Case(
            nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Dropout(0.1), nn.Linear(16, 4), nn.Tanh()), (row,)
        ),
        "cnn": lambda: Case(
            Calls(nn.Sequential(pixels, nn.MaxPool2d(2), nn.Flatten()), lambda net, o: net(o.permute(0, 3, 1, 2) / 255.0)),
            (frames,),
        ),
        "norms": lambda: Case(
            nn.Sequential(nn.Conv1d(5, 6, 3), nn.GroupNorm(2, 6), nn.AvgPool1d(2), nn.BatchNorm1d(6), nn.RMSNorm(3)), (times,)
        ),
        "lstm": lambda: Case(
            Calls(nn.LSTM(8, 6, batch_first=True), lambda net, o, h, c: net(o, (h, c))), (times, state, state)
        ),
        "two-way lstm": lambda: Case(Calls(nn.LSTM(8, 6, 2, bidirectional=True), lambda net, o: net(o)[0]), (times,)),
        "gru": lambda: Case(Calls(nn.GRU(8, 6, batch_first=True), lambda net, o, h: net(o, h)), (times, state)),
        "cells": lambda: Case(Calls(nn.GRUCell(8, 6), lambda net, o, h: net(o, h[0])), (row, state)),
        "attention": lambda: Case(Calls(heads, lambda net, o: net(o, o, o, need_weights=False)[0]), (times,)),
        "masked attention": lambda: Case(Calls(nn.Linear(8, 8), _attended), (times,)),
        "transformer": lambda: Case(nn.TransformerEncoder(encoder, 1, enable_nested_tensor=False), (times,)),
        "discrete": lambda: Case(Calls(nn.Linear(8, 4), _discrete), (row,)),
        "continuous": lambda: Case(Calls(nn.Linear(8, 4), _continuous), (row,)),
        "beta": lambda: Case(
            Calls(
                nn.Linear(8, 4), lambda net, o: Beta(*functional.softplus(net(o)).chunk(2, -1), validate_args=False).rsample()
            ),
            (row,),
        ),
        "indices": lambda: Case(Calls(nn.Linear(8, 4), _indexed), (row,)),
        "dictionaries": lambda: Case(
            Calls(nn.Embedding(10, 4), lambda net, o: {"action": net(o["id"]).sum(1) + o["at"].mean(-1, keepdim=True)}),
            ({"id": torch.arange(6).view(2, 3), "at": row},),
        ),
    }
