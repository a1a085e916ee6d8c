"""`check_collector`: a conformance suite for those who write or change a collector.

Each fact is a function that builds collectors of the env `Marked`, whose observation contains env, episode and step, so that a
frame in the wrong place is an exact mismatch.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch

from reap.errors import ClosedError, add_note
from reap.recording.buffers import IDS
from reap.testing.envs import Id
from reap.testing.marked import Drawing, Marked, Told
from reap.testing.streams import (
    FLAG_NAMES,
    FRAMES,
    Frame,
    MakeCollector,
    by_env,
    collecting,
    frames_of,
    layout_of,
    raised,
    reaching,
    require_complete,
    require_equal,
    require_same,
    take,
    together,
)

Fact = Callable[[MakeCollector], None]

BATCHES = 4
SEED = 7


def check_collector(make_collector: MakeCollector, facts: Sequence[Fact] | None = None) -> None:
    """Check the facts that all collectors have in common.

    Args:
        make_collector: `make_collector(env_factory, policy, **options)` builds a collector of gymnasium envs:
            `env_factory(number)` makes one, and each row gets a number of its own. The number of rows divides 24, the frames of
            a batch here.
        facts: the facts to check; None for all (`FACTS`).

    Raises:
        AssertionError: a fact does not hold; the message names it and says what was expected and what was found.

    Example:
        >>> from functools import partial
        >>> from reap.collectors import SyncDataCollector
        >>> from reap.envs import SerialEnv
        >>> def make_collector(env_factory, policy, **options):
        ...     envs = [partial(env_factory, number) for number in range(3)]
        ...     return SyncDataCollector(lambda: SerialEnv(3, envs), policy, **options)
        >>> check_collector(make_collector)
    """
    for fact in FACTS if facts is None else facts:
        name = getattr(fact, "__name__", repr(fact))
        try:
            fact(make_collector)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}\nThe fact: {(fact.__doc__ or name).strip()}") from error
        except Exception as error:
            add_note(error, f"reap: raised while check_collector checked {name}")
            raise


# ---------------------------------------------------------------------- the facts


def frames_belong_together(make: MakeCollector) -> None:
    """The observation, action, policy outputs, reward, flags and next observation of a frame are from one env, at one step."""
    with collecting(make, Marked, Told()) as collector:
        batches = take(collector, BATCHES)
    for place, frame in frames_of(batches):
        number, episode, step = place
        action = step / 2
        over = step + 1 >= Id.length(number, episode)
        ending = Id.ending(number, episode) if over else (False, False)
        require_same(place, "action", [action], frame["action"].tolist())
        require_same(place, "output of the policy 'seen'", frame["observation"][3:].tolist(), frame["seen"].tolist())
        require_same(place, "next observation", [number, episode, step + 1], frame["next", "observation"][:3].tolist())
        require_same(place, "next reward", [Id.reward(number, episode, step + 1, action)], frame["next", "reward"].tolist())
        found = (bool(frame["next", "terminated"]), bool(frame["next", "truncated"]))
        require_same(place, "next (terminated, truncated)", ending, found)


def episodes_go_on(make: MakeCollector) -> None:
    """An env's frames follow each other without a gap, across batches too, and a new episode follows one that ended."""
    with collecting(make, Marked, Told()) as collector:
        batches = take(collector, BATCHES)
    require_complete(batches, Id.length)


def ids_are_unique(make: MakeCollector) -> None:
    """Every episode has one id, int64 and not negative, in all batches, and no two episodes share an id."""
    with collecting(make, Marked, Told()) as collector:
        batches = take(collector, BATCHES)
    for batch in batches:
        require_same(
            "a batch", "shape and dtype of the ids", (batch.batch_size, torch.int64), (batch[IDS].shape, batch[IDS].dtype)
        )
    ids: dict[tuple[int, int], int] = {}
    for place, frame in frames_of(batches):
        found = int(frame[IDS])
        require_same(place, "id", ids.setdefault(place[:2], found), found)
        require_same(place, "id that is not negative", True, found >= 0)
    require_same("all batches", "number of different ids", len(ids), len(set(ids.values())))


