"""`state_dict` and `load_state_dict`: a collector that goes on from a checkpoint does what one does that never stopped."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from itertools import product
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium import wrappers
from torch import nn

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.errors import ClosedError, OptionError, SpecMismatch
from reap.seeds import seed_chain
from reap.testing import Const, Count, Id, Noise
from reap.testing.marked import Drawing, Marked, Told
from tests.collectors.kinds import KINDS, made
from tests.pairwise import by_default, each_value

FRAMES = 24
SEED = 7


class Recall(nn.Module):
    """A recurrent policy that draws; it reads the step count too."""

    in_keys = ("observation", "h", "step_count")

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 5)
        self.initial_state = {"h": torch.linspace(-1, 1, 5)}

    def forward(self, observation: torch.Tensor, h: torch.Tensor, step_count: torch.Tensor) -> dict[Any, torch.Tensor]:
        scaled = observation / 2**20
        following = self.cell(scaled.reshape(-1, 4), h.reshape(-1, 5)).view_as(h)
        action = following.sum(-1, keepdim=True) + step_count + torch.rand_like(following[..., :1])
        return {"action": action, ("next", "h"): following, "log_prob": action.squeeze(-1)}


def collector_of(env: Any, policy: Any = None, **options: Any) -> SyncDataCollector:
    torch.manual_seed(11)
    return SyncDataCollector(env, policy or Recall(), **{"frames_per_batch": FRAMES, **options})


def saved(state: Any) -> Any:
    """The state, written to a file and read again."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def take(collector: SyncDataCollector, count: int) -> list[Any]:
    return [collector.next() for _ in range(count)]


def assert_equal(found: Any, expected: Any) -> None:
    """Every key of every batch, bit for bit."""
    for one, other in zip(found, expected, strict=True):
        assert set(one.keys(True, True)) == set(other.keys(True, True))
        for key in one.keys(True, True):
            assert torch.equal(one[key], other[key]), key


def assert_goes_on(
    make: Callable[[], SyncDataCollector], checkpoint: Callable[[SyncDataCollector], Any], batches: int = 3
) -> None:
    """What is collected behind a checkpoint is the same with and without a stop; the new collector has a past of its own."""
    collector = make()
    checkpoint(collector)
    state = saved(collector.state_dict())
    collector.stats()
    expected = take(collector, batches)
    told = collector.stats()
    another = make()
    another.set_seed(99)
    take(another, 3)
    another.load_state_dict(state)
    another.stats()
    torch.manual_seed(3)
    assert_equal(take(another, batches), expected)
    resumed = another.stats()
    assert (resumed.frames, resumed.batches, resumed.finished_episodes) == (told.frames, told.batches, told.finished_episodes)
    assert resumed.episodes == told.episodes


# ---------------------------------------------------------------------- envs with a state


def seeded(collector: SyncDataCollector, batches: int = 2) -> None:
    collector.set_seed(SEED)
    take(collector, batches)


def then(call: Callable[[SyncDataCollector], Any]) -> Callable[[SyncDataCollector], None]:
    def checkpoint(collector: SyncDataCollector) -> None:
        seeded(collector)
        call(collector)

    return checkpoint


SCENARIOS: dict[str, tuple[dict[str, Any], Callable[[SyncDataCollector], Any]]] = {
    "in the middle": ({}, seeded),
    "before the first batch": ({}, lambda collector: seeded(collector, 0)),
    "within warm-up": ({"init_random_frames": 4 * FRAMES}, seeded),
    "at the end of warm-up": ({"init_random_frames": 2 * FRAMES}, seeded),
    "with a limit": ({"max_frames_per_traj": 3}, seeded),
    "reset at each batch": ({"reset_at_each_iter": True}, seeded),
    "after reset() was asked for": ({}, then(lambda collector: collector.reset())),
    "after reset of a row was asked for": ({}, then(lambda collector: collector.reset(0))),
    "after set_seed()": ({}, then(lambda collector: collector.set_seed(5))),
    "after an update": ({"track_policy_version": True}, then(lambda collector: collector.update_policy_weights_())),
}


FACES = ["serial", "custom batched", "wrapped", "serial of customs"]


