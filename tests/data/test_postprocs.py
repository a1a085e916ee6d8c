"""`MultiStep` against a plain loop over the frames (CASES B04, B13)."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase

import reap
from reap.collectors import SyncDataCollector
from reap.collectors.utils import split_trajectories
from reap.data import MultiStep
from reap.envs import SerialEnv
from reap.errors import OptionError, SpecMismatch
from reap.testing import Const, Count, CountTL, Id, IdRows


def reference(batch: TensorDictBase, gamma: float, n_steps: int) -> tuple[list[float], list[int]]:
    """Sums of rewards, and the flat place of the frame at each window's end, frame after frame."""
    ids = batch.get(("collector", "traj_ids"), None)
    mask = batch.get(("collector", "mask"), None)
    done, reward = batch["next", "done"].reshape(batch.shape), batch["next", "reward"].reshape(batch.shape)
    columns, sums, places = batch.shape[-1], [], []
    for frame in range(batch.numel()):
        total, k, here = 0.0, 0, frame
        while True:
            total += gamma**k * float(reward.reshape(-1)[here])
            k += 1
            there = here + 1
            if k == n_steps or there % columns == 0 or done.reshape(-1)[here]:
                break
            if ids is not None and ids.reshape(-1)[there] != ids.reshape(-1)[here]:
                break
            if mask is not None and not (mask.reshape(-1)[here] and mask.reshape(-1)[there]):
                break
            here = there
        sums.append(total)
        places.append(here)
    return sums, places


def check(batch: TensorDictBase, gamma: float, n_steps: int) -> TensorDictBase:
    """The n-step batch, compared with the reference to the last bit; the input is as before."""
    before = batch.clone()
    result = MultiStep(gamma, n_steps)(batch)
    assert set(batch.keys(True, True)) == set(before.keys(True, True))
    assert (batch == before).all()
    sums, places = reference(batch, gamma, n_steps)
    assert result.batch_size == batch.batch_size
    assert result["next", "reward"].reshape(-1).tolist() == torch.tensor(sums).tolist()
    assert torch.equal(result["next", "original_reward"], batch["next", "reward"])
    flat = batch["next"].reshape(-1)
    for key in flat.exclude("reward").keys(True, True):
        wanted = flat[key][torch.tensor(places)].reshape(batch["next"][key].shape)
        assert torch.equal(result["next"][key], wanted), key
    steps = torch.tensor(places) - torch.arange(batch.numel()) + 1
    assert torch.equal(result["steps_to_next_obs"].reshape(-1), steps)
    assert torch.equal(result["gamma"], torch.tensor(gamma) ** result["steps_to_next_obs"])
    for key in batch.exclude("next").keys(True, True):
        assert torch.equal(result[key], batch[key])
    return result


def random_batch(draw: random.Random) -> TensorDictBase:
    """Rows of frames with ends anywhere, ids that may change without an end, and frames that are not valid."""
    shape = draw.choice([(9,), (1,), (3, 8), (2, 2, 5), (1, 1, 12)])
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    done = torch.rand(*shape, 1, generator=generator) < draw.choice([0.0, 0.2, 0.6, 1.0])
    observation = torch.randn(*shape, 2, 3, generator=generator)
    following = {"observation": observation, "reward": torch.randn(*shape, 1, generator=generator), "done": done}
    following["terminated"], following["truncated"] = (
        done & (observation[..., 0, :1] > 0),
        done & (observation[..., 0, :1] <= 0),
    )
    batch = TensorDict({"observation": observation + 1, "next": following}, shape, names=[*[None] * (len(shape) - 1), "time"])
    if draw.random() < 0.7:
        changes = done.squeeze(-1) | (torch.rand(shape, generator=generator) < 0.1)
        starts = torch.cat([torch.ones_like(changes[..., :1]), changes[..., :-1]], -1)
        batch["collector", "traj_ids"] = starts.reshape(-1).cumsum(0).reshape(shape) - 1
    if draw.random() < 0.5:
        batch["collector", "mask"] = torch.rand(shape, generator=generator) < 0.8
    return batch


