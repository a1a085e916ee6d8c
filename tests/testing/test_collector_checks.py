"""`check_collector`: every kind of env keeps to all facts, and a collector that breaks one fact is caught by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

from reap.collectors import SyncDataCollector
from reap.testing import check_collector
from reap.testing import collector_checks as facts
from reap.testing.collector_checks import FACTS
from reap.testing.streams import MakeCollector
from tests.collectors.kinds import KINDS, maker
from tests.pairwise import each_value
from tests.testing.makers import build_row


@pytest.mark.parametrize(
    ("kind", "fact"), each_value(product(KINDS, FACTS)), ids=lambda value: getattr(value, "__name__", None)
)
def test_every_kind_of_env(kind: str, fact: Any) -> None:
    check_collector(maker(kind), [fact])


def test_facts_are_told_by_name_and_docstring() -> None:
    assert len(FACTS) == len({fact.__name__ for fact in FACTS}) == 17
    assert all(fact.__doc__ for fact in FACTS)


# ---------------------------------------------------------------------- a worker that comes late


class Starved:
    """Two workers, the second of which delivers nothing until the fifth batch, and the first nothing from then to the tenth.

    Args:
        is_reset: whether `reset` does anything.
    """

    def __init__(self, workers: list[SyncDataCollector], is_reset: bool = True) -> None:
        self.workers, self.is_reset = workers, is_reset
        self.batches = 0

    def next(self) -> Any:
        self.batches += 1
        return self.workers[4 < self.batches <= 10].next()

    def reset(self) -> None:
        for worker in self.workers if self.is_reset else ():
            worker.reset()

    def shutdown(self) -> None:
        for worker in self.workers:
            worker.shutdown()


def starving(env_factory: Any, policy: Any, is_reset: bool = True, **options: Any) -> Any:
    return Starved([SyncDataCollector(build_row(env_factory, number), policy, **options) for number in (0, 1)], is_reset)


def test_a_worker_may_deliver_nothing_for_a_while() -> None:
    check_collector(starving, [facts.reset_starts_new_episodes])
    with pytest.raises(AssertionError, match=r"env 0 after reset\(\)"):
        check_collector(partial(starving, is_reset=False), [facts.reset_starts_new_episodes])


# ---------------------------------------------------------------------- collectors that break a fact


class Broken:
    """A collector with one thing falsified; the rest is the collector's own."""

    def __init__(self, collector: SyncDataCollector) -> None:
        self.collector = collector
        self.batches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.collector, name)

    def __len__(self) -> int:
        return len(self.collector)

    def __iter__(self) -> Any:
        while (batch := self.next()) is not None:
            yield batch

    def next(self) -> Any:
        batch = self.collector.next()
        self.batches += 1
        return batch if batch is None else self.falsify(batch)

    def falsify(self, batch: Any) -> Any:
        return batch


class RowsSwapped(Broken):
    def falsify(self, batch: Any) -> Any:
        batch["next", "reward"] = batch["next", "reward"].flip(0)
        return batch


class ActionsLate(Broken):
    def falsify(self, batch: Any) -> Any:
        batch["action"] = batch["action"].roll(1, 1)
        return batch


class FlagsLost(Broken):
    def falsify(self, batch: Any) -> Any:
        batch["next", "truncated"].zero_()
        return batch


class ResetsBetweenBatches(Broken):
    def falsify(self, batch: Any) -> Any:
        self.collector.reset()
        return batch


class DropsAColumn(Broken):
    def falsify(self, batch: Any) -> Any:
        return batch[..., 1:]


class IdsBeginAnew(Broken):
    def falsify(self, batch: Any) -> Any:
        ids = batch["collector", "traj_ids"]
        batch["collector", "traj_ids"] = ids - ids.min()
        return batch


class IdOfTheRow(Broken):
    def falsify(self, batch: Any) -> Any:
        batch["collector", "traj_ids"] = torch.arange(3).unsqueeze(-1).expand(batch.batch_size).clone()
        return batch


class DoneIsTerminated(Broken):
    def falsify(self, batch: Any) -> Any:
        batch["next", "done"] = batch["next", "terminated"].clone()
        return batch


class RootDone(Broken):
    def falsify(self, batch: Any) -> Any:
        batch["done"] = batch["next", "done"].clone()
        return batch