@pytest.mark.parametrize(("kind", "scenario"), each_value(product(FACES, SCENARIOS)))
def test_the_stream_goes_on(kind: str, scenario: str) -> None:
    options, checkpoint = SCENARIOS[scenario]
    assert_goes_on(lambda: collector_of(KINDS[kind](Marked), **options), checkpoint)


@pytest.mark.parametrize("kind", KINDS)
def test_the_stream_goes_on_with_every_kind_of_env(kind: str) -> None:
    assert_goes_on(lambda: collector_of(KINDS[kind](Marked), max_frames_per_traj=5), then(lambda collector: collector.reset(0)))


@pytest.mark.parametrize(
    ("limit", "kind"), each_value(product([None, 4], ["gym", "serial", "custom batched", "serial of customs"]))
)
def test_the_stream_goes_on_wherever_rows_end(kind: str, limit: int | None) -> None:
    """Batches of one column: rows end with the last column of a batch, alone and together, in many of them."""
    env = KINDS[kind](Marked)
    assert_goes_on_everywhere(
        collector_of(env, frames_per_batch=env.batch_size.numel(), max_frames_per_traj=limit),
        collector_of(KINDS[kind](Marked), frames_per_batch=env.batch_size.numel(), max_frames_per_traj=limit),
    )


def assert_goes_on_everywhere(collector: SyncDataCollector, another: SyncDataCollector) -> None:
    """The other collector goes on from the state behind each batch of the first."""
    collector.set_seed(SEED)
    states: list[Any] = []
    batches: list[Any] = []
    for _ in range(14):
        states.append(collector.state_dict())
        batches.append(collector.next())
    for start in range(12):
        another.load_state_dict(states[start])
        assert_equal(take(another, 2), batches[start : start + 2])


def test_rows_that_wait_for_the_others() -> None:
    options: Any = {"frames_per_batch": 6, "reset_when_done": False}
    assert_goes_on_everywhere(
        collector_of(KINDS["serial"](Marked), **options), collector_of(KINDS["serial"](Marked), **options)
    )


def test_an_env_that_was_used_by_hand_before_the_checkpoint() -> None:
    def use(collector: SyncDataCollector) -> None:
        seeded(collector)
        collector.env.rollout(3, break_when_any_done=False)

    assert_goes_on(lambda: collector_of(KINDS["serial"](Marked)), use)
    collector = collector_of(KINDS["serial"](Marked))
    use(collector)
    collector.state_dict()
    assert collector.next()["observation"][:, 0, 2].tolist() == [0, 0, 0], "new episodes begin"


@pytest.mark.parametrize("policy", [Told, Drawing, Recall, lambda: None])
def test_every_kind_of_policy(policy: Any) -> None:
    assert_goes_on(lambda: SyncDataCollector(KINDS["serial"](Marked), policy(), frames_per_batch=FRAMES), seeded)


def test_a_checkpoint_can_be_gone_back_to() -> None:
    collector = collector_of(KINDS["custom batched"](Marked))
    seeded(collector)
    state = collector.state_dict()
    expected = take(collector, 3)
    for _ in range(2):
        collector.load_state_dict(state)
        assert_equal(take(collector, 3), expected)


def test_the_frames_per_batch_may_be_others() -> None:
    collector = collector_of(KINDS["serial"](Marked))
    seeded(collector)
    state = collector.state_dict()
    expected = torch.cat(take(collector, 3), -1)
    another = collector_of(KINDS["serial"](Marked), frames_per_batch=36)
    another.load_state_dict(state)
    assert_equal([torch.cat(take(another, 2), -1)], [expected])


class Keeps(Count):
    """Gives out its own array as its state, and goes on to change it."""

    def __init__(self) -> None:
        super().__init__(10)
        self.memory = torch.zeros(1)

    def observe(self) -> Any:
        self.memory += 1
        return self.memory.numpy().copy()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "memory": self.memory}

    def load_state_dict(self, state: Any) -> None:
        self.steps, self.memory = state["steps"], state["memory"]


def test_a_checkpoint_does_not_change_while_the_collector_goes_on() -> None:
    policy = Const(2.0)
    collector = SyncDataCollector(Keeps(), policy, frames_per_batch=6)
    collector.next()
    state = collector.state_dict()
    with torch.no_grad():
        policy.w.fill_(9.0)
    expected = [7, 8, 9, 10, 12, 13]
    assert collector.next()["observation"].flatten().tolist() == expected
    for _ in range(2):
        collector.load_state_dict(state)
        assert policy.w.tolist() == [2]
        assert collector.next()["observation"].flatten().tolist() == expected