@pytest.mark.parametrize("seed", range(60))
def test_any_layout(seed: int) -> None:
    draw = random.Random(seed)
    batch = random_batch(draw)
    result = check(batch, draw.choice([1.0, 0.99, 0.5]), draw.choice([1, 2, 3, 7, 50]))
    assert result.names == batch.names
    assert result["next"].names == batch["next"].names
    if ("collector", "traj_ids") in batch.keys(True):
        check(batch.reshape(-1), 0.9, 4)


def collect(env: Any, frames: int, **options: Any) -> TensorDictBase:
    with SyncDataCollector(env, Const(1.0), frames_per_batch=frames, **options) as collector:
        return collector.next()


def test_b04_windows_end_with_the_episode() -> None:
    batch = collect(Count(3), 12, postproc=MultiStep(gamma=1.0, n_steps=3))
    assert batch["next", "reward"].flatten().tolist() == [3, 2, 1] * 4
    assert batch["next", "observation"].flatten().tolist() == [3] * 12
    assert batch["observation"].flatten().tolist() == [0, 1, 2] * 4
    assert batch["next", "terminated"].all()
    assert batch["nonterminal"].tolist() == [True, True, False] * 4


def test_b13_a_truncated_episode_is_bootstrapped_from_its_own_last_observation() -> None:
    """Two episodes of values 1 and 100: every n-step target is that of the frame's own episode."""
    batch = collect(CountTL(1000, 4), 8, postproc=MultiStep(gamma=1.0, n_steps=3))
    value = torch.where(batch["collector", "traj_ids"] == 0, 1.0, 100.0)[:, None]
    target = batch["next", "reward"] + value * ~batch["next", "terminated"]
    assert target.flatten().tolist() == [4, 4, 3, 2, 103, 103, 102, 101]
    assert batch["next", "observation"].flatten().tolist() == [3, 4, 4, 4] * 2
    assert batch["next", "truncated"].flatten().tolist() == [False, True, True, True] * 2


@pytest.mark.parametrize("make", [lambda: SerialEnv(3, [lambda i=i: Id(i) for i in range(3)]), lambda: IdRows((2, 2)), Id])
def test_collected_batches(make: Any) -> None:
    """Batched, flattened, and split into padded trajectories."""
    batch = collect(make(), 240)
    rows = check(batch, 0.9, 4)
    flat = check(batch.reshape(-1), 0.9, 4)
    assert torch.equal(rows["next", "reward"].reshape(-1), flat["next", "reward"].reshape(-1))
    padded = check(split_trajectories(batch), 0.9, 4)
    valid = padded["collector", "mask"]
    assert not padded["next", "reward"][~valid].any()
    assert not padded["nonterminal"][~valid].any()
    # Per trajectory the same numbers, wherever its frames lie.
    places = [(batch["collector", "traj_ids"] == number).nonzero() for number in batch["collector", "traj_ids"].unique()]
    by_trajectory = torch.cat([rows["next", "reward"][tuple(place.T)] for place in places])
    order = torch.cat([padded["next", "reward"][number][keep] for number, keep in sorted_trajectories(padded)])
    assert torch.equal(by_trajectory, order)


def sorted_trajectories(padded: TensorDictBase) -> list[tuple[int, torch.Tensor]]:
    numbers = padded["collector", "traj_ids"][:, 0].argsort().tolist()
    return [(number, padded["collector", "mask"][number]) for number in numbers]


def test_rewards_and_dones_below_the_root() -> None:
    """Each agent's reward is summed; without a root done, any agent's ends the window."""
    following = {
        "agents": {
            "reward": torch.tensor([[1, 10], [2, 20], [3, 30], [4, 40]]).unsqueeze(-1),
            "done": torch.tensor([[0, 0], [0, 1], [0, 0], [0, 0]]).bool().unsqueeze(-1),
        },
        "words": NonTensorStack(*"abcd"),
    }
    result = MultiStep(0.5, 3)(TensorDict({"next": following}, [4]))
    assert result["next", "agents", "reward"].squeeze(-1).tolist() == [[2, 20], [2, 20], [5, 50], [4, 40]]
    assert result["next", "agents", "original_reward"].dtype == torch.int64
    assert list(result["next", "words"]) == ["b", "b", "d", "d"]
    assert result["steps_to_next_obs"].tolist() == [2, 1, 2, 1]


