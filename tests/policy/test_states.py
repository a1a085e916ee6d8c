"""Recurrent policies: the state at t+1 is the output at t, and the initial state exactly where an episode starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn

from reap.collectors import SyncDataCollector
from reap.data import Composite, Unbounded
from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.errors import OptionError, SpecMismatch
from reap.testing import Id, IdRows
from tests.pairwise import each_value, pairwise

SIZE = 5
SEED = 3


def scaled(observation: torch.Tensor) -> torch.Tensor:
    return observation / 8


def plain_gru() -> nn.Module:
    """A GRU cell as a plain module, its state an argument by name."""

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(3, SIZE)

        def forward(self, observation: torch.Tensor, h: torch.Tensor) -> dict[Any, torch.Tensor]:
            following = self.cell(scaled(observation).reshape(-1, 3), h.reshape(-1, SIZE)).view_as(h)
            return {"action": following[..., :1] + torch.rand(()), ("next", "h"): following}

    return Policy()


def declared(value: Any, key: Any = "h") -> nn.Module:
    policy = plain_gru()
    policy.initial_state = {key: value}
    return policy


class OptionalLSTM(nn.Module):
    """An LSTM cell whose states may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, SIZE)

    def forward(self, obs: Any, h: torch.Tensor | None = None, c: torch.Tensor | None = None) -> dict[str, Any]:
        """Called without `h` and `c` once, it shows their form."""
        zeros = obs.new_zeros(*obs.shape[:-1], SIZE)
        h, c = (zeros if given is None else given for given in (h, c))
        states = self.cell(scaled(obs).reshape(-1, 3), (h.reshape(-1, SIZE), c.reshape(-1, SIZE)))
        h, c = (state.reshape(zeros.shape) for state in states)
        return {"action": h[..., :1] * 2, "next": {"h": h, "c": c}}