def test_d11_loading_while_the_caller_has_a_seed_of_its_own() -> None:
    collector = collector_of(KINDS["gym"](Marked))
    seeded(collector)
    state = collector.state_dict()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    collector.load_state_dict(state)
    collector.next()
    assert torch.equal(torch.rand(3), expected)


# ---------------------------------------------------------------------- envs without a state


def noisy(rows: int = 3, **options: Any) -> SyncDataCollector:
    env = SerialEnv(rows, lambda: GymEnv(Noise(4), categorical_action_encoding=True))
    return collector_of(env, lambda observation: torch.randint(0, 3, observation.shape[:-1]), **options)


def without_ids(batches: list[Any]) -> list[Any]:
    return [batch.exclude(("collector", "traj_ids")) for batch in batches]


@pytest.mark.parametrize("static", [False, True])
def test_two_resumes_of_a_checkpoint_agree(static: bool) -> None:
    collector = noisy()
    collector.set_seed(SEED, static_seed=static)
    first = take(collector, 2)
    state = saved(collector.state_dict())
    streams = []
    for _ in range(2):
        resumed = noisy()
        resumed.load_state_dict(state)
        streams.append(take(resumed, 2))
        again = resumed.state_dict()
    assert_equal(*streams)
    assert not torch.equal(streams[0][0]["observation"], first[0]["observation"]), "the same episodes once more"
    resumed = noisy()
    resumed.load_state_dict(again)
    assert not torch.equal(resumed.next()["observation"], streams[0][0]["observation"]), "a seed that was used before"


class Seeds(Count):
    def __init__(self) -> None:
        super().__init__(4)
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed)


def test_episodes_restart_with_the_next_seeds_of_the_chain() -> None:
    chain = seed_chain(SEED, 8)
    collector = SyncDataCollector(SerialEnv(2, Seeds), Const(), frames_per_batch=6)
    collector.set_seed(SEED)
    collector.next()
    state = saved(collector.state_dict())
    for seeds in (chain[2:4], chain[4:6]):
        resumed = SyncDataCollector(SerialEnv(2, Seeds), Const(), frames_per_batch=6)
        resumed.load_state_dict(state)
        assert resumed.next()["observation"][..., 0].tolist() == [[0, 1, 2]] * 2
        assert resumed.getattr_env("seeds") == [[None, seed] for seed in seeds]
        state = saved(resumed.state_dict())


def test_static_seeds_stay_static() -> None:
    collector = SyncDataCollector(SerialEnv(2, Seeds), Const(), frames_per_batch=6)
    collector.set_seed(SEED, static_seed=True)
    state = collector.state_dict()
    resumed = SyncDataCollector(SerialEnv(2, Seeds), Const(), frames_per_batch=6)
    resumed.load_state_dict(state)
    resumed.next()
    following = seed_chain(SEED, 1)[1]
    assert resumed.getattr_env("seeds") == [[None, following]] * 2


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("has_seed", [False, True])
def test_no_id_joins_frames_across_a_resume(limit: int | None, has_seed: bool) -> None:
    def make() -> SyncDataCollector:
        return collector_of(SerialEnv(3, made(Id, 3)), Const(), frames_per_batch=12, max_frames_per_traj=limit)

    collector = make()
    if has_seed:
        collector.set_seed(SEED)
    ids: list[set[int]] = []
    for _ in range(4):
        batches = take(collector, 2)
        ids.append({number for batch in batches for number in batch["collector", "traj_ids"].flatten().tolist()})
        state = saved(collector.state_dict())
        collector = make()
        collector.load_state_dict(state)
        batch = collector.next()
        assert batch["observation"][:, 0, 2].tolist() == [0, 0, 0]
        ids.append(set(batch["collector", "traj_ids"].flatten().tolist()))
        state = saved(collector.state_dict())
        collector = make()
        collector.load_state_dict(state)
    seen = [number for some in ids for number in some]
    assert len(seen) == len(set(seen))
    assert sorted(seen) == list(range(len(seen))), "no id is left out either"