class FlagsWithoutDimension(Broken):
    def falsify(self, batch: Any) -> Any:
        batch["next", "done"] = batch["next", "done"].squeeze(-1)
        return batch


class CountsFromOne(Broken):
    def falsify(self, batch: Any) -> Any:
        if "step_count" in batch.keys():
            batch["step_count"] += 1
        return batch


class ResetsNothing(Broken):
    def reset(self) -> None:
        pass


class SeedsNothing(Broken):
    def set_seed(self, seed: int) -> int:
        return seed + 1


class SeedsTheSame(Broken):
    def set_seed(self, seed: int) -> int:
        return self.collector.set_seed(3) + seed


class DrawsOfTheCaller(Broken):
    def falsify(self, batch: Any) -> Any:
        batch["action"] += torch.rand(())
        return batch


class UpdatesLate(Broken):
    def falsify(self, batch: Any) -> Any:
        if self.batches > 4 and self.batches < 8:
            batch["action"] -= 3.0
        return batch


class UpdatesInTheMiddle(Broken):
    def falsify(self, batch: Any) -> Any:
        if self.batches == 5:
            batch["action"][..., :4, :] -= 3.0
        return batch


class UpdatesAreNotCounted(Broken):
    policy_version = 0


class SharesThePolicy(Broken):
    def falsify(self, batch: Any) -> Any:
        self.collector.policy.share_memory()
        return batch


class FreezesThePolicy(Broken):
    def falsify(self, batch: Any) -> Any:
        self.collector.policy.requires_grad_(requires_grad=False)
        return batch


class TrainsThePolicy(Broken):
    def falsify(self, batch: Any) -> Any:
        with torch.no_grad():
            next(self.collector.policy.parameters()).add_(1.0)
        return batch


class SameMemory(Broken):
    last: Any = None

    def falsify(self, batch: Any) -> Any:
        if self.last is None:
            self.last = batch
        return self.last.copy_(batch)


class KeepsTheGraph(Broken):
    def falsify(self, batch: Any) -> Any:
        batch["action"] = batch["action"] + 0 * next(self.collector.policy.parameters())
        return batch


class InferenceTensors(Broken):
    def falsify(self, batch: Any) -> Any:
        with torch.inference_mode():
            return batch.clone()


class KeysOfTheFirstBatch(Broken):
    def falsify(self, batch: Any) -> Any:
        return batch.exclude("seen") if self.batches == 1 else batch


class NothingRandom(Broken):
    def falsify(self, batch: Any) -> Any:
        if self.batches == 1:
            batch["action"] = batch["observation"][..., 2:3] / 2
        return batch


class HidesTheCause(Broken):
    def next(self) -> Any:
        try:
            return super().next()
        except RuntimeError:
            raise RuntimeError("a worker failed, see the log") from None


class ShutdownOnce(Broken):
    def shutdown(self) -> None:
        if self.collector.closed:
            raise RuntimeError("closed already")
        self.collector.shutdown()


class NeverClosed(Broken):
    closed = False


class EndsSilently(Broken):
    def next(self) -> Any:
        return None if self.collector.closed else super().next()


class ForgetsIds(Broken):
    def load_state_dict(self, state: Any) -> None:
        self.collector.load_state_dict(state)
        self.collector.reset()


class ForgetsCounters(Broken):
    def load_state_dict(self, state: Any) -> None:
        self.collector.load_state_dict({**state, "counters": dict.fromkeys(state["counters"], 0)})


class LoadsAnything(Broken):
    def load_state_dict(self, state: Any) -> None:
        if state:
            self.collector.load_state_dict({**state, "class": "SyncDataCollector"})


class RefusesAndResets(Broken):
    def load_state_dict(self, state: Any) -> None:
        self.collector.reset()
        self.collector.load_state_dict(state)


class OneTooMany(Broken):
    def __iter__(self) -> Any:
        yield from super().__iter__()
        yield self.collector.rollout()


class LengthInFrames(Broken):
    def __len__(self) -> int:
        return self.collector.total_frames


class ClosesAtTheEnd(Broken):
    def next(self) -> Any:
        batch = super().next()
        if batch is None:
            self.collector.shutdown()
        return batch


class CountsBatchesTwice(Broken):
    def stats(self) -> Any:
        stats = self.collector.stats()
        return replace(stats, batches=2 * stats.batches)


