"""Episodes again: what every collector keeps of them, and what running them again finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled

import reap
from reap import GymEnv, MultiaSyncDataCollector, MultiSyncDataCollector, ParallelEnv, SerialEnv, SyncDataCollector
from reap.errors import OptionError, SpecMismatch
from reap.recording import records as episode_records
from reap.recording.records import EpisodeRecord, checksums, compared
from tests.pairwise import by_default


def records_of(collector: Any) -> list[EpisodeRecord]:
    with collector:
        for _ in collector:
            pass
        return list(collector.episodes.values())


def departures(records: list[EpisodeRecord], env: Any = None) -> list[str]:
    return [str(found) for found in (reap.replay(env, record) for record in records) if not found.equal]


DRAWS: dict[str, Callable[[Any], float]] = {
    "np_random": lambda env: float(env.np_random.normal()),
    "random": lambda env: env.own.random(),
    "numpy": lambda env: env.own.normal(),
    "torch": lambda env: torch.rand((), generator=env.own).item(),
    "global random": lambda _: random.random(),
    "global numpy": lambda _: np.random.normal(),  # noqa: NPY002
    "global torch": lambda _: torch.rand(()).item(),
}


class Noisy(gym.Env[Any, Any]):
    """Each step draws from `source`, so that an episode is repeated only if that is where it was."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3)
    render_mode = "rgb_array"

    def __init__(self, source: str = "np_random", length: int = 5) -> None:
        self.source, self.length, self.count = source, length, 0
        self.own: Any = {
            "random": random.Random(7),
            "numpy": np.random.RandomState(7),
            "torch": torch.Generator().manual_seed(7),
        }.get(source)

    def draw(self) -> float:
        return DRAWS[self.source](self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.array([0.0, self.draw()]), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        ended = self.draw() > 1.0 or self.count == self.length
        return np.array([float(action), self.draw()]), self.draw(), ended, False, {}

    def render(self) -> Any:
        return np.full((5, 7, 3), self.count, np.uint8)


class WithState(Noisy):
    """Counts its episodes, in a state that it tells."""

    def __init__(self) -> None:
        super().__init__()
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        observation, info = super().reset(seed=seed)
        return observation + self.episode, info

    def getstate(self) -> int:
        return self.episode

    def setstate(self, state: int) -> None:
        self.episode = state


class Remembers(WithState):
    """The same, told to nobody."""

    setstate = None  # pyright: ignore[reportAssignmentType]


ENVS: dict[str, Callable[[], Any]] = {
    "id": lambda: "CartPole-v1",
    "factory of a gymnasium env": lambda: lambda: gym.make("CartPole-v1", max_episode_steps=9),
    "serial": lambda: SerialEnv(3, "FrozenLake-v1"),
    "serial of factories": lambda: SerialEnv(3, Noisy),
    "serial of serials": lambda: SerialEnv(2, lambda: SerialEnv(2, Noisy)),
    "serial of parallels": lambda: SerialEnv(2, lambda: ParallelEnv(2, Noisy)),
    "parallel": lambda: ParallelEnv(3, lambda: gym.make("CartPole-v1"), num_processes=2),
    "parallel in halves": lambda: ParallelEnv(4, Noisy, num_processes=2, overlap=True),
    "sync vector env": lambda: GymEnv("CartPole-v1", num_envs=3, categorical_action_encoding=True),
    "state of its own": lambda: SerialEnv(2, WithState),
}


WAYS = [(2, 1e9), (2, 1e-9), (40, 1e-9)]
# Each way with envs of each kind; those that take seconds run with the tests of processes.
QUICK = ("id", "factory of a gymnasium env", "serial", "sync vector env", "state of its own")
CASES = by_default(
    [(name, *way) for name in ENVS for way in WAYS], *((name, *WAYS[place % 3]) for place, name in enumerate(QUICK))
)


@pytest.mark.parametrize(("name", "columns", "share"), CASES)
def test_episodes_of_one_process(name: str, columns: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_records, "SHARE", share)
    env = ENVS[name]()
    rows = 1 if isinstance(env, str) or not hasattr(env, "batch_size") else env.batch_size.numel()
    frames = rows * columns
    records = records_of(
        SyncDataCollector(env, frames_per_batch=frames, total_frames=frames * (240 // columns), record_episodes=999)
    )
    assert len(records) > 5
    if "parallel" not in name:  # there the share is that of other processes
        leads = [len(record.lead) for record in records]
        if share < 1:
            assert [lead > 0 for lead in leads] == [record.id >= rows for record in records]
        else:  # the first reset of each row and rollout is noted
            assert max(leads) < columns
    assert departures(records) == []


@pytest.mark.parametrize("again", [None, [1]], ids=["all rows", "one row"])
@pytest.mark.parametrize("share", [1e9, 1e-9])
def test_rows_reset_twice_before_their_first_frame(again: list[int] | None, share: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(episode_records, "SHARE", share)
    collector = SyncDataCollector(SerialEnv(3, Noisy), frames_per_batch=60, total_frames=240, record_episodes=99)
    collector.reset(again)
    records = records_of(collector)
    assert {record.row for record in records} == {0, 1, 2}
    assert min(record.id for record in records) == 0
    assert departures(records) == []


OPTIONS: dict[str, dict[str, Any]] = {
    "rows that wait": {"reset_when_done": False},
    "a limit": {"max_frames_per_traj": 4},
    "marks": {"set_truncated": True},
    "new episodes with each batch": {"reset_at_each_iter": True},
    "random first": {"init_random_frames": 60},
    "whole episodes": {"trajs_per_batch": 7},
    "split": {"split_trajs": True},
    "seeded": {"seed": 5},
}


@pytest.mark.parametrize("name", by_default(OPTIONS, *list(OPTIONS)[::2]))
def test_options(name: str) -> None:
    collector = SyncDataCollector(
        SerialEnv(3, Noisy), frames_per_batch=30, total_frames=300, record_episodes=500, **OPTIONS[name]
    )
    records = records_of(collector)
    assert len(records) > 10
    assert departures(records) == []
    assert any(record.is_limited for record in records) == (name == "a limit")
    assert {record.length for record in records} <= {1, 2, 3, 4, 5}


@pytest.mark.parametrize("kind", by_default([MultiSyncDataCollector, MultiaSyncDataCollector], MultiSyncDataCollector))
def test_workers(kind: Any) -> None:
    makers = [lambda: SerialEnv(2, Noisy), lambda: SerialEnv(2, "FrozenLake-v1", create_env_kwargs={"is_slippery": True})]
    if kind is MultiSyncDataCollector:
        makers[1] = lambda: SerialEnv(2, lambda: Noisy(length=3))
    records = records_of(kind(makers, frames_per_batch=60, total_frames=600, seed=1, record_episodes=500))
    assert {record.worker for record in records} == {0, 1}
    assert {record.row for record in records} == {0, 1}
    assert departures(records) == []


@pytest.mark.parametrize("given", ["best", {"id": 3}, None])
def test_not_a_record(given: Any) -> None:
    with pytest.raises(OptionError, match="record: expected an EpisodeRecord, from collector.episodes.* got "):
        reap.replay("CartPole-v1", given)


def test_a_record_is_the_episode_of_the_batch() -> None:
    collector = SyncDataCollector(SerialEnv(2, Noisy), frames_per_batch=80, total_frames=80, record_episodes=True, seed=2)
    (batch,) = collector
    frames = batch.reshape(-1)
    assert len(collector.episodes) > 5
    for key, record in collector.episodes.items():
        one = frames[frames["collector", "traj_ids"] == key]
        length = len(one)
        assert record.length == length
        assert record.reward == pytest.approx(float(one["next", "reward"].sum()))
        np.testing.assert_array_equal(record.actions["action",], one["action"][:length].numpy())
        np.testing.assert_array_equal(record.first["observation",], one["observation"][0].numpy())
        np.testing.assert_array_equal(record.results["next", "observation"], one["next", "observation"][:length].numpy())
        np.testing.assert_array_equal(record.results["next", "reward"], one["next", "reward"][:length].numpy())


def test_batches_are_as_without() -> None:
    first, second = (
        SyncDataCollector(SerialEnv(3, Noisy), frames_per_batch=60, total_frames=180, seed=4, record_episodes=kept)
        for kept in (False, 5)
    )
    for one, other in zip(first, second, strict=True):
        assert set(one.keys(True, True)) == set(other.keys(True, True))
        assert (one == other).all()


def test_the_last_are_kept() -> None:
    collector = SyncDataCollector(Noisy, frames_per_batch=25, total_frames=250, record_episodes=3)
    ids = [int(key) for batch in collector for key in batch["collector", "traj_ids"][batch["next", "done"][..., 0]]]
    assert list(collector.episodes) == ids[-3:]
    assert len(collector.episodes) == 3
    with pytest.raises(KeyError, match="record_episodes=N"):
        collector.episodes[ids[0]]
    assert [record.id for record in collector.episodes.take()] == ids[-3:]
    assert len(collector.episodes) == 0


def test_old_notes_are_let_go() -> None:
    collector = SyncDataCollector(SerialEnv(2, Noisy), frames_per_batch=20, total_frames=4000, record_episodes=4)
    for _ in collector:
        pass
    (own,) = collector.episodes._workers.values()
    assert len(own.rollouts) < 60  # of 200
    assert departures(list(collector.episodes.values())) == []


@pytest.mark.parametrize("source", ["random", "numpy", "torch"])
def test_generators_of_the_env(source: str) -> None:
    records = records_of(SyncDataCollector(lambda: Noisy(source), frames_per_batch=20, total_frames=200, record_episodes=True))
    assert len(records) > 10
    assert departures(records) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [("global random", "Python's random"), ("global numpy", "numpy's np.random"), ("global torch", "torch's")],
)
def test_generators_of_the_process_are_named(source: str, name: str) -> None:
    records = records_of(SyncDataCollector(lambda: Noisy(source), frames_per_batch=20, total_frames=20, record_episodes=True))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    found = reap.replay(None, records[0])
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    assert found.departure is not None
    assert (found.departure.step, found.departure.key, found.steps) == (0, "observation", 0)
    assert str(found).endswith(f"the env draws from process-wide generators, which cannot be repeated: {name}")


def test_what_is_told_to_nobody_departs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_records, "SHARE", 1e9)
    records = records_of(SyncDataCollector(Remembers, frames_per_batch=4, total_frames=40, record_episodes=True))
    found = [reap.replay(None, record) for record in records]
    assert found[0].equal
    departed = next(one.departure for one in found if one.departure is not None)
    assert (departed.step, departed.key) == (0, "observation")
    assert "on earlier episodes" in departed.why


def altered(record: EpisodeRecord, **changes: Any) -> EpisodeRecord:
    return EpisodeRecord(**{**vars(record), **changes})


def one_record(make: Any = "CartPole-v1", **options: Any) -> EpisodeRecord:
    records = records_of(
        SyncDataCollector(make, frames_per_batch=100, total_frames=100, record_episodes=True, seed=0, **options)
    )
    return records[1]


def test_the_first_difference() -> None:
    record = one_record()
    results = {key: values.copy() for key, values in record.results.items()}
    results["next", "reward"][4] = 2.0
    results["next", "observation"][6] += 1
    found = reap.replay(None, altered(record, results=results))
    assert found.departure is not None
    assert (found.departure.step, found.departure.key, found.steps) == (5, ("next", "reward"), 5)
    assert str(found).startswith(f"episode {record.id}: 5 of {record.length} steps, departs at step 5 in ('next', 'reward')")
    assert reap.replay(None, altered(record, results=results), to_step=4).equal
    found = reap.replay(None, altered(record, terminated=False))
    assert found.departure is not None
    assert (found.departure.step, found.departure.key) == (record.length, ("next", "terminated"))


def test_an_env_that_is_given() -> None:
    record = one_record()
    assert reap.replay("CartPole-v1", record).equal
    assert reap.replay(lambda: GymEnv("CartPole-v1"), record).equal
    env = gym.make("CartPole-v1")
    seen: list[int] = []
    assert reap.replay(env, record, to_step=3, on_step=lambda step, _: seen.append(step)).steps == 3
    assert seen == [0, 1, 2, 3]
    state: Any = env.get_wrapper_attr("state")
    np.testing.assert_array_equal(np.float32(state), record.results["next", "observation"][2])


def test_what_cannot_be_replayed() -> None:
    record = one_record()
    with pytest.raises(OptionError, match="expected a single gymnasium env"):
        reap.replay(SerialEnv(2, "CartPole-v1"), record)
    with pytest.raises(OptionError, match="expected a single gymnasium env"):
        reap.replay(GymEnv("CartPole-v1", num_envs=2), record)
    with pytest.raises(SpecMismatch, match="build it with the same options"):
        reap.replay(GymEnv("CartPole-v1", categorical_action_encoding=True), record)
    with pytest.raises(SpecMismatch, match="build it with the same options"):
        reap.replay("Pendulum-v1", record)
    for step in (-1, record.length + 1, True, 1.0):
        with pytest.raises(OptionError, match=f"expected a number from 0 to {record.length}"):
            reap.replay(None, record, to_step=step)  # pyright: ignore[reportArgumentType]
    env = gym.make("CartPole-v1")
    with pytest.raises(OptionError, match="does not say how its env is built"):
        reap.replay(None, one_record(env))


def test_what_cannot_be_recorded() -> None:
    for value in (0, -3, 1.5, "all"):
        with pytest.raises(OptionError, match="record_episodes: expected a bool, or a positive number"):
            SyncDataCollector("CartPole-v1", frames_per_batch=10, record_episodes=value)  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="leave out use_buffers=False"):
        SyncDataCollector("CartPole-v1", frames_per_batch=10, record_episodes=True, use_buffers=False)
    with pytest.raises(OptionError, match="all rows are one object; make its envs by SerialEnv"):
        SyncDataCollector(
            lambda: GymEnv("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"),
            frames_per_batch=10,
            record_episodes=True,
        )
    with pytest.raises(OptionError, match="it excludes record_episodes"):
        MultiSyncDataCollector(["CartPole-v1"], frames_per_batch=10, record_episodes=True, collector_class=SyncDataCollector)
    with pytest.raises(OptionError, match="expected a collector with record_episodes=True"):
        _ = SyncDataCollector("CartPole-v1", frames_per_batch=10).episodes


def test_interruptions_of_what_leads_to_an_episode() -> None:
    """An env that is used by hand, resets and seeds between batches, a state that is loaded."""
    env = SerialEnv(2, Noisy)
    collector = SyncDataCollector(env, frames_per_batch=14, record_episodes=500)
    for round_ in range(40):
        collector.next()
        match round_ % 4:
            case 0:
                env.rollout(3)
            case 1:
                collector.reset([1])
            case 2:
                collector.set_seed(round_)
            case _:
                collector.load_state_dict(collector.state_dict())
    records = list(collector.episodes.values())
    assert len(records) > 60
    assert departures(records) == []


def test_checksums_tell_frames_apart() -> None:
    frames = np.zeros((4, 210, 160, 3), np.uint8)
    frames[1, 100, 80] = frames[2, 103, 88] = frames[3, 101, 80] = 255  # a ball that moves
    assert len(set(checksums(frames, 1).tolist())) == 4
    assert compared(frames[:, :5, :5], 1).shape == (4, 5, 5, 3)
    assert compared(frames, 1).dtype == np.uint64
    odd = np.arange(2 * 301, dtype=np.uint8).reshape(2, 301)
    assert compared(odd, 1).tolist() == [compared(one[None], 1)[0] for one in odd]
    odd[1, 300] += 1
    assert compared(odd, 1)[1] != compared(odd - np.eye(1, 301, 300, dtype=np.uint8), 1)[1]
    assert compared(frames[:0], 1).shape == (0,)


@pytest.mark.processes
def test_a_video(tmp_path: Path) -> None:
    iio = pytest.importorskip("imageio.v3")
    record = one_record(Noisy)
    found = reap.replay(None, record, video=tmp_path / "episode.mp4")
    assert found.video == tmp_path / "episode.mp4"
    frames = iio.imread(found.video, plugin="pyav")
    assert frames.shape == (record.length + 1, 6, 8, 3)
    with pytest.raises(OptionError, match="nothing is overwritten"):
        reap.replay(None, record, video=found.video)
    with pytest.raises(OptionError, match=r"expected the name of an \.mp4 file"):
        reap.replay(None, record, video=tmp_path / "episode.gif")
    with pytest.raises(OptionError, match="in a folder that exists"):
        reap.replay(None, record, video=tmp_path / "none" / "episode.mp4")
    with pytest.raises(OptionError, match="render_mode='rgb_array'"):
        reap.replay(gym.make("CartPole-v1"), one_record(), video=tmp_path / "other.mp4")
    assert reap.replay(None, one_record(), video=tmp_path / "other.mp4").equal


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (DependencyNotInstalled("pygame is not installed"), ImportError, "cannot draw itself: pygame is not installed"),
        (ValueError("no screen"), ValueError, "^no screen$"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_a_video_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[BaseException], message: str
) -> None:
    """It would be in the way of the next try."""
    record, drawn = one_record(Noisy), Noisy.render

    def fails(env: Noisy) -> Any:
        if env.count == 2:
            raise error
        return drawn(env)

    monkeypatch.setattr(Noisy, "render", fails)
    with pytest.raises(raised, match=message):
        reap.replay(Noisy, record, video=tmp_path / "episode.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_video_without_a_codec_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reap.replaying.video.CODEC", "no-such-codec")
    with pytest.raises(Exception, match="no-such-codec"):
        reap.replay(None, one_record(Noisy), video=tmp_path / "episode.mp4")
    assert list(tmp_path.iterdir()) == []