def done_is_terminated_or_truncated(make: MakeCollector) -> None:
    """Flags are bool `[*batch, 1]`; done is terminated or truncated; at the root, where every frame starts, none is set."""
    with collecting(make, Marked, Told()) as collector:
        batches = take(collector, BATCHES)
    for batch in batches:
        expected = (torch.Size((*batch.batch_size, 1)), torch.bool)
        for key in (*FLAG_NAMES, *(("next", flag) for flag in FLAG_NAMES)):
            require_same("a batch", f"shape and dtype of {key}", expected, (batch[key].shape, batch[key].dtype))
    for place, frame in frames_of(batches):
        require_same(place, "flags at the root", [False] * 3, [bool(frame[flag]) for flag in FLAG_NAMES])
        done, terminated, truncated = (bool(frame["next", flag]) for flag in FLAG_NAMES)
        require_same(place, "next done", terminated or truncated, done)


def limits_truncate(make: MakeCollector) -> None:
    """`max_frames_per_traj` truncates an episode after that many frames, another follows, and step_count counts its frames."""
    limit = 4
    with collecting(make, Marked, Told(), max_frames_per_traj=limit) as collector:
        batches = take(collector, BATCHES)
    require_complete(batches, lambda number, episode: min(limit, Id.length(number, episode)))
    for place, frame in frames_of(batches):
        step = place[2]
        require_same(place, "step_count", (step, step + 1), (int(frame["step_count"]), int(frame["next", "step_count"])))
        if step + 1 == limit:
            require_same(place, "next truncated", True, bool(frame["next", "truncated"]))


def reset_starts_new_episodes(make: MakeCollector) -> None:
    """After `reset()` every env starts another episode, under a new id."""
    with collecting(make, Marked, Told()) as collector:
        before = by_env(take(collector, BATCHES))
        collector.reset()
        after = reaching(collector, take(collector, BATCHES), before)
    for number in sorted(before.keys() & after.keys()):
        last, first = before[number][-1], after[number][0]
        require_same(f"env {number} after reset()", "step", 0, int(first["observation"][2]))
        require_same(
            f"env {number} after reset()", "another episode", True, bool(first["observation"][1] > last["observation"][1])
        )
        require_same(f"env {number} after reset()", "another id", True, bool(first[IDS] != last[IDS]))


def seeds_decide(make: MakeCollector) -> None:
    """The same seed gives the same frames and next seed, whatever the caller draws; another seed gives others."""
    streams: list[dict[int, list[Frame]]] = []
    following: list[int] = []
    for draws, seed in ((1, SEED), (5, SEED), (1, SEED + 1)):
        with collecting(make, Marked, Drawing()) as collector:
            following.append(collector.set_seed(seed))
            torch.rand(draws)
            streams.append(reaching(collector, take(collector, BATCHES), streams[0] if streams else None))
    require_same("set_seed with the same seed", "next seed", following[0], following[1])
    require_same("set_seed with another seed", "another next seed", True, following[2] != following[0])
    for key in ("observation", "action"):
        require_equal("with the same seed", key, *together(streams[0], streams[1], key))
        pairs = together(streams[0], streams[2], key)
        require_same("with another seed", f"other values of {key!r}", False, torch.equal(*pairs))


def weights_arrive(make: MakeCollector) -> None:
    """After `update_policy_weights_` at most one more batch of an env has the old weights, and no batch mixes weights."""
    policy = Told()
    with collecting(make, Marked, policy) as collector:
        take(collector, BATCHES)
        with torch.no_grad():
            policy.offset.fill_(3.0)
        before = collector.policy_version
        collector.update_policy_weights_()
        require_same("update_policy_weights_", "policy_version", before + 1, collector.policy_version)
        batches = take(collector, BATCHES)
    seen: dict[int, list[float]] = {}
    for batch in batches:
        for number, frames in by_env([batch]).items():
            offsets = {float(frame["action"]) - float(frame["observation"][2]) / 2 for frame in frames}
            require_same(f"a batch of env {number}", "number of weights that acted", 1, len(offsets))
            seen.setdefault(number, []).extend(offsets)
    for number, offsets in seen.items():
        require_same(f"env {number} after an update", "weights of the batches after the first", {3.0}, {3.0, *offsets[1:]})


