"""Where a gymnasium env is before a reset: the generators that it and its wrappers hold, and its own state where it tells.

    the env offers                              its state is
    state_dict, load_state_dict                 state_dict()
    getstate, setstate                          getstate()
    clone_state, restore_state (ALE's)          clone_state(include_rng=True), which has the generator of sticky actions

Beside that each attribute of the env and of its wrappers counts that is a generator of numpy, Python or torch; gymnasium's
`np_random` is one of them. Generators of the whole process are not theirs, and what they draw cannot be repeated.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from reap.envs.gymnasium.calls import Env, GymCalls
from reap.errors import SpecMismatch
from reap.recording.records import Note, ResetLog

OWN = (("state_dict", "load_state_dict"), ("getstate", "setstate"))
"""Methods of an env that give its state, and that take it."""

ALES = ("clone_state", "restore_state")

Read = Callable[[], Any]


class NotedResets:
    """Notes resets of an env in a log: those that are due, and those that have a seed. All others are the env's own calls.

    Args:
        calls: the env's calls.
        log: collects notes.
        row: the env's row in the log.
    """

    def __init__(self, calls: GymCalls, log: ResetLog, row: int) -> None:
        self._calls, self._log, self._row = calls, log, row
        self._reads: dict[str, Read] | None = None

    def note_next(self) -> None:
        """Have the env's next reset noted."""
        self._calls.reset_by(self._reset)

    def _reset(self, *, seed: int | None = None) -> Any:
        self._note(seed)
        if seed is None:
            return self._calls.env.reset()
        self._reads = None  # a seed may give the env generators that it did not have before
        return self._calls.env.reset(seed=seed)

    def _note(self, seed: int | None) -> None:
        if self._reads is None:
            self._reads = _reads(self._calls.env)
        began = perf_counter()
        note = Note(seed, {name: read() for name, read in self._reads.items()})
        self._log.add(self._row, note, perf_counter() - began)


def keep_notes(calls: GymCalls, log: ResetLog, row: int) -> None:
    """Have resets of an env noted in a log from now on; see `NotedResets`."""
    log.add_row(NotedResets(calls, log, row).note_next)


def return_to(calls: GymCalls, note: Note) -> None:
    """Bring an env to where another of its kind was before a reset; its next reset is that one.

    Raises:
        SpecMismatch: it holds no such generators, or cannot take the state.
    """
    env, rest = calls.env, dict(note.state)
    layers = _layers(env)
    if "own" in rest:
        _load_own(env.unwrapped, rest.pop("own"))
    for name, state in rest.items():
        depth, _, attribute = name.partition(".")
        if int(depth) >= len(layers):
            raise SpecMismatch(f"episode: it was recorded in an env with {depth} wrappers or more, found {env}")
        _load(layers[int(depth)], attribute, state)
    calls.seed(note.seed)


def _layers(env: Env) -> list[Any]:
    """What the wrappers wrap, then the wrappers, outermost last: one more around an env changes no other's number."""
    layers = [env]
    while isinstance(env, gym.Wrapper):
        env = env.env
        layers.append(env)
    return layers[::-1]


def _reads(env: Env) -> dict[str, Read]:
    """Functions that read the state of each generator, and of the env itself, by name."""
    own = env.unwrapped
    found = dict(_own_read(own))
    _ = own.np_random  # made when it is first asked for
    seen: set[int] = set()
    for depth, layer in enumerate(_layers(env)):
        for attribute in _generators(layer):
            value = getattr(layer, attribute)
            if id(value) not in seen:
                seen.add(id(value))
                found[f"{depth}.{attribute}"] = partial(_read, layer, attribute, _reader(type(value)))
    return found


def _generators(layer: Any) -> list[str]:
    """The attributes of an object that are generators.

    Its `__dict__` is looked into only where it must be: once that was asked for, Python 3.11 and 3.12 keep the attributes in a
    dict of their own and read them more slowly, by 3 % of the steps of a CartPole.
    """
    own = getattr(layer, "_np_random", None) if layer is layer.unwrapped else None
    held = gc.get_referents(layer)
    parts = [*held, *(value for one in held if type(one) is dict for value in one.values())]
    if all(value is own for value in parts if isinstance(value, GENERATORS)):
        return ["_np_random"] if isinstance(own, GENERATORS) else []
    return [attribute for attribute, value in vars(layer).items() if isinstance(value, GENERATORS)]


def _copied(state: Read) -> Any:
    return deepcopy(state())


def _has(own: Any, *names: str) -> bool:
    return all(callable(getattr(own, name, None)) for name in names)


def _own_read(own: Any) -> Iterator[tuple[str, Read]]:
    for give, take in OWN:
        if _has(own, give, take):
            yield "own", partial(_copied, getattr(own, give))
            return
    if _has(own, *ALES):
        yield "own", lambda: own.clone_state(include_rng=True).serialize()


def _load_own(own: Any, state: Any) -> None:
    for give, take in OWN:
        if _has(own, give, take):
            getattr(own, take)(deepcopy(state))
            return
    if not _has(own, *ALES):
        raise SpecMismatch(f"episode: it was recorded in an env that tells its state, and {own} takes none: another env")
    own.restore_state(type(own.clone_state())(state))


def _of_generator(generator: np.random.Generator) -> Mapping[str, Any]:
    return generator.bit_generator.state


def _of_random_state(generator: np.random.RandomState) -> Any:
    return generator.get_state(legacy=False)


READ: Mapping[type, Callable[[Any], Any]] = {
    np.random.Generator: _of_generator,
    np.random.RandomState: _of_random_state,
    random.Random: random.Random.getstate,
    torch.Generator: torch.Generator.get_state,
}
GENERATORS = tuple(READ)


def _reader(kind: type) -> Callable[[Any], Any]:
    return next(read for known, read in READ.items() if issubclass(kind, known))


def _read(layer: Any, attribute: str, read: Callable[[Any], Any]) -> Any:
    """The present state of a generator; the env may have replaced it by another of its kind."""
    return read(getattr(layer, attribute))


def _load(layer: Any, name: str, state: Any) -> None:
    """Set the generator of this name to a state; one that is not there yet is made."""
    held = getattr(layer, name, None)
    if isinstance(state, Mapping) and "has_gauss" in state:
        generator = held if isinstance(held, np.random.RandomState) else np.random.RandomState()
        generator.set_state(dict(state))
        setattr(layer, name, generator)
    elif isinstance(state, Mapping):
        kind = state["bit_generator"]
        bits = getattr(held, "bit_generator", None)
        if bits is None or type(bits).__name__ != kind:
            bits = getattr(np.random, kind)()
            setattr(layer, name, np.random.Generator(bits))
        bits.state = state
    elif isinstance(state, torch.Tensor):
        generator = held if isinstance(held, torch.Generator) else torch.Generator()
        generator.set_state(state)
        setattr(layer, name, generator)
    else:
        generator = held if isinstance(held, random.Random) else random.Random()
        generator.setstate(state)
        setattr(layer, name, generator)