@pytest.mark.parametrize("agents", [(3,), (3, 1), (2, 3)])
@pytest.mark.parametrize("rows", [(), (2,)])
def test_flags_of_several_agents_at_the_root(rows: tuple[int, ...], agents: tuple[int, ...]) -> None:
    """Each agent's windows end with its own flags, as if it had a batch of its own."""
    generator = torch.Generator().manual_seed(1)
    shape = (*rows, 7, *agents)
    done = torch.rand(shape, generator=generator) < 0.3
    reward, observation = torch.rand(shape, generator=generator), torch.rand((*shape, 4), generator=generator)
    following = {"done": done, "reward": reward, "observation": observation}
    result = MultiStep(0.5, 3)(TensorDict({"done": done, "next": following}, [*rows, 7]))
    assert result.batch_size == (*rows, 7)
    time = len(rows)
    alone = TensorDict({"next": following}, shape).permute(*range(time), *range(time + 1, len(shape)), time)
    for index in itertools.product(*map(range, alone.batch_size[:-1])):
        expected = MultiStep(0.5, 3)(alone[index].clone())
        place = (*index[:time], slice(None), *index[time:])
        for key in ("steps_to_next_obs", "gamma", "nonterminal", ("next", "reward"), ("next", "observation"), ("next", "done")):
            assert torch.equal(result[key][place], expected[key]), key


def test_flags_of_several_agents_that_other_entries_lack() -> None:
    following = {"done": torch.zeros(4, 2, 1, dtype=torch.bool), "reward": torch.zeros(4, 1)}
    words = r"tensordict shape must be compatible with its flags: expected every entry \[4, 2, 1\] \+ \[...\], as the flags"
    with pytest.raises(SpecMismatch, match=words):
        MultiStep(0.9, 2)(TensorDict({"next": following}, [4]))


def test_float64_rewards_stay_float64() -> None:
    following = {"reward": torch.full((3, 1), 0.1, dtype=torch.float64), "done": torch.zeros(3, 1, dtype=torch.bool)}
    result = MultiStep(1.0, 2)(TensorDict({"next": following}, [3]))
    assert result["next", "reward"].flatten().tolist() == [0.2, 0.2, 0.1]
    assert result["next", "reward"].dtype == torch.float64


def test_is_a_module_that_pickles() -> None:
    step = pickle.loads(pickle.dumps(reap.MultiStep(0.9, 3)))
    assert repr(step) == "MultiStep(gamma=0.9, n_steps=3)"


@pytest.mark.parametrize(
    ("gamma", "n_steps"), [(0.0, 1), (1.5, 1), (float("nan"), 1), ("1", 1), (0.9, 0), (0.9, 1.5), (0.9, True)]
)
def test_numbers_out_of_range(gamma: Any, n_steps: Any) -> None:
    with pytest.raises(OptionError, match=r"(gamma|n_steps): expected .*, got"):
        MultiStep(gamma, n_steps)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (TensorDict({}, []), "single frame"),
        (TensorDict({"reward": torch.zeros(3)}, [3]), 'entry "next"'),
        (TensorDict({"next": {"reward": torch.zeros(3)}}, [3]), "found neither"),
        (TensorDict({"next": {"done": torch.zeros(3, 1).bool()}}, [3]), "no reward"),
        (
            TensorDict(
                {"next": {"done": torch.zeros(3, 1).bool(), "reward": torch.zeros(3)}, "collector": {"mask": torch.ones(3, 2)}},
                [3],
            ),
            r"mask.*\[3\], found \[3, 2\]",
        ),
    ],
)
def test_batches_that_do_not_fit(batch: TensorDictBase, words: str) -> None:
    with pytest.raises(SpecMismatch, match=words):
        MultiStep(0.9, 2)(batch)