def policy_is_left_alone(make: MakeCollector) -> None:
    """Collecting neither moves nor changes the given policy: it has the same parameters, which still require grad."""
    policy = Told()
    before = policy.offset
    with collecting(make, Marked, policy) as collector:
        take(collector, BATCHES)
    parameter = policy.offset
    require_same("the policy", "the same parameter", True, parameter is before)
    require_same("the policy's parameter", "value", 0.0, float(parameter.detach()))
    found = (parameter.requires_grad, parameter.grad, parameter.is_shared(), parameter.device.type)
    require_same("the policy's parameter", "(requires_grad, grad, is_shared, device)", (True, None, False, "cpu"), found)


def batches_are_the_users(make: MakeCollector) -> None:
    """A batch does not change while others are collected; it requires no grad, and losses and writes work on it."""
    policy = Told()
    with collecting(make, Marked, policy) as collector:
        (first,) = take(collector, 1)
        copy = first.clone()
        take(collector, BATCHES)
        for key, value in first.items(include_nested=True, leaves_only=True):
            require_equal("the first batch, after others were collected", key, copy[key], value)
            require_same(
                f"{key!r} of a batch",
                "(requires_grad, is_inference)",
                (False, False),
                (value.requires_grad, value.is_inference()),
            )
    (policy(first["observation"])["action"] * first["next", "reward"]).sum().backward()
    require_same("a loss on a batch", "a gradient", True, policy.offset.grad is not None)
    first["next", "reward"].zero_()


def keys_stay(make: MakeCollector) -> None:
    """Every batch has the same keys, shapes and dtypes; with random actions, the other outputs of the policy are zero."""
    with collecting(make, Marked, Told(), init_random_frames=FRAMES) as collector:
        batches = take(collector, 2 * BATCHES)
    layouts = [layout_of(batch) for batch in batches]
    for layout in layouts[1:]:
        require_same("a later batch", "keys, shapes and dtypes", layouts[0], layout)
    random = [bool((batch["seen"] == 0).all()) for batch in batches]
    require_same("the first batch", "outputs of the policy that are zero", True, random[0])
    require_same("the last batch", "outputs of the policy that are zero", False, random[-1])
    told = [torch.equal(batch["action"], batch["observation"][..., 2:3] / 2) for batch in batches]
    require_same("the first and the last batch", "actions of the policy", [False, True], [told[0], told[-1]])


def failures_name_their_cause(make: MakeCollector) -> None:
    """The next call raises the exception of an env, as it is or as the `__cause__`; shutdown works afterwards."""
    with collecting(make, partial(Marked, crash_at=2 * FRAMES), Told()) as collector:
        error = raised(lambda: take(collector, 100 * BATCHES))
    text = f"crashed in step {2 * FRAMES}, as requested"
    chain = [repr(one) for one in (error, error.__cause__ if error else None)]
    require_same("an env that raises", f"RuntimeError({text!r}) or one caused by it", True, any(text in one for one in chain))


def shutdown_ends_it(make: MakeCollector) -> None:
    """`shutdown` may be called twice and leaves no thread running; later calls raise ClosedError."""
    threads = set(threading.enumerate())
    with collecting(make, Marked, Told()) as collector:
        take(collector, 1)
        require_same("before shutdown", "closed", False, collector.closed)
        collector.shutdown()
        collector.shutdown()
        require_same("after shutdown", "closed", True, collector.closed)
        require_same("next() after shutdown", "an error", ClosedError, type(raised(collector.next)))
    require_same("after shutdown", "threads still running", set(), set(threading.enumerate()) - threads)


