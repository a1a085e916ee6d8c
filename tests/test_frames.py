"""No frame misplaced: every key of every batch, against a model in plain Python, under every combination of options."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from reap.collectors import SyncDataCollector
from reap.collectors.utils import split_trajectories
from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.testing import Count, DictPolicy, Id, IdRows
from tests.frames_model import Frames, Model, Stopper, batch_from, counts_from, last_frames, mask_from
from tests.pairwise import by_default, each_value, pairwise

BATCHES = 9


class Case:
    """One collector and its model, and the comparison of their batches."""

    def __init__(self, env: EnvBase, columns: int, options: dict[str, Any], *, seeded: bool = False, period: int = 0):
        self.env, self.options = env, dict(options)
        self.sizes = tuple(env.batch_size)
        self.rows = env.batch_size.numel()
        self.shape = (*self.sizes, columns)
        stoppers = Stopper(period) if period else None, Stopper(period) if period else None
        if period:
            self.options["interruptor"] = stoppers[0]
        self.stoppers = stoppers
        limit = options.get("max_frames_per_traj")
        reset_when_done = options.get("reset_when_done", True)
        self.model = Model(
            self.rows,
            columns,
            int(seeded),
            limit=limit,
            fresh=options.get("reset_at_each_iter", False),
            reset_when_done=reset_when_done,
            stopper=stoppers[1],
        )
        self.counted, self.masked = bool(limit), bool(period) or not reset_when_done
        self.collector = SyncDataCollector(env, DictPolicy(), frames_per_batch=columns * self.rows, **self.options)
        if seeded:
            self.collector.set_seed(3)
        self.frames = 0

    @property
    def random(self) -> bool:
        return self.frames < (self.options.get("init_random_frames") or 0)

    def expect(self, frames: Frames, actions: torch.Tensor) -> dict[Any, torch.Tensor]:
        """The batch that these frames make; also counts them."""
        expected = batch_from(frames, self.shape, actions, random=self.random)
        if self.masked:
            expected["collector", "mask"] = mask_from(frames, self.shape)
        if self.counted:
            expected["step_count"], expected["next", "step_count"] = counts_from(frames, self.shape)
        if self.options.get("set_truncated"):
            last = last_frames(frames, self.shape)
            for name in ("truncated", "done"):
                expected["next", name] = expected["next", name] | last
        self.frames += sum(frame is not None for row in frames for frame in row)
        return expected

    def close(self) -> None:
        """Counts agree, and no env was reset more often than the model says."""
        collector = self.collector
        assert collector.stats().frames == self.frames
        resets = self.env.resets if isinstance(self.env, IdRows) else collector.getattr_env("resets")
        assert (resets if self.sizes else [resets] if isinstance(resets, int) else resets) == [
            row.episode + 1 for row in self.model.rows
        ]
        asked, wanted = self.stoppers
        assert asked is None or asked.asked == wanted.asked
        collector.shutdown()


def assert_batch(batch: TensorDictBase, expected: dict[Any, torch.Tensor]) -> None:
    assert set(batch.keys(include_nested=True, leaves_only=True)) == set(expected)
    for key, value in expected.items():
        found = batch[key]
        assert (found.dtype, found.shape) == (value.dtype, value.shape), key
        assert torch.equal(found, value), (key, found, value)
    following = batch["next"]
    assert torch.equal(following["done"], following["terminated"] | following["truncated"])
    assert not any(value.requires_grad for value in batch.values(True, True))


def check(case: Case, batches: int = BATCHES) -> None:
    assert tuple(case.collector.batch_size) == case.shape
    iterator = iter(case.collector)
    for _ in range(batches):
        batch = next(iterator)
        assert tuple(batch.batch_size) == case.shape
        assert batch.names[-1] == "time"
        actions = batch["action"].clone()
        assert_batch(batch, case.expect(case.model.batch(), actions))
    case.close()


def serial(count: int) -> EnvBase:
    return SerialEnv(count, [lambda i=i: Id(i) for i in range(count)])


ENVS = {
    "single": lambda: GymEnv(Id(0)),
    "serial1": lambda: serial(1),
    "serial3": lambda: serial(3),
    "serial8": lambda: serial(8),
    "own": IdRows,
    "own3": lambda: IdRows((3,)),
    "own2x3": lambda: IdRows((2, 3)),
}
SWITCHES: dict[str, dict[str, Any]] = {
    "limit": {"max_frames_per_traj": 4},
    "fresh": {"reset_at_each_iter": True},
    "idle": {"reset_when_done": False},
    "cut": {"set_truncated": True},
    "same": {"return_same_td": True},
}
# All combinations of the first four, every other one with the same memory each time.
CHOSEN = [names for k in range(5) for names in itertools.combinations(list(SWITCHES)[:4], k)]
COMBINATIONS = [(*names, "same") if place % 2 else names for place, names in enumerate(CHOSEN)]


def joined(value: Any) -> str | None:
    return "-".join(value) if isinstance(value, tuple) else None


@pytest.mark.parametrize(
    ("env", "names", "columns"),
    each_value(pairwise(list(ENVS), COMBINATIONS, [1, 7, 18])),
    ids=joined,
)
def test_every_frame_is_in_its_place(env: str, names: tuple[str, ...], columns: int) -> None:
    """A01, A04, H01 and all of their combinations; batches of 1, 7 and 18 columns with each."""
    options = {name: value for one in names for name, value in SWITCHES[one].items()}
    check(Case(ENVS[env](), columns, options), 4 if columns == 18 else 9)


@pytest.mark.parametrize(
    ("env", "names", "size"),
    each_value(pairwise(["single", "serial3", "own2x3"], COMBINATIONS, [(7, 5), (18, 7), (7, 7), (1, 1)])),
)
def test_every_frame_is_in_its_place_when_interrupted(env: str, names: tuple[str, ...], size: tuple[int, int]) -> None:
    """B08: frames that were not collected are invalid; episodes under way go on."""
    options = {name: value for one in names for name, value in SWITCHES[one].items()}
    columns, period = size
    check(Case(ENVS[env](), columns, options, period=period))


@pytest.mark.parametrize(("env", "names"), each_value(pairwise(["single", "serial3", "own3"], COMBINATIONS)), ids=joined)
def test_every_frame_is_in_its_place_in_warm_up_after_a_seed(env: str, names: tuple[str, ...]) -> None:
    """A14: the keys are the same from the first batch on. A seed before the first batch costs one reset, and no id."""
    options = {name: value for one in names for name, value in SWITCHES[one].items()}
    check(Case(ENVS[env](), 7, {**options, "init_random_frames": 50}, seeded=True))


@pytest.mark.parametrize(("period", "names"), each_value(pairwise([0, 5], COMBINATIONS)), ids=joined)
def test_split_holds_the_same_frames(names: tuple[str, ...], period: int) -> None:
    """Each trajectory of a batch in a row of its own, whole, in order, under its id; nothing invalid; postproc sees it."""
    options = {name: value for one in names for name, value in SWITCHES[one].items()}
    seen: list[TensorDictBase] = []

    def postproc(batch: TensorDictBase) -> TensorDictBase:
        seen.append(batch)
        return batch.set("doubled", batch["next", "reward"] * 2)

    case = Case(serial(3), 7, {**options, "split_trajs": True, "postproc": postproc}, period=period)
    for number, batch in zip(range(BATCHES), case.collector, strict=False):
        frames = case.model.batch()
        ids = sorted({frame.id for row in frames for frame in row if frame})
        pieces = {i: [frame for row in frames for frame in row if frame and frame.id == i] for i in ids}
        order = list(dict.fromkeys(frame.id for row in frames for frame in row if frame))
        longest = max(map(len, pieces.values()))
        padded: Frames = [[*pieces[i], *[None] * (longest - len(pieces[i]))] for i in order]
        case.shape, case.masked = (len(order), longest), True
        assert tuple(batch.batch_size) == case.shape
        assert seen[number] is batch
        expected = case.expect(padded, batch["action"])
        expected["doubled"] = expected["next", "reward"] * 2
        # Padding is zero, ids included.
        expected["collector", "traj_ids"] *= expected["collector", "mask"]
        if "cut" in names:
            # The last frame of each row of the batch, which is no more than one trajectory's last.
            ends = {id(next(frame for frame in reversed(row) if frame)) for row in frames if any(row)}
            kept = torch.tensor([[[id(frame) in ends] for frame in row] for row in padded])
            last = last_frames(padded, case.shape)
            real = torch.tensor([[[bool(f and f.truncated)] for f in row] for row in padded])
            expected["next", "truncated"] = real | (last & kept)
            expected["next", "done"] = expected["next", "truncated"] | expected["next", "terminated"]
        assert_batch(batch, expected)
    case.shape = (3, 7)
    case.close()


@pytest.mark.parametrize("env", ["single", "serial3"])
@pytest.mark.parametrize("same", [False, True])
def test_postproc_is_called_once_per_batch_and_may_change_it(env: str, same: bool) -> None:
    """Keys that it replaces, adds or removes do not reach the next batch."""

    def postproc(batch: TensorDictBase) -> TensorDictBase:
        assert "extra" not in batch.keys()
        batch["extra"] = batch["next", "reward"] + 1
        batch["next", "reward"] = batch["next", "reward"] * 0 + 5
        batch["observation"].mul_(2)
        del batch["log_prob"]
        return batch

    case = Case(ENVS[env](), 7, {"postproc": postproc, "return_same_td": same})
    for _, batch in zip(range(BATCHES), case.collector, strict=False):
        expected = case.expect(case.model.batch(), batch["action"])
        del expected["log_prob"]
        expected["extra"] = expected["next", "reward"] + 1
        expected["next", "reward"] = torch.full_like(expected["next", "reward"], 5)
        expected["observation"] = expected["observation"] * 2
        assert_batch(batch, expected)
    case.close()


def test_same_td_is_the_same_memory() -> None:
    with SyncDataCollector(Id(), DictPolicy(), frames_per_batch=7, return_same_td=True) as collector:
        iterator = iter(collector)
        first, second = next(iterator), next(iterator)
        assert first is second
        assert first["observation"].data_ptr() == second["observation"].data_ptr()


def test_rollout_is_the_batch_as_recorded() -> None:
    """No postproc, no splitting; the frames count."""
    options = {"split_trajs": True, "postproc": lambda batch: batch.set("extra", batch["action"])}
    case = Case(serial(3), 7, options)
    for _ in range(4):
        batch = case.collector.rollout()
        assert_batch(batch, case.expect(case.model.batch(), batch["action"]))
        split = next(iter(case.collector))
        assert "extra" in split.keys()
        case.frames += sum(frame is not None for row in case.model.batch() for frame in row)
    case.close()


@pytest.mark.parametrize(
    ("env", "period", "names"), each_value(itertools.product(["serial3", "own3"], [0, 5], COMBINATIONS[:8])), ids=joined
)
def test_finished_episodes_are_counted_with_their_returns(env: str, names: tuple[str, ...], period: int) -> None:
    options = {name: value for one in names for name, value in SWITCHES[one].items() if one != "cut"}
    case = Case(ENVS[env](), 7, options, period=period)
    wanted: list[tuple[float, int]] = []
    returns: dict[int, float] = {}
    for _, batch in zip(range(2 * BATCHES), case.collector, strict=False):
        frames = case.model.batch()
        case.expect(frames, batch["action"])
        rewards = batch["next", "reward"].tolist()
        for t, b in itertools.product(range(7), range(3)):
            frame = frames[b][t]
            if frame is not None:
                returns[frame.id] = returns.get(frame.id, 0.0) + rewards[b][t][0]
                if frame.done:
                    wanted.append((returns[frame.id], frame.step + 1))
    found = [(episode.reward, episode.length) for episode in case.collector.stats().episodes]
    assert found == wanted
    assert len(wanted) > 15
    assert case.collector.stats().episodes == []
    case.close()


def test_b01_flattened_batches_split_into_whole_episodes() -> None:
    """B01: two envs, three batches, flattened and concatenated: pieces are grouped by id, each in order."""
    with SyncDataCollector(serial(2), DictPolicy(), frames_per_batch=14) as collector:
        batches = [batch for _, batch in zip(range(3), collector, strict=False)]
    flat = torch.cat([batch.reshape(-1) for batch in batches])
    flat.names = ["time"]
    split = split_trajectories(flat)
    ids = flat["collector", "traj_ids"].unique().tolist()
    assert split.shape[0] == len(ids)
    for padded in split:
        piece = padded[padded["collector", "mask"]]
        assert len(piece["collector", "traj_ids"].unique()) == 1
        env, episode, step = piece["observation"].unbind(-1)
        assert (len(env.unique()), len(episode.unique())) == (1, 1)
        assert step.tolist() == list(range(len(step)))
        assert int(piece["next", "done"].sum()) <= 1


def test_b02_splitting_after_a_seed() -> None:
    """B02: ids stay unique over batches, and over a second seed."""
    with SyncDataCollector(serial(2), DictPolicy(), frames_per_batch=14, split_trajs=True) as collector:
        seen: dict[int, tuple[float, float]] = {}
        for number, batch in zip(range(6), collector, strict=False):
            if number == 2:
                collector.set_seed(0)
            for padded in batch:
                piece = padded[padded["collector", "mask"]]
                (i,) = piece["collector", "traj_ids"].unique().tolist()
                (place,) = {(e, k) for e, k, _ in piece["observation"].tolist()}
                assert seen.setdefault(i, place) == place
        assert sorted(seen) == list(range(len(seen)))


def test_idle_rows_show_the_policy_what_it_acted_on_last() -> None:
    """Not memory of other batches: a policy may refuse it, or mix its rows."""
    seen: list[list[list[float]]] = []

    def policy(observation: torch.Tensor) -> torch.Tensor:
        seen.append(observation.tolist())
        return observation[:, :1]

    env = SerialEnv(2, [lambda: Count(3), lambda: Count(12)])
    with SyncDataCollector(env, policy, frames_per_batch=10, reset_when_done=False) as collector:
        kept = [batch for _, batch in zip(range(6), collector, strict=False)]
        assert collector.stats().frames == 2 * (3 + 12)
    assert seen[1:] == 2 * [[[min(t, 2)], [t]] for t in range(12)]
    assert [int(batch["collector", "mask"].sum()) for batch in kept] == [8, 5, 2] * 2


@pytest.mark.parametrize("env", by_default(["single", "serial3"], "single"))
def test_more_columns_than_views_are_made_at_a_time(env: str) -> None:
    check(Case(ENVS[env](), 2100, {"max_frames_per_traj": 6}), 2)


def test_rows_that_are_reset_by_hand_start_new_episodes() -> None:
    with SyncDataCollector(serial(3), DictPolicy(), frames_per_batch=3) as collector:
        first = collector.next()
        collector.reset(1)
        second = collector.next()
        collector.reset([0, 2])
        third = collector.next()
        collector.reset()
        fourth = collector.next()
    episodes = [batch["observation"][:, 0, 1].tolist() for batch in (first, second, third, fourth)]
    # The first episodes of the three envs have one, six and two steps.
    assert episodes == [[0, 0, 0], [1, 1, 0], [2, 1, 1], [3, 2, 2]]
    steps = [batch["observation"][:, 0, 2].tolist() for batch in (first, second, third, fourth)]
    assert steps == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]]


def test_two_collectors_may_take_turns_in_one_env() -> None:
    """Each begins new episodes where the other has been."""
    env = GymEnv(Count(9))
    one = SyncDataCollector(env, DictPolicy(), frames_per_batch=2)
    other = SyncDataCollector(env, DictPolicy(), frames_per_batch=3)
    for _ in range(3):
        for collector, length in ((one, 2), (other, 3)):
            batch = collector.next()
            assert batch["observation"].squeeze(-1).tolist() == list(range(length))
            assert len(batch["collector", "traj_ids"].unique()) == 1
    one.shutdown(close_env=False)
    other.shutdown()