@pytest.mark.parametrize("wrap", [wrappers.NormalizeObservation, lambda env: wrappers.FrameStackObservation(env, 2)])
def test_a_wrapper_with_a_state_of_its_own_has_none_to_offer(wrap: Callable[[gym.Env], gym.Env]) -> None:
    collector = SyncDataCollector(GymEnv(wrap(Marked(0))), frames_per_batch=6)
    collector.next()
    state = collector.state_dict()
    assert state["workers"][0]["rollout"]["env"] is None
    collector.load_state_dict(state)
    assert collector.next()["collector", "traj_ids"].unique().numel() >= 1


def test_an_env_with_one_row_that_has_none() -> None:
    collector = SyncDataCollector(
        SerialEnv(2, [lambda: Marked(0), lambda: GymEnv(wrappers.Autoreset(Marked(1)))]), frames_per_batch=6
    )
    assert collector.state_dict()["workers"][0]["rollout"]["env"] is None


def test_a_vector_env_that_resets_itself() -> None:
    def make() -> SyncDataCollector:
        return collector_of(GymEnv("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"), policy)

    policy = lambda observation: nn.functional.one_hot((observation[..., 2] > 0).long(), 2)  # noqa: E731
    collector = make()
    collector.set_seed(SEED)
    before = take(collector, 4)
    state = saved(collector.state_dict())
    streams = []
    for _ in range(2):
        resumed = make()
        resumed.load_state_dict(state)
        streams.append(take(resumed, 4))
    assert_equal(*streams)
    ids = [
        {int(number) for batch in some for number in batch["collector", "traj_ids"].flatten()} - {-1}
        for some in (before, streams[0])
    ]
    assert not ids[0] & ids[1]


# ---------------------------------------------------------------------- counters, budget, weights


@pytest.mark.parametrize("env", [lambda: Marked(0), lambda: Id(0)])
def test_the_budget_counts_on(env: Any) -> None:
    collector = collector_of(env(), Told() if env().observation_space.shape == (4,) else Const(), total_frames=5 * FRAMES)
    for done in range(6):
        state = saved(collector.state_dict())
        resumed = collector_of(env(), collector.policy, total_frames=5 * FRAMES)
        resumed.load_state_dict(state)
        assert len(resumed) == 5
        assert resumed.stats().frames == done * FRAMES
        assert len(list(resumed)) == 5 - done, "nothing more is collected once the budget is used up"
        assert resumed.next() is None
        collector.next()
        resumed.shutdown()


def test_counters_go_on() -> None:
    collector = noisy()
    collector.set_seed(SEED)
    take(collector, 3)
    before = collector.stats()
    resumed = noisy()
    resumed.load_state_dict(saved(collector.state_dict()))
    after = resumed.stats()
    assert (after.frames, after.batches, after.finished_episodes) == (before.frames, before.batches, before.finished_episodes)
    assert (before.frames, before.batches) == (3 * FRAMES, 3)
    assert before.finished_episodes > 0
    assert after.episodes == []


def test_weights_and_their_version() -> None:
    collector = SyncDataCollector(Count(5), Const(4.0), frames_per_batch=4, track_policy_version=True)
    for _ in range(3):
        collector.update_policy_weights_()
    policy = Const(0.0)
    parameter = policy.w
    resumed = SyncDataCollector(Count(5), policy, frames_per_batch=4, track_policy_version=True)
    resumed.load_state_dict(saved(collector.state_dict()))
    assert policy.w is parameter
    assert (policy.w.tolist(), policy.w.requires_grad, resumed.policy_version) == ([4.0], True, 3)
    batch = resumed.next()
    assert batch["action"].flatten().tolist() == [4] * 4
    assert batch["collector", "policy_version"].tolist() == [3] * 4


def test_a_state_is_made_of_plain_things() -> None:
    collector = collector_of(KINDS["serial of customs"](Marked), init_random_frames=48)
    seeded(collector)

    def kinds(value: Any) -> set[type]:
        if isinstance(value, dict):
            return set().union(*map(kinds, value.values()), *map(kinds, value))
        if isinstance(value, list | tuple):
            return set().union(*map(kinds, value))
        return {type(value)}

    assert kinds(collector.state_dict()) <= {torch.Tensor, int, float, bool, str, type(None)}