class Layers(nn.Module):
    """`nn.LSTM` or `nn.GRU` of two layers, on one frame at a time; a row's state is `[layers, size]`."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.net = kind(3, SIZE, num_layers=2, batch_first=True)
        self.initial_state = {"h": (2, SIZE), "c": ((2, SIZE), torch.float32)} if kind is nn.LSTM else {"h": (2, SIZE)}

    def forward(self, observation: torch.Tensor, h: torch.Tensor, c: torch.Tensor | None = None) -> dict[Any, torch.Tensor]:
        frames = scaled(observation).reshape(-1, 1, 3)
        given = [state.reshape(-1, 2, SIZE).transpose(0, 1).contiguous() for state in (h, c) if state is not None]
        out, states = self.net(frames, tuple(given) if len(given) == 2 else given[0])
        states = states if isinstance(states, tuple) else (states,)
        following = {("next", name): state.transpose(0, 1).reshape(h.shape) for name, state in zip("hc", states, strict=False)}
        return {"action": out[:, 0, :1].reshape(*observation.shape[:-1], 1), **following}


class Cell(nn.Module):
    """What a `TensorDictModule` wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, SIZE)

    def forward(self, observation: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        following = self.cell(scaled(observation).reshape(-1, 3), h.reshape(-1, SIZE)).view_as(h)
        return following[..., :1], following


ROW = torch.linspace(-1, 1, SIZE)


def by_tensordict(initial: Any = ROW) -> TensorDictModule:
    policy = TensorDictModule(Cell(), ["observation", ("memory", "h")], ["action", ("next", "memory", "h")])
    if initial is not None:
        policy.initial_state = {("memory", "h"): initial}
    return policy


def in_sequence() -> TensorDictSequential:
    policy = TensorDictSequential(
        TensorDictModule(Cell(), ["observation", "h"], ["loc", ("next", "h")]),
        TensorDictModule(torch.ones_like, ["loc"], ["scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"], ["action"], distribution_class=torch.distributions.Normal, return_log_prob=True
        ),
    )
    policy.initial_state = {"h": (SIZE,)}
    return policy


def torchrl_module(name: str) -> TensorDictSequential:
    modules = pytest.importorskip("torchrl.modules")
    keys = {"LSTMModule": ["rs_h", "rs_c"], "GRUModule": ["rs"]}[name]
    recurrent = getattr(modules, name)(
        input_size=3,
        hidden_size=SIZE,
        in_keys=["observation", *keys],
        out_keys=["features", *(("next", key) for key in keys)],
    )
    return TensorDictSequential(recurrent, TensorDictModule(nn.Linear(SIZE, 1), ["features"], ["action"]))


POLICIES: dict[str, tuple[Callable[[], Any], Mapping[Any, torch.Tensor]]] = {
    "a tensor": (lambda: declared(ROW), {("h",): ROW}),
    "a shape": (lambda: declared((SIZE,)), {("h",): torch.zeros(SIZE)}),
    "a list": (lambda: declared([SIZE]), {("h",): torch.zeros(SIZE)}),
    "a torch.Size": (lambda: declared(torch.Size([SIZE])), {("h",): torch.zeros(SIZE)}),
    "shape and dtype": (lambda: declared(((SIZE,), torch.float32)), {("h",): torch.zeros(SIZE)}),
    "a spec": (lambda: declared(Unbounded((SIZE,))), {("h",): torch.zeros(SIZE)}),
    "a parameter": (lambda: declared(nn.Parameter(ROW.clone())), {("h",): ROW}),
    "a key as a tuple": (lambda: declared(ROW, ("h",)), {("h",): ROW}),
    "optional arguments": (OptionalLSTM, {("h",): torch.zeros(SIZE), ("c",): torch.zeros(SIZE)}),
    "nn.LSTM": (lambda: Layers(nn.LSTM), {("h",): torch.zeros(2, SIZE), ("c",): torch.zeros(2, SIZE)}),
    "nn.GRU": (lambda: Layers(nn.GRU), {("h",): torch.zeros(2, SIZE)}),
    "TensorDictModule": (by_tensordict, {("memory", "h"): ROW}),
    "TensorDictSequential": (in_sequence, {("h",): torch.zeros(SIZE)}),
    "LSTMModule": (
        lambda: torchrl_module("LSTMModule"),
        {("rs_h",): torch.zeros(1, SIZE), ("rs_c",): torch.zeros(1, SIZE)},
    ),
    "GRUModule": (lambda: torchrl_module("GRUModule"), {("rs",): torch.zeros(1, SIZE)}),
}
"""Each way to write a recurrent policy, and its initial states."""

ENVS: dict[str, Callable[[], EnvBase]] = {
    "single": lambda: GymEnv(Id(1)),
    "serial": lambda: SerialEnv(3, [lambda n=n: Id(n) for n in range(3)]),
    "batched": lambda: IdRows((2, 3)),
}


def made(name: str) -> Any:
    torch.manual_seed(1)
    return POLICIES[name][0]()


def collector_of(env: str, policy: Any, columns: int = 7, **options: Any) -> SyncDataCollector:
    made_env = ENVS[env]()
    return SyncDataCollector(made_env, policy, frames_per_batch=columns * made_env.batch_size.numel(), **options)


# ---------------------------------------------------------------------- against a loop written by hand


def call(policy: Any, inputs: dict[Any, torch.Tensor], batch: tuple[int, ...]) -> Mapping[Any, torch.Tensor]:
    """Outputs by key, of a policy that takes tensors or a TensorDict."""
    if isinstance(policy, TensorDictModule | TensorDictSequential):
        given = TensorDict({key: value.clone() for key, value in inputs.items()}, batch)
        return {key if isinstance(key, tuple) else (key,): value for key, value in policy(given).items(True, True)}
    observation = inputs.pop(("observation",))
    outputs = TensorDict(policy(observation, **{key[-1]: value.clone() for key, value in inputs.items() if key[-1] in "hc"}))
    return {key if isinstance(key, tuple) else (key,): value for key, value in outputs.items(True, True)}


def by_hand(policy: Any, env: EnvBase, initial: Mapping[Any, torch.Tensor], columns: int) -> dict[Any, torch.Tensor]:
    """Actions and states, before and after each frame, `[*batch, columns, ...]`."""
    batch = tuple(env.batch_size)
    fresh = {key: value.expand(*batch, *value.shape).clone() for key, value in initial.items()}
    states, is_init = dict(fresh), torch.ones(*batch, 1, dtype=torch.bool)
    found: dict[Any, list[torch.Tensor]] = {}
    torch.manual_seed(SEED)
    now = env.reset()
    for _ in range(columns):
        inputs = {("observation",): now["observation"].clone(), **states, ("is_init",): is_init}
        with torch.inference_mode(), set_interaction_type(InteractionType.RANDOM):
            outputs = call(policy, dict(inputs), batch)
        following = {key: outputs["next", *key].clone() for key in states}
        stepped = env.step(now.select("observation").set("action", outputs["action",].clone()))
        values = {**inputs, ("action",): outputs["action",], **{("next", *key): value for key, value in following.items()}}
        for key, value in values.items():
            found.setdefault(key, []).append(value)
        is_init = stepped["next", "done"].clone()
        now = stepped["next"]
        if is_init.any():
            now = env.reset(now.select("observation").set("_reset", is_init))
        states = {key: where(is_init, fresh[key], value) for key, value in following.items()}
    return {key: torch.stack(values, len(batch)) for key, values in found.items()}


def where(mask: torch.Tensor, begun: torch.Tensor, going_on: torch.Tensor) -> torch.Tensor:
    return torch.where(mask.reshape(*mask.shape[:-1], *(1,) * (begun.ndim - mask.ndim + 1)), begun, going_on)


@pytest.mark.parametrize(("name", "env"), each_value(pairwise(list(POLICIES), list(ENVS))))
def test_a17_equal_to_a_loop_by_hand_bit_for_bit(name: str, env: str) -> None:
    initial = POLICIES[name][1]
    wanted = by_hand(made(name), ENVS[env](), initial, 24)
    for columns in (24, 5):
        collector = collector_of(env, made(name), columns)
        torch.manual_seed(SEED)
        batches = [collector.next() for _ in range(-(-24 // columns))]
        found = torch.cat(batches, -1)[..., :24]
        for key, value in wanted.items():
            if key != ("is_init",) or "is_init" in found.keys():
                assert torch.equal(found[key], value), key
        assert ("is_init" in found.keys()) is (name in {"LSTMModule", "GRUModule"})


def test_torchrl_modules_are_called_with_is_init() -> None:
    batch = SyncDataCollector(ENVS["serial"](), made("LSTMModule"), frames_per_batch=60).next()
    assert torch.equal(batch["is_init"], batch["observation"][..., 2:3] == 0)
    assert batch["rs_h"].shape == batch["next", "rs_h"].shape == (3, 20, 1, SIZE)
    assert ("next", "is_init") not in batch.keys(include_nested=True)


# ---------------------------------------------------------------------- whatever else happens


def assert_carried(batches: list[Any], initial: Mapping[Any, torch.Tensor]) -> None:
    """In each row the state is what the frame before put out where that is of the same episode, else the initial one."""
    joined = torch.cat(batches, -1)
    rows = joined.reshape(-1, joined.shape[-1])
    starts = 0
    for row in rows.unbind(0):
        valid = row["collector", "traj_ids"] >= 0
        ids = row["collector", "traj_ids"]
        for key, value in initial.items():
            before = None
            for t in range(len(ids)):
                if not valid[t]:
                    continue
                is_start = before is None or ids[before] != ids[t]
                expected = value if is_start else row["next", *key][before]
                assert torch.equal(row[key][t], expected), (key, t, is_start)
                assert not is_start or row["observation"][t, 2] == 0
                before, starts = t, starts + is_start
    assert starts > rows.shape[0]


Between = Callable[[SyncDataCollector, int], Any]


def collected(env: str, name: str, between: Between = lambda *_: None, **options: Any) -> list[Any]:
    collector = collector_of(env, made(name), **options)
    batches: list[Any] = []
    for number in range(6):
        batches.append(collector.next())
        between(collector, number)
    return batches


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a limit": {"max_frames_per_traj": 3},
    "reset at each batch": {"reset_at_each_iter": True},
    "rows that wait": {"reset_when_done": False},
    "truncated ends": {"set_truncated": True},
}


@pytest.mark.parametrize(
    ("name", "env", "options"),
    pairwise(["a tensor", "optional arguments", "TensorDictModule", "LSTMModule"], list(ENVS), list(OPTIONS)),
)
def test_a17_carried_from_frame_to_frame(name: str, env: str, options: str) -> None:
    assert_carried(collected(env, name, **OPTIONS[options]), POLICIES[name][1])


BETWEEN: dict[str, Between] = {
    "reset": lambda collector, number: collector.reset(),
    "reset of a row": lambda collector, number: collector.reset(0),
    "reset of rows": lambda collector, number: collector.reset([0, 2]) if collector.env.batch_size else None,
    "set_seed": lambda collector, number: collector.set_seed(number),
    "use by hand": lambda collector, number: collector.env.rollout(2, break_when_any_done=False),
}


@pytest.mark.parametrize(("name", "env", "between"), pairwise(["a tensor", "LSTMModule"], list(ENVS), list(BETWEEN)))
def test_a17_carried_whatever_happens_between_two_batches(name: str, env: str, between: str) -> None:
    assert_carried(collected(env, name, BETWEEN[between]), POLICIES[name][1])


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("name", ["a tensor", "TensorDictModule", "LSTMModule"])
def test_a13_envs_are_reset_after_random_actions(name: str, env: str) -> None:
    """The state is zero after them, what a policy would not have made of those frames."""
    rows = max(1, ENVS[env]().batch_size.numel())
    batches = collected(env, name, init_random_frames=14 * rows)
    for key in POLICIES[name][1]:
        assert not any(batch["next", *key].any() for batch in batches[:2])
    assert set(batches[0].keys(True, True)) == set(batches[-1].keys(True, True)), "A14"
    assert (batches[2]["observation"][..., 0, 2] == 0).all()
    assert not set(batches[1]["collector", "traj_ids"].flatten().tolist()) & set(
        batches[2]["collector", "traj_ids"].flatten().tolist()
    )
    assert_carried(batches[2:], POLICIES[name][1])


def test_rows_do_not_depend_on_each_other() -> None:
    """Rows end at different times: each alone is what it is among the others (bits apart: matrix products of other shapes)."""
    together = collected("serial", "a tensor")
    for row in range(3):
        collector = SyncDataCollector(SerialEnv(1, lambda row=row: Id(row)), made("optional arguments"), frames_per_batch=7)
        several = SyncDataCollector(ENVS["serial"](), made("optional arguments"), frames_per_batch=21)
        for _ in range(4):
            torch.testing.assert_close(collector.next()["next", "h"][0], several.next()["next", "h"][row])
    assert len(together) == 6


# ---------------------------------------------------------------------- is_init and step_count


def test_step_count_and_is_init_as_inputs() -> None:
    """By in_keys, or by the names of arguments."""

    def by_name(observation: torch.Tensor, step_count: torch.Tensor, is_init: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"action": step_count.float(), "began": is_init & True}

    by_keys = TensorDictModule(by_name_to_tuple, ["observation", "step_count", "is_init"], ["action", "began"])
    for policy in (by_name, by_keys):
        for limit in (None, 3):
            batches = [
                batch for _, batch in zip(range(4), collector_of("serial", policy, max_frames_per_traj=limit), strict=False)
            ]
            for batch in batches:
                steps = batch["observation"][..., 2:3]
                assert torch.equal(batch["action"], steps)
                assert torch.equal(batch["step_count"], steps.long())
                assert torch.equal(batch["next", "step_count"], steps.long() + 1)
                assert torch.equal(batch["is_init"], steps == 0)
                assert torch.equal(batch["began"], steps == 0)


def by_name_to_tuple(observation: Any, step_count: Any, is_init: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return step_count.float(), is_init & True


def test_step_count_restarts_after_random_actions_and_resets() -> None:
    policy = lambda observation, step_count: step_count.float()  # noqa: E731
    collector = collector_of("serial", policy, init_random_frames=21)
    collector.next()
    for number in range(4):
        batch = collector.next()
        assert torch.equal(batch["action"], batch["observation"][..., 2:3])
        collector.reset(number % 3)


def test_an_optional_argument_that_is_no_state() -> None:
    collector = collector_of("serial", lambda observation, scale=2.0, **more: observation[..., :1] * scale)
    assert set(collector.next().keys()) == {"observation", "action", "next", "collector", "done", "terminated", "truncated"}


# ---------------------------------------------------------------------- where states come from


class Primed(nn.Module):
    """Declares its state by a primer of torchrl's."""

    def __init__(self, cell: nn.Module, **primer: Any) -> None:
        super().__init__()
        self.cell, self.primer = cell, primer

    def forward(self, observation: torch.Tensor, h: torch.Tensor) -> Any:
        return self.cell(observation, h)

    def make_tensordict_primer(self) -> Any:
        transforms, data = pytest.importorskip("torchrl.envs.transforms"), pytest.importorskip("torchrl.data")
        return transforms.TensorDictPrimer({"h": data.Unbounded((SIZE,))}, **self.primer)


@pytest.mark.parametrize(
    ("primer", "initial"),
    [
        ({}, torch.zeros(SIZE)),
        ({"default_value": 0.5}, torch.full((SIZE,), 0.5)),
        ({"default_value": {"h": 0.5}}, torch.full((SIZE,), 0.5)),
        ({"default_value": {"h": ROW}}, ROW),
    ],
)
def test_make_tensordict_primer(primer: dict[str, Any], initial: torch.Tensor) -> None:
    policy = TensorDictModule(Primed(Cell(), **primer), ["observation", "h"], ["action", ("next", "h")])
    batches = [collector_of("serial", policy).next() for _ in range(1)]
    assert_carried(batches, {("h",): initial})


@pytest.mark.parametrize("primer", [{"random": True}, {"default_value": lambda: torch.zeros(SIZE)}])
def test_a_primer_that_draws_or_computes(primer: dict[str, Any]) -> None:
    policy = TensorDictModule(Primed(Cell(), **primer), ["observation", "h"], ["action", ("next", "h")])
    with pytest.raises(OptionError) as caught:
        collector_of("serial", policy)
    assert str(caught.value) == (
        "recurrent state 'h': expected a primer that begins it with a number or a tensor, found one that draws or computes it; "
        "tell it: policy.initial_state = {'h': torch.zeros(hidden_size)}"
    )


def test_initial_state_goes_before_the_primer() -> None:
    policy = TensorDictModule(Primed(Cell(), random=True), ["observation", "h"], ["action", ("next", "h")])
    policy.initial_state = {"h": ROW}
    assert_carried([collector_of("serial", policy).next()], {("h",): ROW})


def test_a_module_that_does_without_its_state_shows_it() -> None:
    class Lenient(TensorDictModule):
        def forward(self, tensordict: Any) -> Any:
            if "h" not in tensordict.keys():
                tensordict["h"] = torch.zeros(*tensordict.batch_size, SIZE)
            return super().forward(tensordict)

    policy = Lenient(Cell(), ["observation", "h"], ["action", ("next", "h")])
    assert_carried([collector_of("serial", policy).next()], {("h",): torch.zeros(SIZE)})


def test_the_initial_state_is_a_copy() -> None:
    policy = made("a tensor")
    given = policy.initial_state["h"] = ROW.clone()
    collector = collector_of("serial", policy)
    given.fill_(9.0)
    assert torch.equal(collector.next()["h"][:, 0], ROW.expand(3, SIZE))


# ---------------------------------------------------------------------- errors


def test_a_plain_module_whose_state_is_not_told() -> None:
    with pytest.raises(OptionError) as caught:
        collector_of("serial", plain_gru())
    assert str(caught.value).endswith(
        "found ['observation', 'h']; rename the arguments, or wrap it: TensorDictModule(policy, in_keys=[...], "
        "out_keys=['action']); if ['h'] is a recurrent state, tell it: policy.initial_state = {'h': torch.zeros(hidden_size)}"
    )


def test_a_tensordict_module_whose_state_is_not_told() -> None:
    with pytest.raises(OptionError) as caught:
        collector_of("serial", by_tensordict(None))
    assert str(caught.value) == (
        "policy TensorDictModule: reads the recurrent state [('memory', 'h')], whose shape is not known and without which it "
        "cannot be called; tell it: policy.initial_state = {('memory', 'h'): torch.zeros(hidden_size)}, one row's state "
        "without batch dimensions"
    )
    assert caught.value.__cause__ is not None


def test_the_line_in_the_error_works() -> None:
    policy = by_tensordict(None)
    policy.initial_state = {("memory", "h"): torch.zeros(SIZE)}
    collector_of("serial", policy).next()


@pytest.mark.parametrize("value", [3, "5", None, (5.0,), ((5,), "float32"), {"h": 5}])
def test_a_form_that_is_none(value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        collector_of("serial", declared(value))
    assert str(caught.value) == (
        f"initial_state['h']: expected one row's state as a tensor, a shape, a pair (shape, dtype) or a spec, got {value!r}"
    )


def test_an_initial_state_that_is_no_dict() -> None:
    policy = plain_gru()
    policy.initial_state = torch.zeros(SIZE)
    with pytest.raises(OptionError, match="^initial_state: expected a dict from keys to one row's state each, got tensor"):
        collector_of("serial", policy)


@pytest.mark.parametrize(
    ("form", "told", "found"),
    [
        ((SIZE + 1,), "shape (6,) and dtype float32", "shape (5,) and dtype float32"),
        (((SIZE,), torch.float64), "shape (5,) and dtype float64", "shape (5,) and dtype float32"),
        ((1, SIZE), "shape (1, 5) and dtype float32", "shape (5,) and dtype float32"),
    ],
)
def test_a_state_whose_form_changes_after_the_first_step(form: Any, told: str, found: str) -> None:
    def policy(observation: torch.Tensor, h: torch.Tensor) -> dict[Any, torch.Tensor]:
        return {"action": observation[..., :1], ("next", "h"): observation.new_zeros(*observation.shape[:-1], SIZE)}

    policy.initial_state = {"h": form}
    with pytest.raises(SpecMismatch) as caught:
        collector_of("serial", policy)
    text = str(caught.value)
    assert "recurrent state 'h': expected " in text
    assert text.endswith("in the policy's output; make policy.initial_state the same")


def test_a_state_that_is_never_written() -> None:
    """It would stay what it is at the start, and training would just be worse."""

    def policy(observation: torch.Tensor, h: torch.Tensor) -> dict[Any, torch.Tensor]:
        return {"action": observation[..., :1] + h[..., :1], "hidden": h + 1}

    policy.initial_state = {"h": (SIZE,)}
    with pytest.raises(SpecMismatch) as caught:
        collector_of("serial", policy)
    assert str(caught.value).endswith(
        "recurrent state 'h': expected the policy to return it under ('next', 'h'), found outputs ['action', 'hidden']"
    )


def test_a_state_that_is_written_in_place_of_the_next() -> None:
    def policy(observation: torch.Tensor, h: torch.Tensor) -> dict[Any, torch.Tensor]:
        return {"action": observation[..., :1], "h": h + 1}

    policy.initial_state = {"h": (SIZE,)}
    with pytest.raises(SpecMismatch, match=r"recurrent state 'h': expected the policy to return it under \('next', 'h'\)"):
        collector_of("serial", policy)


def test_a_state_with_the_name_of_an_observation() -> None:
    class Rows(IdRows):
        def __init__(self) -> None:
            super().__init__((2,))
            self.observation_spec = Composite(observation=Unbounded((2, 3)), shape=(2,))

    def policy(observation: torch.Tensor) -> dict[Any, torch.Tensor]:
        return {"action": observation[..., :1], ("next", "observation"): observation}

    with pytest.raises(SpecMismatch, match="collide with keys of every batch"):
        SyncDataCollector(Rows(), policy, frames_per_batch=4)
