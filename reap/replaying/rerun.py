"""`replay`: runs a recorded episode again, compares each step with the record, and renders it.

env --return_to(note)--> reset, the episodes of the lead, reset --> first observation     step 0
                                                                    action k --> result   step k
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import DependencyNotInstalled

from reap.envs.base import EnvBase
from reap.envs.gymnasium.env import GymEnv
from reap.envs.make_env import build_env, is_env
from reap.envs.recipes import maker_of
from reap.errors import OptionError, SpecMismatch, shown
from reap.keys import Key, plain
from reap.recording.buffers import REWARD, TERMINATED, TRUNCATED, Slot, Stage, after
from reap.recording.layout import Array
from reap.recording.records import EpisodeRecord, Recipe, Values, compared
from reap.replaying.generators import GlobalGenerators, left_alone
from reap.replaying.video import Video

RENDER_FPS = 30
"""Default frames per second of a video, if the env does not define them."""


class Departure(NamedTuple):
    """The first difference between an episode and its record.

    Attributes:
        step: 0 for the first observation, k for the results of the k-th action.
        key: the key of the value.
        expected: the value that was recorded, or its checksum.
        found: the value in this run.
        why: the likely cause.
    """

    step: int
    key: Any
    expected: Any
    found: Any
    why: str

    def __str__(self) -> str:
        return f"departs at step {self.step} in {self.key!r}: expected {self.expected}, found {self.found}; {self.why}"


@dataclass(frozen=True)
class Replay:
    """The result of running an episode again.

    Attributes:
        record: the episode.
        steps: number of steps that were run.
        departure: the first difference; None if all steps run are equal to the record, bit for bit.
        video: the file that was written, if any.
    """

    record: EpisodeRecord
    steps: int
    departure: Departure | None = None
    video: Path | None = None

    @property
    def equal(self) -> bool:
        """Whether all steps run are equal to the record."""
        return self.departure is None

    def __str__(self) -> str:
        outcome = "equal to the record, bit for bit" if self.departure is None else str(self.departure)
        return f"episode {self.record.id}: {self.steps} of {self.record.length} steps, {outcome}"


def replay(
    env: Any,
    record: EpisodeRecord,
    *,
    video: str | Path | None = None,
    to_step: int | None = None,
    on_step: Callable[[int, GymEnv], Any] | None = None,
) -> Replay:
    """Run a recorded episode again, and compare it with the record, bit for bit.

    It stops at the first difference. The process-wide generators are left as they were.

    Args:
        env: an env, a factory or a gymnasium id, with the options of the recorded env; None builds it from the record. An env
            passed in is left open; with `to_step`, in the middle of the episode.
        record: from `collector.episodes` or an `EpisodeFolder`.
        video: an `.mp4` file to write, `pip install "reap[video]"`. The env needs `render_mode="rgb_array"`; one
            that is built here from an id gets it.
        to_step: the number of steps to run; all of them if None.
        on_step: called with a step number and the env: 0 after the reset, k after the k-th step.

    Raises:
        OptionError: not a record; not a single gymnasium env; no env is given and the record names none; the env does not
            render to arrays; a step beyond the end; a video that cannot be written.
        ImportError: a video is requested but imageio, PyAV or the env's rendering package is missing.
        SpecMismatch: an env with other actions or observations.

    Example:
        >>> from reap import SyncDataCollector
        >>> collector = SyncDataCollector("CartPole-v1", frames_per_batch=100, record_episodes=True, seed=0)
        >>> batch = collector.next()
        >>> record = next(iter(collector.episodes.values()))
        >>> replay("CartPole-v1", record).equal
        True
    """
    given: Any = record
    if not isinstance(given, EpisodeRecord):
        raise OptionError(
            "record: expected an EpisodeRecord, from collector.episodes[id] or EpisodeFolder(folder)[id], "
            f"got {shown(given):.100}"
        )
    steps = record.length if to_step is None else to_step
    if type(steps) is not int or not 0 <= steps <= record.length:
        raise OptionError(f"to_step: expected a number from 0 to {record.length}, the length of the episode, got {to_step!r}")
    with ExitStack() as stack:
        stack.enter_context(left_alone())
        made = _made(env, record.recipe, renders=video is not None)
        if not is_env(env):
            stack.callback(made.close)
        run = _Run(made, record)
        film = None if video is None else stack.enter_context(_film(made, Path(video)))
        departure, step = None, 0
        for step, departure in run.steps(steps):
            if film is not None:
                film.write(_picture(made))
            if on_step is not None:
                on_step(step, made)
            if departure is not None:
                break
    return Replay(record, step, departure, None if video is None else Path(video))


def _made(env: Any, recipe: Recipe | None, *, renders: bool) -> GymEnv:
    kwargs: dict[str, Any] = {}
    if env is None:
        if recipe is None:
            raise OptionError("replay: the record does not say how its env is built: give the env, or a factory of it")
        env, kwargs = maker_of(recipe)
    if renders and isinstance(env, str):
        kwargs.setdefault("render_mode", "rgb_array")
    made = build_env(env, kwargs)
    if not isinstance(made, GymEnv):
        raise OptionError(f"replay: expected a single gymnasium env, or a factory or the id of one, got {made!r}")
    return made


def _film(env: GymEnv, path: Path) -> Video:
    mode = env.wrapped.render_mode
    if mode != "rgb_array":
        raise OptionError(f"video: expected an env with render_mode='rgb_array', {env!r} has {mode!r}; give one made so")
    return Video(path, env.wrapped.metadata.get("render_fps") or RENDER_FPS)


def _picture(env: GymEnv) -> Any:
    try:
        return env.wrapped.render()
    except DependencyNotInstalled as error:
        raise ImportError(f"video: {env!r} cannot draw itself: {error}") from error


class _Run:
    """Runs an env through an episode again.

    Args:
        env: the env.
        record: the episode.
    """

    def __init__(self, env: GymEnv, record: EpisodeRecord) -> None:
        self._record = record
        size = tuple(env.batch_size)
        self._slot, self._stage = Slot(env.slot_fields(), size, 1), Stage(env.fields_of_stage(), size)
        _require_same(env, self._slot, record)
        env.return_to(record.note)
        env.owner = self
        self._face = env.row_stepper()
        self._face.bind(self._stage, self._slot)
        self._generators = GlobalGenerators()

    def steps(self, count: int) -> Iterator[tuple[int, Departure | None]]:
        """Run the episode; yield the number of each step, and where it departs from the record."""
        record = self._record
        for actions in record.lead:
            self._reset()
            for k in range(len(next(iter(actions.values()), ()))):
                self._step(actions, k)
        self._reset()
        yield 0, self._compared(0, record.first, {key: self._stage.arrays[key] for key in record.first})
        for k in range(count):
            self._step(record.actions, k)
            yield k + 1, self._compared(k + 1, self._expected(k), self._results())

    def _reset(self) -> None:
        self._face.reset_rows(None, -1)

    def _step(self, actions: Values, k: int) -> None:
        for key, values in actions.items():
            self._slot.by_column(key)[0] = values[k]
        self._slot.clear_flags()
        self._face.step_rows(None, 0)

    def _expected(self, k: int) -> dict[Key, Any]:
        record, is_last = self._record, k + 1 == self._record.length
        expected = {key: values[k] for key, values in record.results.items()}
        reward = expected.pop(after(REWARD), None)
        flags = {after(TERMINATED): np.array([is_last and record.terminated])}
        if not (is_last and record.is_limited):  # else it was truncated by the collector, and perhaps by the env too
            flags[after(TRUNCATED)] = np.array([is_last and record.truncated])
        return {**({} if reward is None else {after(REWARD): reward}), **flags, **expected}

    def _results(self) -> Mapping[Key, Array]:
        return {key: self._slot.by_column(key)[0] for key in self._slot.fields}

    def _compared(self, step: int, expected: Mapping[Key, Any], found: Mapping[Key, Array]) -> Departure | None:
        for key, value in expected.items():
            other = compared(np.asarray(found[key])[None], 1)[0]
            if not _is_same(np.asarray(value), np.asarray(other)):
                return Departure(step, plain(key), shown(value), shown(other), self._why(step))
        return None

    def _why(self, step: int) -> str:
        drawn = self._generators.drawn_from()
        if drawn:
            return f"the env draws from process-wide generators, which cannot be repeated: {', '.join(drawn)}"
        if step:
            return "this is a different env, or its steps depend on more than its generators and the actions"
        return "this is a different env, or its reset depends on more than its generators, for example on earlier episodes"


def _is_same(first: Array, second: Array) -> bool:
    if first.dtype == object:
        return len(first.flat) == len(second.flat) and all(map(_are_equal, first.flat, second.flat))
    return first.dtype == second.dtype and first.tobytes() == second.tobytes()


def _are_equal(first: Any, second: Any) -> bool:
    return type(first) is type(second) and bool(np.array_equal(np.asarray(first), np.asarray(second)))


def _require_same(env: EnvBase, slot: Slot, record: EpisodeRecord) -> None:
    """Raise SpecMismatch if the env's values have other keys, shapes or dtypes than the recorded ones."""
    for key, values in (*record.actions.items(), *record.results.items()):
        field = slot.fields.get(key)
        if field is None:
            raise SpecMismatch(f"replay: the episode was recorded with {plain(key)!r}, and {env!r} has none: another env")
        expected = compared(np.zeros((1, *field.shape), slot.by_row(key).dtype), 1)
        if (expected.shape[1:], expected.dtype) != (values.shape[1:], values.dtype):
            raise SpecMismatch(
                f"replay: {plain(key)!r} was recorded as {values.dtype} {values.shape[1:]}, and {env!r} has "
                f"{expected.dtype} {expected.shape[1:]}: build it with the same options"
            )