# ---------------------------------------------------------------------- states that do not fit


def changed(state: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**state, **values}


def of_another(env: Any, policy: Any = None) -> dict[str, Any]:
    another = collector_of(env, policy)
    another.next()
    return another.state_dict()


FOREIGN: dict[str, tuple[Callable[[dict[str, Any]], Any], type[Exception], str]] = {
    "nothing": (lambda state: {}, OptionError, "state: expected what state_dict() gave, with ['format', "),
    "a part": (lambda state: {k: v for k, v in state.items() if k != "counters"}, OptionError, "found no ['counters']"),
    "no dict": (lambda state: None, OptionError, "state: expected what state_dict() gave, got NoneType"),
    "format": (lambda state: changed(state, format=0), OptionError, "state: format: expected 1, found 0; it belongs"),
    "class": (
        lambda state: changed(state, **{"class": "MultiSyncDataCollector"}),
        OptionError,
        "found 'MultiSyncDataCollector'; it",
    ),
    "workers": (
        lambda state: changed(state, workers=state["workers"] * 2),
        OptionError,
        "state: number of workers: expected 1, found 2; it",
    ),
    "no policy": (
        lambda state: changed(state, policy=None),
        OptionError,
        "state: policy with weights: expected True, found False",
    ),
    "weights": (lambda state: of_another(KINDS["serial"](Marked), Told()), SpecMismatch, "weights: expected the names"),
    "shape of weights": (
        lambda state: changed(state, policy={**state["policy"], "cell.bias_hh": torch.zeros(3)}),
        SpecMismatch,
        "weights: cell.bias_hh: expected shape (15,), found (3,)",
    ),
    "rows": (lambda state: of_another(SerialEnv(4, made(Marked, 4))), SpecMismatch, "state: expected 3 rows"),
    "inputs": (
        lambda state: changed(of_another(SerialEnv(3, made(Id, 3)), Const()), policy=state["policy"]),
        SpecMismatch,
        "it belongs to another env or policy",
    ),
    "time limits": (
        lambda state: of_another(SerialEnv(3, lambda: wrappers.TimeLimit(Marked(), 5))),
        SpecMismatch,
        "state: expected 0 time limits",
    ),
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_state_that_does_not_fit_changes_nothing(foreign: str) -> None:
    change, error, text = FOREIGN[foreign]
    quiet, loud = (collector_of(KINDS["serial"](Marked), init_random_frames=FRAMES) for _ in range(2))
    for collector in (quiet, loud):
        seeded(collector)
        collector.update_policy_weights_()
    with pytest.raises(error) as caught:
        loud.load_state_dict(change(loud.state_dict()))
    assert text in str(caught.value)
    assert_equal(take(loud, 3), take(quiet, 3))
    assert (loud.policy_version, loud.stats().frames) == (1, 5 * FRAMES)


GONE = object()
"""In the place of a value: its key is left out."""

ROLLOUT = ("workers", 0, "rollout")

ALTERED: list[tuple[tuple[Any, ...], Any]] = [
    (("counters",), None),
    (("counters", "frames"), GONE),
    (("counters", "frames"), -1),
    (("policy_version",), "2"),
    ((*ROLLOUT, "tracker"), GONE),
    ((*ROLLOUT, "tracker", "ids"), [1]),
    ((*ROLLOUT, "tracker", "count"), ["a", "b", "c"]),
    ((*ROLLOUT, "tracker", "begun"), 1.5),
    ((*ROLLOUT, "rows_to_reset"), [[7], [], []]),
    ((*ROLLOUT, "rows_to_reset"), [[], []]),
    ((*ROLLOUT, "stage"), {}),
    (("workers", 0, "random_state"), torch.zeros(3)),
    (("workers", 0, "warm_up_state"), torch.zeros(3, dtype=torch.uint8)),
    (("workers", 0, "warm_up_state"), GONE),
    (("workers", 0, "was_random"), None),
    (("workers", 0, "following_seed"), "7"),
]


def altered(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A state with another value under a path of keys."""
    state = copy.deepcopy(state)
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return state


@pytest.mark.parametrize(("path", "value"), ALTERED)
def test_a_state_that_somebody_altered_changes_nothing(path: tuple[Any, ...], value: Any) -> None:
    quiet, loud = (collector_of(KINDS["serial"](Marked), init_random_frames=FRAMES) for _ in range(2))
    for collector in (quiet, loud):
        seeded(collector)
        collector.update_policy_weights_()
    with pytest.raises((SpecMismatch, OptionError), match="^state: "):
        loud.load_state_dict(altered(loud.state_dict(), path, value))
    assert_equal(take(loud, 3), take(quiet, 3))
    assert (loud.policy_version, loud.stats().frames) == (1, 5 * FRAMES)


def test_episodes_that_wait_and_lack_their_frames_are_refused() -> None:
    quiet, loud = (collector_of(KINDS["serial"](Marked), trajs_per_batch=3) for _ in range(2))
    for collector in (quiet, loud):
        seeded(collector)
    state = loud.state_dict()
    assert state["episodes"]["chunks"]
    for change in ({**state["episodes"], "chunks": {}}, {"turn": 0}):
        with pytest.raises(SpecMismatch, match=r"^state: expected what state_dict\(\) gave"):
            loud.load_state_dict({**state, "episodes": change})
    assert_equal(take(loud, 3), take(quiet, 3))


class Stateless(Count):
    """Observes what `Marked` observes, in form."""

    observation_space = Marked.observation_space

    def observe(self) -> Any:
        return super().observe().repeat(4)


def test_the_state_of_an_env_for_one_that_has_none() -> None:
    """`Stateless` observes the same, and has none to load."""
    collector = collector_of(SerialEnv(3, lambda: Stateless(50)))
    before = collector.next()
    with pytest.raises(SpecMismatch, match="^state: it holds the state of an env, and SerialEnv"):
        collector.load_state_dict(of_another(KINDS["serial"](Marked)))
    after = collector.next()
    assert torch.equal(after["observation"][:, 0], before["next", "observation"][:, -1])
    assert torch.equal(after["collector", "traj_ids"], before["collector", "traj_ids"])


def test_a_collector_that_is_shut_down() -> None:
    collector = collector_of(KINDS["gym"](Marked))
    state = collector.state_dict()
    collector.shutdown()
    for call in (collector.state_dict, lambda: collector.load_state_dict(state)):
        with pytest.raises(ClosedError):
            call()


# ---------------------------------------------------------------------- whole episodes


WAITING = product(["gym", "serial", "custom batched"], ["padded", "cat"])


@pytest.mark.parametrize(("kind", "form"), by_default(WAITING, ("serial", "padded")))
def test_episodes_that_wait_are_part_of_the_state(kind: str, form: str) -> None:
    def make() -> SyncDataCollector:
        return collector_of(KINDS[kind](Marked), trajs_per_batch=4, traj_format=form)

    for batches in range(4):
        assert_goes_on(make, lambda collector, batches=batches: seeded(collector, batches), batches=4)


def wholes(batches: list[Any]) -> list[list[float]]:
    """The steps of each episode of batches of format "cat"."""
    found: list[list[float]] = []
    last = None
    for step, number in ((frame["observation"][2], frame["collector", "traj_ids"]) for batch in batches for frame in batch):
        if not found or number != last:
            found.append([])
        last = number
        found[-1].append(float(step))
    return found


def test_episodes_are_whole_after_a_resume_without_their_beginnings() -> None:
    """A state of a collector without `trajs_per_batch` has no frames of the episodes under way: others begin."""
    collector = collector_of(KINDS["serial"](Marked))
    seeded(collector)
    resumed = collector_of(KINDS["serial"](Marked), trajs_per_batch=4, traj_format="cat")
    take(resumed, 3)
    resumed.load_state_dict(saved(collector.state_dict()))
    episodes = wholes(take(resumed, 3))
    assert len(episodes) == 12
    assert all(steps == list(range(len(steps))) for steps in episodes)


def test_episodes_of_an_env_without_a_state_are_whole() -> None:
    def make() -> SyncDataCollector:
        return collector_of(SerialEnv(3, made(Id, 3)), Const(), trajs_per_batch=4, traj_format="cat", frames_per_batch=12)

    collector = make()
    take(collector, 2)
    resumed = make()
    take(resumed, 3)
    resumed.load_state_dict(saved(collector.state_dict()))
    assert all(steps == list(range(len(steps))) for steps in wholes(take(resumed, 4)))
