"""Vector envs that reset rows in ways of their own: no counted frame is a reset step, final observations are the true ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

from reap import GymEnv, SerialEnv, SyncDataCollector
from reap.collectors.utils import split_trajectories
from reap.envs import EnvBase
from reap.errors import OptionError, SpecMismatch
from tests.envs.vector_envs import (
    MODES,
    ROWS,
    AutoresetMode,
    OneGenerator,
    collected,
    factories,
    ids_of,
    leaves,
    make_async,
    needs_modes,
    valid,
)

DONE = ("next", "done")


def cart_pole(rows: int = 4, steps: int = 500) -> Any:
    return gym.make_vec("CartPole-v1", rows, vectorization_mode="vector_entry_point", max_episode_steps=steps)


def plain_loop(env: Any, actions: torch.Tensor, columns: int) -> dict[str, Any]:
    """Steps of a next-step env by hand: what a column saw and what followed, and which columns of a row are reset steps."""
    observation, _ = env.reset(seed=7)
    found: dict[str, Any] = {name: [] for name in ("observation", "following", "reward", "terminated", "truncated", "is_reset")}
    ended = np.zeros(env.num_envs, bool)
    for t in range(columns):
        following, reward, terminated, truncated, _ = env.step(actions[:, t].argmax(-1).numpy())
        values = observation.copy(), following.copy(), reward, terminated, truncated, ended
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
        observation, ended = following, terminated | truncated
    return {name: torch.from_numpy(np.stack(value, 1)) for name, value in found.items()}


@pytest.mark.parametrize("columns", [1, 7, 50])
def test_cart_pole_vector_env_equals_a_plain_loop(columns: int) -> None:
    batches = 100 // columns
    with collected(cart_pole(), None, frames_per_batch=4 * columns) as collector:
        collected_batches = [collector.next() for _ in range(batches)]
        stats = collector.stats()
    batch = torch.cat(collected_batches, -1)
    # Actions of invalid frames are blanked in the batch: the same draws again, from a collector that never ends a row.
    actions = _actions(columns, batches)
    expected = plain_loop(cart_pole(), actions, columns * batches)
    mask = valid(batch)
    assert torch.equal(mask, ~expected["is_reset"])
    assert expected["is_reset"].any()
    assert torch.equal(batch["action"][mask], actions[mask])
    for key, name in (("observation", "observation"), (("next", "observation"), "following")):
        assert torch.equal(batch[key][mask], expected[name][mask])
    for name in ("reward", "terminated", "truncated"):
        assert torch.equal(batch["next", name].squeeze(-1)[mask], expected[name][mask].to(batch["next", name].dtype))
    for key, value in leaves(batch).items():
        blank = -1 if key == ("collector", "traj_ids") else 0
        assert (value[~mask] == blank).all(), key
    assert stats.frames == int(mask.sum())
    _check_ids(batch, expected)
    assert stats.finished_episodes == int((expected["terminated"] | expected["truncated"]).sum())


def _actions(columns: int, batches: int) -> torch.Tensor:
    rows = OneGenerator(4, lengths=[10**6] * 4)
    with collected(rows, None, frames_per_batch=4 * columns) as collector:
        return torch.cat([collector.next()["action"] for _ in range(batches)], -2)


def _check_ids(batch: Any, expected: dict[str, Any]) -> None:
    """One id for each episode of a row, and none twice."""
    ends = expected["terminated"] | expected["truncated"]
    seen: set[int] = set()
    for row, row_ends, row_valid in zip(ids_of(batch), ends, valid(batch), strict=True):
        episodes = (row_ends.cumsum(0) - row_ends.long())[row_valid]
        pairs = set(zip(episodes.tolist(), row[row_valid].tolist(), strict=True))
        numbers = {number for _, number in pairs}
        assert len(pairs) == len(numbers) == len(episodes.unique())
        assert not numbers & seen
        assert -1 not in numbers
        seen |= numbers


def test_total_frames_count_valid_frames_only() -> None:
    with collected(cart_pole(), None, frames_per_batch=40, total_frames=200) as collector:
        counts = [int(valid(batch).sum()) for batch in collector]
        assert sum(counts[:-1]) < 200 <= sum(counts) == collector.stats().frames


def test_split_and_set_truncated_leave_reset_steps_out() -> None:
    with collected(OneGenerator(), None, frames_per_batch=10 * ROWS, set_truncated=True) as collector:
        batch = collector.next()
    # Row b: episodes of 2 + b steps, each followed by its reset step.
    expected = [[t % (3 + b) != 2 + b for t in range(10)] for b in range(ROWS)]
    assert valid(batch).tolist() == expected
    truncated = batch["next", "truncated"].squeeze(-1)
    last = [max(t for t in range(10) if row[t]) for row in expected]
    assert truncated.nonzero().tolist() == [[b, t] for b, t in enumerate(last)]
    ends = [[valid_ and t % (3 + b) == 1 + b for t, valid_ in enumerate(row)] for b, row in enumerate(expected)]
    assert batch["next", "terminated"].squeeze(-1).tolist() == ends
    pieces = split_trajectories(batch)
    assert valid(pieces).sum() == valid(batch).sum()
    assert (ids_of(pieces)[valid(pieces)] >= 0).all()


@pytest.mark.parametrize("lengths", [[1, 1, 1], [1, 2, 5], [4, 4, 4]])
@pytest.mark.parametrize("columns", [1, 2, 3, 9])
def test_a_class_that_ignores_masks_is_never_asked_for_some_rows(lengths: list[int], columns: int) -> None:
    env = OneGenerator(lengths=lengths)
    with collected(env, None, seed=None, frames_per_batch=columns * ROWS) as collector:
        batch = torch.cat([collector.next() for _ in range(18 // columns)], -1)
        assert env.full_resets == 1
        assert collector.stats().finished_episodes == sum(t % (n + 1) == n - 1 for n in lengths for t in range(18))
    for b, length in enumerate(lengths):
        for t in range(18):
            episode, step = divmod(t, length + 1)
            is_reset = step == length
            assert bool(valid(batch)[b, t]) is not is_reset
            if not is_reset:
                assert batch["observation"][b, t].tolist() == [b, episode, step]
                assert batch["next", "observation"][b, t].tolist() == [b, episode, step + 1]
                assert batch["next", "reward"][b, t].item() == 2.0 + step
                assert batch[DONE][b, t].item() is (step + 1 == length)
    assert (batch["next", "reward"] >= 0).all()


@needs_modes
def test_same_step_mode_of_an_unknown_class_loses_nothing() -> None:
    env = OneGenerator(mode=AutoresetMode.SAME_STEP)
    with collected(env, None, seed=None, frames_per_batch=4 * ROWS) as collector:
        batch = torch.cat([collector.next() for _ in range(5)], -1)
        assert collector.stats().frames == 60
    assert ("collector", "mask") not in leaves(batch)
    for b in range(ROWS):
        for t in range(20):
            episode, step = divmod(t, 2 + b)
            assert batch["observation"][b, t].tolist() == [b, episode, step]
            assert batch["next", "observation"][b, t].tolist() == [b, episode, step + 1]
            assert batch[DONE][b, t].item() is (step == 1 + b)
    assert env.full_resets == 1


def test_a_recurrent_state_starts_after_the_reset_step() -> None:
    from tensordict.nn import TensorDictModule

    seen: list[torch.Tensor] = []

    def policy(observation: torch.Tensor, is_init: torch.Tensor) -> torch.Tensor:
        seen.append(is_init.squeeze(-1).clone())
        return torch.nn.functional.one_hot(observation[:, 0].long() * 0, 2)

    module = TensorDictModule(policy, in_keys=["observation", "is_init"], out_keys=["action"])
    with collected(OneGenerator(), module, seed=None, frames_per_batch=10 * ROWS) as collector:
        batch = collector.next()
    expected = [[t % (3 + b) == 0 for t in range(10)] for b in range(ROWS)]
    assert torch.stack(seen[-10:], 1).tolist() == expected
    assert batch["is_init"].squeeze(-1)[valid(batch)].tolist() == torch.tensor(expected)[valid(batch)].tolist()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, pytest.param(AutoresetMode.SAME_STEP, marks=needs_modes)])
def test_what_needs_rows_one_by_one_is_refused(mode: AutoresetMode) -> None:
    for options, message in (
        ({"max_frames_per_traj": 5}, "max_frames_per_traj=5: .* cannot reset one row without the others"),
        ({"reset_when_done": False}, "reset_when_done=False: .* cannot wait"),
    ):
        with pytest.raises(OptionError, match=message):
            SyncDataCollector(OneGenerator(mode=mode), None, frames_per_batch=6, **options)
    with collected(OneGenerator(mode=mode), None, frames_per_batch=6) as collector, pytest.raises(OptionError, match="at once"):
        collector.reset(1)
    with GymEnv(OneGenerator(mode=mode)) as env, pytest.raises(OptionError, match="at once"):
        env.reset(env.reset().set("_reset", torch.tensor([[True], [False], [False]])))


def test_one_generator_gets_the_first_seed_of_its_rows() -> None:
    vector, serial = OneGenerator(), SerialEnv(ROWS, "CartPole-v1")
    with collected(vector, None, seed=None, frames_per_batch=6) as collector, serial:
        assert collector.set_seed(11) == serial.set_seed(11)
        collector.next()
        assert vector.seeds == [None, 11]


def test_serial_env_of_envs_that_reset_themselves() -> None:
    with collected(SerialEnv(2, lambda: GymEnv(OneGenerator())), None, frames_per_batch=60) as collector:
        batch = collector.next()
    assert batch.batch_size == (2, ROWS, 10)
    expected = [[t % (3 + b) != 2 + b for t in range(10)] for b in range(ROWS)]
    assert valid(batch).tolist() == [expected, expected]


def test_reset_at_each_iter_and_collector_reset() -> None:
    env = OneGenerator()
    with collected(env, None, seed=None, frames_per_batch=4 * ROWS, reset_at_each_iter=True) as collector:
        for _ in range(3):
            assert collector.next()["observation"][:, 0, 2].tolist() == [0, 0, 0]
        assert env.full_resets == 3
        collector.reset()
        assert collector.next()["observation"][:, 0, 2].tolist() == [0, 0, 0]
        assert env.full_resets == 4


# ---------------------------------------------------------------------- wrappers


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", [SyncVectorEnv, make_async])
def test_record_episode_statistics_agree_with_ours(kind: Any, mode: AutoresetMode) -> None:
    recorded = wrappers.RecordEpisodeStatistics(kind(factories(), autoreset_mode=mode))
    env = GymEnv(recorded, categorical_action_encoding=True)
    with collected(env, frames_per_batch=20 * ROWS) as collector:
        ours = []
        for _ in range(3):
            collector.next()
            ours += collector.stats().episodes
        assert sorted(zip(recorded.return_queue, recorded.length_queue, strict=True)) == sorted(
            (e.reward, e.length) for e in ours
        )
        assert recorded.episode_count == len(ours) > 40


@needs_modes
def test_record_episode_statistics_agree_around_a_class_that_resets_itself() -> None:
    recorded = wrappers.RecordEpisodeStatistics(cart_pole())
    with collected(recorded, None, frames_per_batch=400) as collector:
        collector.next()
        ours = collector.stats().episodes
        assert sorted(zip(recorded.return_queue, recorded.length_queue, strict=True)) == sorted(
            (e.reward, e.length) for e in ours
        )


@needs_modes
def test_normalisers_see_each_observation_once() -> None:
    counted = wrappers.NormalizeObservation(SyncVectorEnv(factories()))
    env = GymEnv(counted, categorical_action_encoding=True)
    with collected(env, None, seed=None, frames_per_batch=30) as collector:
        batch = collector.next()
        # One update for the reset and one for each step, of all rows: no repeats by resets of some rows.
        assert counted.obs_rms.count == pytest.approx(11 * ROWS, abs=0.01)
        assert not valid(batch).all()
        assert batch["next", "observation"].dtype == torch.float32


@needs_modes
def test_normalize_reward_keeps_the_returns_of_rows_that_go_on() -> None:
    def make() -> Any:
        return wrappers.NormalizeReward(SyncVectorEnv(factories()), gamma=0.5)

    with collected(
        GymEnv(make(), categorical_action_encoding=True),
        lambda observation: observation[:, 0] * 0,
        seed=None,
        frames_per_batch=30,
    ) as c:
        batch = c.next()
    by_hand = make()
    by_hand.reset()
    rewards = np.stack([by_hand.step(np.zeros(ROWS, int))[1] for _ in range(10)], 1)
    mask = valid(batch)
    assert torch.equal(batch["next", "reward"].squeeze(-1)[mask], torch.from_numpy(rewards).float()[mask])


@needs_modes
def test_disabled_mode_needs_wrappers_and_classes_that_honour_masks() -> None:
    env = wrappers.NormalizeReward(SyncVectorEnv(factories(), autoreset_mode=AutoresetMode.DISABLED))
    for given in (env, OneGenerator(mode=AutoresetMode.DISABLED)):
        with pytest.raises(OptionError, match=r"DISABLED.*\['(NormalizeReward|OneGenerator)'\]"):
            GymEnv(given)


@needs_modes
def test_an_env_that_does_not_say_when_it_resets_is_refused() -> None:
    env = OneGenerator()
    env.metadata = {}
    with pytest.raises(OptionError, match="autoreset_mode"):
        GymEnv(env)
    # ale_py's vector env writes into the dict of the base class; nobody else's mode is read from there.
    del env.metadata
    VectorEnv.metadata["autoreset_mode"] = AutoresetMode.SAME_STEP
    try:
        with pytest.raises(OptionError, match="autoreset_mode"):
            GymEnv(env)
    finally:
        VectorEnv.metadata.clear()


@needs_modes
def test_async_workers_that_reset_twice_are_refused() -> None:
    env = make_async(factories(), shared_memory=False)
    try:
        with pytest.raises(OptionError, match="shared_memory=True"):
            GymEnv(env)
    finally:
        env.close()
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        env = GymEnv(make_async(factories(), shared_memory=False, autoreset_mode=mode), categorical_action_encoding=True)
        with collected(env, frames_per_batch=30) as collector:
            assert collector.next().batch_size == (ROWS, 10)


@needs_modes
def test_final_observations_must_be_there() -> None:
    class Silent(OneGenerator):
        def step(self, actions: Any) -> Any:
            return *super().step(actions)[:4], {}

    with (
        pytest.raises(SpecMismatch, match="final_obs"),
        collected(Silent(mode=AutoresetMode.SAME_STEP), None, frames_per_batch=30) as collector,
    ):
        collector.next()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: (r[0][:2], *r[1:]), "env.step: observation does not fit"),
        (lambda r: (r[0], r[1][:2], *r[2:]), "env.step: reward: expected one number for each of 3 rows"),
        (lambda r: r[:4], "env.step: expected"),
    ],
)
def test_a_wrong_first_step_is_named(change: Any, message: str) -> None:
    class Wrong(OneGenerator):
        def step(self, actions: Any) -> Any:
            return change(super().step(actions))

    with pytest.raises(SpecMismatch, match=message), collected(Wrong(), None, frames_per_batch=30) as collector:
        collector.next()


@pytest.mark.parametrize("shape", [(ROWS, 1), (ROWS,)])
def test_rewards_and_flags_of_other_shapes_and_dtypes(shape: tuple[int, ...]) -> None:
    class Shaped(OneGenerator):
        def step(self, actions: Any) -> Any:
            observation, reward, terminated, truncated, info = super().step(actions)
            flags = terminated.reshape(shape).astype(np.int8), truncated.reshape(shape).astype(np.int8)
            return observation, reward.reshape(shape), *flags, info

    batches = []
    for env in (OneGenerator(), Shaped()):
        with collected(env, None, frames_per_batch=30) as collector:
            batches.append(collector.next())
    assert batches[0]["next", "reward"].shape == (ROWS, 10, 1)
    for key, value in leaves(batches[0]).items():
        assert torch.equal(value, leaves(batches[1])[key]), key


def test_an_own_env_that_resets_itself() -> None:
    """`resets_itself` on an env by arrays or TensorDicts: what `GymEnv` does for vector envs, others can do."""

    class Own(EnvBase):
        resets_itself = True

        def __init__(self) -> None:
            super().__init__(batch_size=(ROWS,))
            self.inner = GymEnv(OneGenerator())
            self.observation_spec, self.action_spec = self.inner.observation_spec, self.inner.action_spec

        def _reset(self, tensordict: Any) -> Any:
            return self.inner.reset(tensordict)

        def _step(self, tensordict: Any) -> Any:
            return self.inner.step(tensordict.copy())["next"]

        def _set_seed(self, seed: int) -> None:
            self.inner.set_seed(seed)

    batches = []
    for env in (GymEnv(OneGenerator()), Own()):
        with collected(env, None, frames_per_batch=30) as collector:
            batches.append(torch.cat([collector.next() for _ in range(3)], -1))
    for key in (
        "observation",
        ("next", "observation"),
        ("next", "reward"),
        ("collector", "mask"),
        DONE,
        ("collector", "traj_ids"),
    ):
        assert torch.equal(batches[0][key], batches[1][key]), key
