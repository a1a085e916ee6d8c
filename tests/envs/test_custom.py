"""Envs by `_reset`, `_step` and specs: what they keep in their TensorDicts, nested keys, partial resets, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase

from reap.collectors import SyncDataCollector
from reap.envs import EnvBase, SerialEnv, check_env_specs, step_mdp
from reap.envs.faces.done_flags import DoneFlags
from reap.errors import SpecMismatch
from reap.specs import Bounded, Categorical, Composite, NonTensor, Unbounded
from reap.testing import Const, IdRows, check_env

Sizes = pytest.mark.parametrize("size", [(), (3,), (2, 3)])


class Functional(EnvBase):
    """Keeps everything in its TensorDict: an observation that `_step` reads, and a count under a key of no spec.

    Row b starts at `10 * b`; every action moves it, and its episode ends when it has been stepped `2 + b` times.
    """

    def __init__(self, size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=size)
        self.observation_spec = Composite(place=Unbounded((*size, 1)), shape=size)
        self.action_spec = Bounded(-1, 1, (*size, 1))
        self.rows = torch.arange(max(1, self.batch_size.numel())).float().reshape(*size, 1)

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return TensorDict({"place": 10 * self.rows, "memory": {"steps": torch.zeros(*self.batch_size, 1)}}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        steps = tensordict["memory", "steps"] + 1
        place = tensordict["place"] + tensordict["action"]
        done = steps >= 2 + self.rows
        memory = {"steps": steps}
        return TensorDict({"place": place, "memory": memory, "reward": steps, "done": done}, self.batch_size)

    def _set_seed(self, seed: int) -> None:
        pass


@Sizes
def test_what_an_env_keeps_in_its_tensordict_is_there_in_the_next_step(size: tuple[int, ...]) -> None:
    env = Functional(size)
    rows = env.batch_size.numel()
    with SyncDataCollector(env, Const(0.25), frames_per_batch=20 * rows) as collector:
        batches = [collector.next() for _ in range(2)]
    batch = torch.cat(batches, len(size)).reshape(rows, 40)
    for row in range(rows):
        steps = torch.arange(40) % (2 + row)
        assert torch.equal(batch[row]["place"].squeeze(-1), 10 * row + steps / 4)
        assert torch.equal(batch[row]["next", "place"].squeeze(-1), 10 * row + (steps + 1) / 4)
        assert torch.equal(batch[row]["next", "reward"].squeeze(-1), steps + 1.0)
    assert "memory" not in batch


@Sizes
def test_it_is_there_after_a_limit_too(size: tuple[int, ...]) -> None:
    rows = Functional(size).batch_size.numel()
    with SyncDataCollector(Functional(size), Const(0), frames_per_batch=12 * rows, max_frames_per_traj=3) as collector:
        batch = collector.next().reshape(rows, 12)
    for row in range(rows):
        assert batch[row]["next", "reward"].flatten().tolist() == [1 + t % min(3, 2 + row) for t in range(12)]


@Sizes
def test_a_rollout_by_hand_is_the_same(size: tuple[int, ...]) -> None:
    def move(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", torch.full((*size, 1), 0.5))

    found = Functional(size).rollout(9, move, break_when_any_done=False)
    rows = Functional(size).batch_size.numel()
    with SyncDataCollector(Functional(size), Const(0.5), frames_per_batch=9 * rows) as collector:
        batch = collector.next()
    for key in ("place", ("next", "place"), ("next", "reward"), ("next", "done")):
        assert torch.equal(found[key], batch[key]), key


def test_a07_a_partial_reset_keeps_other_rows_and_the_mask() -> None:
    env = Functional((4,))
    stepped = env.rand_step(env.rand_step(env.reset()).get("next"))
    current = step_mdp(stepped)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        mask = torch.rand(4, 1, generator=generator) < 0.5
        given, before = mask.clone(), current.clone()
        begun = env.reset(current.copy().set("_reset", mask))
        assert torch.equal(mask, given)
        for key in ("place", ("memory", "steps"), "done"):
            assert torch.equal(begun[key][~mask], before[key][~mask])
        assert torch.equal(begun["place"][mask], 10 * env.rows[mask])
        assert not begun["done"][mask].any()
        assert "_reset" not in begun


def test_a_mask_of_another_size_is_refused() -> None:
    env = Functional((4,))
    for mask in (torch.ones(3, 1, dtype=torch.bool), torch.ones(4, 1)):
        with pytest.raises(SpecMismatch, match="'_reset': expected shape"):
            env.reset(TensorDict({"_reset": mask}, []))


class Team(EnvBase):
    """Two agents with a done and a reward each; agent 0 of row b ends in step `3 + b`, agent 1 in step 5."""

    def __init__(self, size: tuple[int, ...] = (), *, has_root: bool = False) -> None:
        super().__init__(batch_size=size)
        self.observation_spec = Composite(a={"seen": Unbounded((*size, 2))}, b={"seen": Unbounded((*size, 1))}, shape=size)
        self.action_spec = Composite(a={"turn": Categorical(3, size)}, b={"push": Unbounded((*size, 1))}, shape=size)
        one = Unbounded((*size, 1))
        self.reward_spec = Composite(a={"reward": one}, b={"reward": one}, shape=size)
        flag = Categorical(2, (*size, 1), dtype=torch.bool)
        leaves: dict[str, Any] = {"a": {"done": flag, "terminated": flag}, "b": {"done": flag, "terminated": flag}}
        self.done_spec = Composite({**leaves, **({"done": flag, "terminated": flag} if has_root else {})}, shape=size)
        self.has_root = has_root
        self.steps = torch.zeros(*size, 1)

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        mask = torch.ones_like(self.steps) if tensordict is None else tensordict.get("_reset", torch.ones_like(self.steps))
        self.steps = torch.where(mask.bool(), 0.0, self.steps)
        return self._seen()

    def _seen(self) -> TensorDict:
        two = torch.cat([self.steps, -self.steps], -1)
        return TensorDict({"a": {"seen": two}, "b": {"seen": self.steps.clone()}}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps = self.steps + 1
        result = self._seen()
        rows = torch.arange(self.steps.numel()).reshape(self.steps.shape)
        result["a", "reward"], result["b", "reward"] = tensordict["a", "turn"][..., None].float(), tensordict["b", "push"]
        result["a", "done"], result["b", "terminated"] = self.steps >= 3 + rows, self.steps >= 5
        if self.has_root:
            result["done"] = self.steps == 6
        return result

    def _set_seed(self, seed: int) -> None:
        pass


def take_turns(tensordict: TensorDictBase) -> TensorDictBase:
    steps = tensordict["b", "seen"]
    tensordict["a", "turn"] = steps.squeeze(-1).long() % 3
    return tensordict.set(("b", "push"), steps * 10)


@pytest.mark.parametrize("has_root", [True, False])
@Sizes
def test_a03_nested_dones(size: tuple[int, ...], has_root: bool) -> None:
    env = Team(size, has_root=has_root)
    rows = env.batch_size.numel()
    with SyncDataCollector(env, take_turns, frames_per_batch=30 * rows) as collector:
        batch = collector.next().reshape(rows, 30)
        episodes = collector.stats().episodes
    for row in range(rows):
        length = 6 if has_root else min(5, 3 + row)
        steps = torch.arange(30)[:, None] % length
        frames, following = batch[row], batch[row]["next"]
        assert torch.equal(frames["b", "seen"], steps.float())
        assert torch.equal(following["done"], steps == length - 1)
        assert torch.equal(following["done"], following["terminated"])
        assert torch.equal(following["a", "done"], steps + 1 >= 3 + row)
        assert torch.equal(following["b", "done"], steps + 1 >= 5)
        assert torch.equal(following["a", "reward"], steps.float() % 3)
        assert "reward" not in following
    length = episodes[-1].length
    assert episodes[-1].reward == sum(step % 3 + 10 * step for step in range(length))


@Sizes
def test_random_actions_of_several_keys(size: tuple[int, ...]) -> None:
    with SyncDataCollector(Team(size), None, frames_per_batch=12) as collector:
        batch = collector.next()
    assert batch["a", "turn"].unique().tolist() == [0, 1, 2]
    assert batch["b", "push"].std() > 0


def test_nested_envs_in_a_serial_env() -> None:
    with SyncDataCollector(SerialEnv(2, lambda: Team((2,))), take_turns, frames_per_batch=80) as collector:
        batch = collector.next()
    assert batch.batch_size == (2, 2, 20)
    for row, length in enumerate((3, 4)):
        for env in range(2):
            assert batch[env, row]["b", "seen"].flatten().tolist() == [t % length for t in range(20)]


@pytest.mark.parametrize("size", [(), (2,)])
def test_a_rollout_of_nested_dones_resets_rows_as_a_whole(size: tuple[int, ...]) -> None:
    stacked = Team(size).rollout(10, take_turns, break_when_any_done=False, set_truncated=False)
    rows = stacked.reshape(-1, 10)
    for row in range(len(rows)):
        assert rows[row]["b", "seen"].flatten().tolist() == [t % (3 + row) for t in range(10)]
    assert Team(size).rollout(10, take_turns).batch_size == (*size, 3)


def test_ends_of_groups() -> None:
    ends = DoneFlags(Team((2,)))
    none = torch.zeros(2, 1, dtype=torch.bool)
    first, both = torch.tensor([[True], [False]]), torch.ones(2, 1, dtype=torch.bool)

    def read(**flags: Any) -> Any:
        found = ends.read(TensorDict({"a": flags, "b": {"done": none}}, [2]))
        return found and [flag.tolist() for flag in found]

    assert read(done=none) is None
    assert read(done=first) == [[True, False], [False, False]]
    assert read(truncated=first) == [[False, False], [True, False]]
    assert read(done=both, terminated=first) == [[True, False], [False, True]]
    assert read(done=both, truncated=first) == [[False, True], [True, False]]


def test_add_truncated_keys_reaches_nested_flags() -> None:
    env = Team(has_root=True)
    env.add_truncated_keys()
    assert set(env.full_done_spec.keys(True, True)) >= {"truncated", ("a", "truncated"), ("b", "truncated")}


@Sizes
def test_a09_flags_without_dimensions_take_the_shape_of_their_spec(size: tuple[int, ...]) -> None:
    class Flat(Functional):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            result = super()._step(tensordict)
            return result.set("done", result["done"].squeeze(-1))

    rows = Flat(size).batch_size.numel()
    with SyncDataCollector(Flat(size), Const(0), frames_per_batch=8 * rows) as collector:
        batch = collector.next()
    assert batch["next", "done"].shape == (*size, 8, 1)
    assert Flat(size).rand_step(Flat(size).reset())["next", "done"].shape == (*size, 1)


class Words(EnvBase):
    """Observes words, a different one in each frame."""

    def __init__(self, size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=size)
        self.observation_spec = Composite(word=NonTensor(size), shape=size)
        self.action_spec = Unbounded((*size, 1))
        self.steps = torch.zeros(self.batch_size.numel(), dtype=torch.int64)

    def _words(self) -> TensorDict:
        words = [f"{row} {step}" for row, step in enumerate(self.steps.tolist())]
        return TensorDict({"word": NonTensorStack(*words) if self.batch_size else words[0]}, self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.steps[... if mask is None else mask.flatten()] = 0
        return self._words()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        done = (self.steps >= 2 + torch.arange(len(self.steps))).reshape(*self.batch_size, 1)
        return self._words().update({"reward": tensordict["action"], "done": done})

    def _set_seed(self, seed: int) -> None:
        pass


@pytest.mark.parametrize("size", [(), (3,)])
def test_words_are_recorded_and_reset_row_by_row(size: tuple[int, ...]) -> None:
    rows = max(1, *size, 1)
    with SyncDataCollector(Words(size), None, frames_per_batch=8 * rows) as collector:
        batch = collector.next()
    wanted = [[f"{row} {t % (2 + row)}" for t in range(8)] for row in range(rows)]
    assert batch["word"] == (wanted if size else wanted[0])
    stacked = Words(size).rollout(8, break_when_any_done=False)
    assert stacked["word"] == (wanted if size else wanted[0])


# Errors


def _result_of_step(**changes: Any) -> type[Functional]:
    class Changed(Functional):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            result = super()._step(tensordict)
            result.batch_size = []
            for key, value in changes.items():
                result = result.exclude(key) if value is None else result.set(key, value)
            return result

    return Changed


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"place": None}, r"Changed\._step: expected key 'place', found"),
        ({"reward": None}, r"Changed\._step: expected key 'reward', found"),
        ({"done": None}, r"Changed\._step: expected one of the done flags \['done', 'terminated'\], found"),
        ({"place": torch.zeros(2, 3)}, r"key place: expected shape \(2, 1\) and dtype float32, found shape \(2, 3\)"),
        (
            {"place": torch.zeros(2, 1, dtype=torch.complex64)},
            r"key place: .*found shape \(2, 1\) and dtype complex64.*Cast it",
        ),
        ({"reward": torch.zeros(2)}, r"key reward: expected shape \(2, 1\) .*value\.reshape\(\(2, 1\)\)"),
        ({"done": torch.zeros(2, 1)}, r"'done': expected a tensor of dtype torch.bool, found dtype torch.float32"),
        ({"done": torch.zeros(3, 1, dtype=torch.bool)}, r"'done': expected shape \(2, 1\), found \(3, 1\)"),
    ],
)
def test_h14_errors_name_key_expected_found_and_call(changes: dict[str, Any], text: str) -> None:
    env = _result_of_step(**changes)((2,))
    with SyncDataCollector(env, Const(0), frames_per_batch=8) as collector, pytest.raises(SpecMismatch, match=text):
        collector.next()
    by_hand = _result_of_step(**changes)((2,))
    with pytest.raises(SpecMismatch, match=text):
        by_hand.rand_step(by_hand.reset())


@pytest.mark.parametrize(("result", "text"), [(None, "found NoneType; does it lack a return"), ({}, "found dict")])
def test_h14_results_that_are_no_tensordicts(result: Any, text: str) -> None:
    class Odd(Functional):
        def _reset(self, tensordict: TensorDictBase | None) -> Any:
            return result

    with pytest.raises(SpecMismatch, match=rf"Odd\._reset: expected a TensorDict, {text}"):
        SyncDataCollector(Odd(), Const(0), frames_per_batch=8)


def test_results_under_next_are_explained() -> None:
    class Nested(Functional):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return TensorDict({"next": super()._step(tensordict)}, self.batch_size)

    with pytest.raises(SpecMismatch, match="_step returns its values at the root, not under 'next'"):
        Nested().rand_step(Nested().reset())


def test_h09_a_shape_that_changes_later_is_named() -> None:
    class Grows(Functional):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            result = super()._step(tensordict)
            grown = result["place"].expand(*self.batch_size, 2) if result["reward"].max() > 2 else result["place"]
            return result.set("place", grown)

    with (
        SyncDataCollector(Grows((3,)), Const(0), frames_per_batch=30) as collector,
        pytest.raises(SpecMismatch, match=r"Grows: 'place': expected shape \(3, 1\), as the spec says, found \(3, 2\)"),
    ):
        collector.next()


def test_check_env_specs_names_keys_that_no_spec_has() -> None:
    with pytest.raises(SpecMismatch, match=r"expected only keys of the specs, found \[\('memory', 'steps'\)\]"):
        check_env_specs(Functional())
    check_env_specs(IdRows((2,)), seed=3)
    check_env_specs("CartPole-v1")


def test_step_mdp_leaves_out_what_it_is_told() -> None:
    stepped = Team().step(take_turns(Team().reset()))
    moved = step_mdp(stepped, reward_keys=[("a", "reward"), ("b", "reward")], action_keys=[("a", "turn"), ("b", "push")])
    assert set(moved.keys(True, True)) == {(a, k) for a in "ab" for k in ("seen", "done", "terminated")}
    everything = step_mdp(stepped, exclude_action=False, exclude_reward=False)
    assert set(everything.keys(True, True)) > {("a", "turn"), ("b", "reward")}
    assert stepped["b", "seen"] == 0
    into = TensorDict({}, [])
    assert step_mdp(stepped, into, done_keys=[("a", "done")], exclude_done=True) is into
    assert ("a", "done") not in into.keys(True)
    assert ("b", "done") in into.keys(True)


# check_env


@Sizes
def test_envs_here_keep_to_the_facts(size: tuple[int, ...]) -> None:
    check_env(lambda: Team(size), seeded=False)
    check_env(lambda: IdRows(size), seeded=False)


class Reuses(IdRows):
    """Returns one and the same tensor each time, changed in place."""

    def _observe(self) -> torch.Tensor:
        seen = super()._observe()
        self.kept = getattr(self, "kept", seen)
        return self.kept.copy_(seen)


class Keeps(IdRows):
    """Changes the action that it is given."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict["action"].zero_()
        return super()._step(tensordict)


class Forgets(IdRows):
    """Does not say that it is closed."""

    def ensure_open(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "fact"),
    [
        (Reuses, "results_are_not_changed_later"),
        (Keeps, "a_step_leaves_its_input_alone"),
        (Forgets, "a_closed_env_says_so"),
        (_result_of_step(place=None), "values_fit_the_specs"),
    ],
)
def test_check_env_names_the_fact_that_does_not_hold(kind: type[EnvBase], fact: str) -> None:
    with pytest.raises(AssertionError, match=rf"^{fact}: "):
        check_env(lambda: kind(batch_size=(2,)) if issubclass(kind, IdRows) else kind((2,)), seeded=False)


def test_check_env_needs_the_same_episodes_after_the_same_seed() -> None:
    with pytest.raises(AssertionError, match=r"^the_same_seed_gives_the_same_episodes: "):
        check_env(IdRows)