def state_goes_on(make: MakeCollector) -> None:
    """A new collector that loads the saved state of another collects the same frames, with the same ids and counts."""
    with collecting(make, Marked, Drawing()) as collector:
        collector.set_seed(SEED)
        take(collector, BATCHES)
        file = io.BytesIO()
        torch.save(collector.state_dict(), file)
        file.seek(0)
        expected = by_env(take(collector, BATCHES))
        frames = collector.stats().frames
    with collecting(make, Marked, Drawing()) as collector:
        collector.load_state_dict(torch.load(file, weights_only=True))
        batches = take(collector, BATCHES)
        require_same("stats after a resume", "frames", frames, collector.stats().frames)
        found = reaching(collector, batches, expected)
    for key in next(iter(expected.values()))[0]:
        require_equal("after a resume", key, *together(expected, found, key))


def foreign_states_are_refused(make: MakeCollector) -> None:
    """A state that is not a collector's, or is of another class, raises a ValueError and changes nothing."""
    streams: list[dict[int, list[Frame]]] = []
    for is_loading in (False, True):
        with collecting(make, Marked, Drawing()) as collector:
            collector.set_seed(SEED)
            first = take(collector, BATCHES)
            for state in ({}, {**collector.state_dict(), "class": "Another"}) if is_loading else ():
                error = raised(partial(collector.load_state_dict, state))
                require_same(
                    "load_state_dict of another collector's state", "a ValueError", True, isinstance(error, ValueError)
                )
            batches = [*first, *take(collector, BATCHES)]
            streams.append(reaching(collector, batches, streams[0] if streams else None))
    for key in ("observation", "action", IDS):
        require_equal("after a state was refused", key, *together(streams[0], streams[1], key))


def the_budget_is_kept(make: MakeCollector) -> None:
    """Iteration ends after `len(collector)` batches with `total_frames` frames; then `next()` is None; nothing is closed."""
    total = 3 * FRAMES
    with collecting(make, Marked, Told(), total_frames=total) as collector:
        length = len(collector)
        batches = list(collector)
        require_same("len(collector) against batches", "number", length, len(batches))
        require_same("all batches", "frames", total, sum(1 for _ in frames_of(batches)))
        require_same("after the last batch", "closed", False, collector.closed)
        require_same("next() after the last batch", "batch", None, collector.next())


def stats_count(make: MakeCollector) -> None:
    """`stats()` counts the delivered frames, batches and finished episodes; each episode is reported once."""
    with collecting(make, Marked, Told()) as collector:
        batches = take(collector, BATCHES)
        stats, later = collector.stats(), collector.stats()
    ended = sum(int(frame["next", "done"]) for _, frame in frames_of(batches))
    rewards: dict[tuple[int, int], float] = {}
    for (number, episode, _), frame in frames_of(batches):
        rewards[number, episode] = rewards.get((number, episode), 0.0) + float(frame["next", "reward"])
    over = [(n, e) for (n, e, step), _ in frames_of(batches) if step + 1 == Id.length(n, e)]
    expected = (sum(1 for _ in frames_of(batches)), len(batches), ended)
    require_same(
        "stats", "(frames, batches, finished_episodes)", expected, (stats.frames, stats.batches, stats.finished_episodes)
    )
    told = sorted((float(episode.reward), episode.length) for episode in stats.episodes)
    require_same("stats", "(return, length) of the episodes", sorted((rewards[ne], Id.length(*ne)) for ne in over), told)
    require_same("stats that are read again", "episodes", [], later.episodes)


FACTS: tuple[Fact, ...] = (
    frames_belong_together,
    episodes_go_on,
    ids_are_unique,
    done_is_terminated_or_truncated,
    limits_truncate,
    reset_starts_new_episodes,
    seeds_decide,
    weights_arrive,
    policy_is_left_alone,
    batches_are_the_users,
    keys_stay,
    failures_name_their_cause,
    shutdown_ends_it,
    state_goes_on,
    foreign_states_are_refused,
    the_budget_is_kept,
    stats_count,
)
"""All facts, in the order in which they are checked."""
