"""`check_env`: a conformance suite for envs of gymnasium, of torchrl, and written for reap.

Each fact is a function of a factory; the error for a fact that does not hold contains its name and docstring.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from reap.collectors import SyncDataCollector
from reap.envs import EnvBase, step_mdp
from reap.envs.checks.specs import check_env_specs
from reap.envs.make_env import build_env, is_env
from reap.errors import BoundsWarning, ClosedError, headline
from reap.keys import nested, plain
from reap.recording.buffers import DONE, FLAGS, IDS, Slot, Stage, after
from reap.recording.objects import unstacked
from reap.recording.trajectories import NO_ID
from reap.tensordicts import make_tensordict

if TYPE_CHECKING:
    from tensordict import TensorDictBase

Factory = Callable[[], EnvBase]
COLUMNS = 24
"""Number of steps for a fact about episodes."""


def check_env(create_env_fn: Any, *, seed: int = 0, seeded: bool = True) -> None:
    """Check a dozen facts that collectors rely on, with random actions.

    Args:
        create_env_fn: a factory or a gymnasium id, so that each fact is checked on a new env; or an env, which is used for all
            facts, and closed.
        seed: the seed for envs and actions, and for the episodes that have to repeat.
        seeded: the env repeats its episodes after `set_seed`; False leaves out the fact that needs it.

    Raises:
        AssertionError: a fact does not hold; the message starts with its name.

    Example:
        >>> check_env("CartPole-v1")
    """
    one = build_env(create_env_fn) if is_env(create_env_fn) else None
    repeats = (wraps(the_same_seed_gives_the_same_episodes)(partial(the_same_seed_gives_the_same_episodes, seed=seed)),)
    for fact in FACTS + (repeats if seeded else ()) + (LAST_FACT,):
        env = build_env(create_env_fn) if one is None else one
        try:
            with torch.random.fork_rng([]), _named(fact), warnings.catch_warnings():
                warnings.simplefilter("ignore", BoundsWarning)  # numbers outside their bounds are a fact of their own
                torch.manual_seed(seed)
                if seeded:
                    env.set_seed(seed)
                fact(env)
        finally:
            if one is None:
                env.close()


@contextmanager
def _named(fact: Callable[[EnvBase], None]) -> Generator[None]:
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{fact.__name__}: {(fact.__doc__ or '').strip()} {headline(error)}") from error


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise AssertionError(text)


def values_fit_the_specs(env: EnvBase) -> None:
    """The values that the env returns have the keys, shapes, dtypes and ranges of its specs."""
    check_env_specs(env)


def a_reset_clears_all_flags(env: EnvBase) -> None:
    """After a reset no done flag is True, whatever the state of the env before."""
    for _ in range(2):
        first = env.reset()
        raised = [plain(key) for key, _ in env.full_done_spec.leaves() if bool(first.get(plain(key)).any())]
        _require(not raised, f"found {raised} True")
        env.rand_step(first)


def done_is_terminated_or_truncated(env: EnvBase) -> None:
    """If there is a flag `done`, `terminated` and `truncated` give the reason."""
    for stepped in _steps(env):
        following = stepped.get("next")
        for key, _ in env.full_done_spec.leaves():
            if key[-1] == "done":
                why = [following.get((*key[:-1], name), None) for name in ("terminated", "truncated")]
                known = [flag for flag in why if flag is not None]
                _require(not known or torch.equal(torch.stack(known).any(0), following.get(plain(key))), f"at {plain(key)!r}")


def a_step_leaves_its_input_alone(env: EnvBase) -> None:
    """A step changes neither the observations nor the action that it was given."""
    acted = env.rand_action(env.reset())
    before = acted.clone()
    env.step(acted)
    for key, value in before.items(include_nested=True, leaves_only=True):
        _require(not isinstance(value, torch.Tensor) or torch.equal(value, acted.get(key)), f"{key!r} has changed")


def results_are_not_changed_later(env: EnvBase) -> None:
    """The values that a step returned do not change when the env is stepped again."""
    kept = [(stepped.get("next"), stepped.get("next").clone()) for stepped in _steps(env, 4)]
    for found, wanted in kept:
        _require(_equal(found, wanted), "an observation, reward or flag has changed")


def a_partial_reset_leaves_other_rows_alone(env: EnvBase) -> None:
    """Rows outside the mask `"_reset"` keep their values, and the mask is not changed."""
    if env.batch_size.numel() < 2 or not env.resets_rows:
        return
    stepped = _last(env, 2)
    current = step_mdp(stepped, reward_keys=env.reward_keys, action_keys=env.action_keys)
    before = current.clone()
    mask = torch.zeros(*env.batch_size, 1, dtype=torch.bool)
    mask.view(-1)[0] = True
    given = mask.clone()
    after_reset = env.reset(current.set("_reset", given))
    _require(torch.equal(mask, given), "the mask was changed")
    for key in (plain(key) for key, spec in env.observation_spec.leaves() if spec.dtype is not None):
        lead = len(env.batch_size)
        found, wanted = after_reset.get(key).flatten(0, lead - 1)[1:], before.get(key).flatten(0, lead - 1)[1:]
        _require(_same(found, wanted), f"{key!r} changed in rows that should not be reset")


def both_faces_agree_on_shapes(env: EnvBase) -> None:
    """The array interface writes the values that the TensorDict interface returns: finite sizes, all rows."""
    batch, make_block = tuple(env.batch_size), env.make_block
    stage, slot = Stage(env.fields_of_stage(), batch, make_block), Slot(env.slot_fields(), batch, 1, make_block)
    face = env.row_stepper()
    face.bind(stage, slot)
    face.reset_rows(None, -1)
    seen = make_tensordict(nested(stage.tensors), env.batch_size)
    acted = env.rand_action(seen)
    for key in env.fields(env.full_action_spec):
        slot.views(key)[0].copy_(acted.get(plain(key)))
    ended = face.step_rows(None, 0)
    flags = [slot.by_row(after(key)).any() for key in FLAGS]
    _require((ended is None) == (not any(flags[1:])), "the rows that step_rows returns differ from the flags it set")


def rows_that_end_are_those_flagged(env: EnvBase) -> None:
    """In a batch, `done == terminated | truncated`, and an id ends exactly where done is True."""
    batch = _collect(env)
    done, terminated, truncated = (batch.get(after(key)) for key in FLAGS)
    _require(torch.equal(done, terminated | truncated), "done differs")
    ids = batch.get(IDS)
    changes, valid = ids[..., 1:] != ids[..., :-1], ids[..., :-1] != NO_ID
    _require(torch.equal(changes[valid], done[..., :-1, 0][valid]), "an id changes at a place that does not follow a done flag")


def next_is_the_root_of_the_next_frame(env: EnvBase) -> None:
    """Within an episode, the values under `next` are those with which the next frame starts."""
    batch = _collect(env)
    goes_on = ~batch.get(after(DONE))[..., :-1, 0] & (batch.get(IDS)[..., :-1] != NO_ID)
    lead = len(env.batch_size)
    for key, spec in env.observation_spec.leaves():
        following, root = batch.get(("next", *key)), batch.get(plain(key))
        if spec.dtype is None:
            shape = (*env.batch_size, COLUMNS)
            pairs = zip(unstacked(following, shape)[..., :-1][goes_on], unstacked(root, shape)[..., 1:][goes_on], strict=True)
            _require(all(_same(one, other) for one, other in pairs), f"at {plain(key)!r}")
            continue
        following, root = following.narrow(lead, 0, COLUMNS - 1), root.narrow(lead, 1, COLUMNS - 1)
        _require(_same(following[goes_on], root[goes_on]), f"at {plain(key)!r}")


def a_limit_begins_a_new_episode(env: EnvBase) -> None:
    """With `max_frames_per_traj=3`, a reset follows every third frame of an episode, in these rows only."""
    if env.resets_itself or not env.resets_rows:
        return
    batch = _collect(env, max_frames_per_traj=3)
    ids: Any = batch.get(IDS).flatten()
    _require(int(ids.unique(return_counts=True)[1].max()) <= 3, "an episode has more than three frames")


def no_gradient_and_no_inference_tensor_is_left(env: EnvBase) -> None:
    """Batches can be trained on: ordinary tensors without a graph."""
    for key, value in _collect(env).items(include_nested=True, leaves_only=True):
        if isinstance(value, torch.Tensor):
            _require(not value.requires_grad and not value.is_inference(), f"at {key!r}")


def the_same_seed_gives_the_same_episodes(env: EnvBase, seed: int = 0) -> None:
    """After `set_seed` with the same seed the env repeats its episodes."""
    found = [_seeded_rewards(env, seed) for _ in range(2)]
    for first, second in zip(*found, strict=True):
        _require(np.array_equal(first, second, equal_nan=True), "observations or rewards differ")


def a_closed_env_says_so(env: EnvBase) -> None:
    """`close` can be called twice; a closed env raises ClosedError."""
    env.close()
    env.close()
    try:
        env.reset()
    except ClosedError:
        return
    raise AssertionError("reset of a closed env did not raise")


FACTS: tuple[Callable[[EnvBase], None], ...] = (
    values_fit_the_specs,
    a_reset_clears_all_flags,
    done_is_terminated_or_truncated,
    results_are_not_changed_later,
    a_step_leaves_its_input_alone,
    a_partial_reset_leaves_other_rows_alone,
    both_faces_agree_on_shapes,
    rows_that_end_are_those_flagged,
    next_is_the_root_of_the_next_frame,
    a_limit_begins_a_new_episode,
    no_gradient_and_no_inference_tensor_is_left,
)
LAST_FACT = a_closed_env_says_so


def _steps(env: EnvBase, count: int = COLUMNS) -> Iterator[TensorDictBase]:
    """Steps with random actions; after an end, all rows are reset."""
    current = env.reset()
    for _ in range(count):
        stepped = env.rand_step(current)
        yield stepped
        ended = any(bool(stepped.get(("next", *key)).any()) for key, _ in env.full_done_spec.leaves())
        current = env.reset() if ended else step_mdp(stepped, reward_keys=env.reward_keys, action_keys=env.action_keys)


def _last(env: EnvBase, count: int) -> TensorDictBase:
    *_, last = _steps(env, count)
    return last


def _collect(env: EnvBase, **options: Any) -> TensorDictBase:
    rows = env.batch_size.numel()
    collector = SyncDataCollector(env, None, frames_per_batch=COLUMNS * rows, **options)
    try:
        return collector.next()
    finally:
        collector.shutdown(close_env=False)


def _seeded_rewards(env: EnvBase, seed: int) -> list[Any]:
    env.set_seed(seed)
    torch.manual_seed(seed)
    found: list[Any] = []
    for stepped in _steps(env):
        keys = [key for key, spec in (*env.observation_spec.leaves(), *env.full_reward_spec.leaves()) if spec.dtype is not None]
        found.extend(stepped.get(("next", *key)).cpu().numpy() for key in keys)
    return found


def _equal(found: TensorDictBase, wanted: TensorDictBase) -> bool:
    return all(_same(found.get(key), value) for key, value in wanted.items(include_nested=True, leaves_only=True))


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        return (
            torch.equal(found.nan_to_num(), wanted.nan_to_num()) if wanted.is_floating_point() else torch.equal(found, wanted)
        )
    if isinstance(wanted, np.ndarray):
        return np.array_equal(found, wanted, equal_nan=wanted.dtype.kind in "fc")
    if isinstance(wanted, Mapping):
        return found.keys() == wanted.keys() and all(_same(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    return bool(found == wanted)