class TellsEpisodesTwice(Broken):
    def stats(self) -> Any:
        stats = self.collector.stats()
        self.told = [*getattr(self, "told", ()), *stats.episodes]
        return replace(stats, episodes=list(self.told))


CAUGHT: dict[type[Broken], Any] = {
    RowsSwapped: facts.frames_belong_together,
    ActionsLate: facts.frames_belong_together,
    FlagsLost: facts.frames_belong_together,
    ResetsBetweenBatches: facts.episodes_go_on,
    DropsAColumn: facts.episodes_go_on,
    IdsBeginAnew: facts.ids_are_unique,
    IdOfTheRow: facts.ids_are_unique,
    DoneIsTerminated: facts.done_is_terminated_or_truncated,
    RootDone: facts.done_is_terminated_or_truncated,
    FlagsWithoutDimension: facts.done_is_terminated_or_truncated,
    CountsFromOne: facts.limits_truncate,
    ResetsNothing: facts.reset_starts_new_episodes,
    SeedsNothing: facts.seeds_decide,
    SeedsTheSame: facts.seeds_decide,
    DrawsOfTheCaller: facts.seeds_decide,
    UpdatesLate: facts.weights_arrive,
    UpdatesInTheMiddle: facts.weights_arrive,
    UpdatesAreNotCounted: facts.weights_arrive,
    SharesThePolicy: facts.policy_is_left_alone,
    FreezesThePolicy: facts.policy_is_left_alone,
    TrainsThePolicy: facts.policy_is_left_alone,
    SameMemory: facts.batches_are_the_users,
    KeepsTheGraph: facts.batches_are_the_users,
    InferenceTensors: facts.batches_are_the_users,
    KeysOfTheFirstBatch: facts.keys_stay,
    NothingRandom: facts.keys_stay,
    HidesTheCause: facts.failures_name_their_cause,
    NeverClosed: facts.shutdown_ends_it,
    EndsSilently: facts.shutdown_ends_it,
    ForgetsIds: facts.state_goes_on,
    ForgetsCounters: facts.state_goes_on,
    LoadsAnything: facts.foreign_states_are_refused,
    RefusesAndResets: facts.foreign_states_are_refused,
    OneTooMany: facts.the_budget_is_kept,
    LengthInFrames: facts.the_budget_is_kept,
    ClosesAtTheEnd: facts.the_budget_is_kept,
    CountsBatchesTwice: facts.stats_count,
    TellsEpisodesTwice: facts.stats_count,
}


def breaking(broken: type[Broken]) -> MakeCollector:
    make = maker("serial")

    def make_collector(*arguments: Any, **options: Any) -> Any:
        return broken(make(*arguments, **options))

    return make_collector


def test_the_wrapper_itself_breaks_nothing() -> None:
    check_collector(breaking(Broken))


@pytest.mark.parametrize("broken", CAUGHT, ids=lambda broken: broken.__name__)
def test_what_is_broken_is_caught_by_its_fact(broken: type[Broken]) -> None:
    fact = CAUGHT[broken]
    with pytest.raises(AssertionError) as caught:
        check_collector(breaking(broken), [fact])
    text = str(caught.value)
    assert text.startswith(f"{fact.__name__}: ")
    assert ": expected " in text
    assert ", found " in text
    assert fact.__doc__.strip() in text


def test_every_fact_can_fail() -> None:
    assert set(CAUGHT.values()) == set(FACTS)


def test_what_the_message_says() -> None:
    with pytest.raises(AssertionError) as caught:
        check_collector(breaking(DoneIsTerminated))
    assert str(caught.value) == (
        "done_is_terminated_or_truncated: frame (env 1, episode 0, step 5): next done: expected True, found False\n"
        "The fact: Flags are bool `[*batch, 1]`; done is terminated or truncated; at the root, where every frame starts, none "
        "is set."
    )


def test_an_error_of_another_kind_is_let_through_with_a_note() -> None:
    with pytest.raises(RuntimeError, match="^closed already") as caught:
        check_collector(breaking(ShutdownOnce))
    assert caught.value.__notes__ == ["reap: raised while check_collector checked shutdown_ends_it"]


def test_facts_of_ones_own() -> None:
    seen: list[Any] = []

    def nothing_is_seen(make: Callable[..., Any]) -> None:
        """Nothing is seen."""
        seen.append(make)

    make = maker("gym")
    check_collector(make, [nothing_is_seen])
    assert seen == [make]
