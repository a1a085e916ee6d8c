"""`PlainActor`: a module or function that is called with tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, as_key, plain
from reap.policy.base import Outputs, OutputWriter, StrictWriter
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class PlainActor:
    """Calls a policy with tensors of the stage; its output is the action, or a dict of outputs.

    Args:
        policy: the module or function.
        stage: its inputs.
        reads: the keys of its arguments, in order.
        action: the key of an output that is not a dict.
    """

    kind = "plain"
    enables_grad = False

    def __init__(self, policy: Callable[..., Any], stage: Stage, reads: Sequence[Key], action: Key) -> None:
        self.outputs: Mapping[Key, Field] = {}
        self.reads: Sequence[Key] = tuple(reads)
        self._policy = policy
        self._inputs = [stage.tensors[key] for key in reads]
        self._action = action
        self._views: Sequence[torch.Tensor] = ()
        self.writer = OutputWriter({})
        self._returns_tensor = False
        self.act: Callable[[int], None] = self._act_outputs

    def probe(self) -> Outputs:
        """Call the policy once; an output that is a single tensor selects a faster path from then on."""
        result = self._policy(*self._inputs)
        self._returns_tensor = isinstance(result, torch.Tensor)
        if isinstance(result, Mapping):
            _check_names(result, name_of(self._policy))
        return as_outputs(result, self._action)

    def fix_outputs(self, writer: OutputWriter) -> None:
        """Set the writer of the outputs that the probe found."""
        self.outputs, self.writer = writer.outputs, writer
        if self._returns_tensor:
            self.act = self._act_tensor if isinstance(writer, StrictWriter) else self._assign_tensor
        if isinstance(writer, StrictWriter):
            self._shape, self._dtype = writer.forms[0]
            self._uncopied = writer.uncopied

    def read_copies(self) -> None:
        """Pass clones of the inputs to the policy."""
        policy = self._policy
        self._policy = lambda *inputs: policy(*[value.clone() for value in inputs])

    def bind(self, slot: Slot) -> None:
        """Bind the slot that later calls write to."""
        self.writer.bind(slot)
        self._views = self.writer.views[0]

    def _act_tensor(self, t: int) -> None:
        result = self._policy(*self._inputs)
        # The check and the copy of `StrictWriter.write`, repeated: to call it would cost a dict and a call for each column.
        if type(result) is torch.Tensor and result.dtype is self._dtype and result.shape == self._shape:
            try:
                self._views[t].copy_(result)
            except RuntimeError as error:
                raise self._uncopied(result, 0, t, error) from None
        else:
            self.writer.write(t, as_outputs(result, self._action))

    def _assign_tensor(self, t: int) -> None:
        self._views[t].copy_(self._policy(*self._inputs))

    def _act_outputs(self, t: int) -> None:
        self.writer.write(t, as_outputs(self._policy(*self._inputs), self._action))


def as_outputs(result: Any, action: Key) -> Outputs:
    """The outputs of a policy by key: the action under its key, or a dict of outputs.

    Of several tensors the first is the action, and the others are `"output1"`, `"output2"`, and so on.
    """
    if isinstance(result, Mapping):
        return _flat(result)
    if isinstance(result, tuple) and result and all(isinstance(part, torch.Tensor) for part in result):
        return {action: result[0], **{(f"output{place}",): part for place, part in enumerate(result[1:], start=1)}}
    return {action: result}


def _check_names(tree: Mapping[Any, Any], policy: str) -> None:
    for name, value in tree.items():
        names = name if isinstance(name, tuple) and name else (name,)
        if not all(isinstance(part, str) for part in names):
            raise SpecMismatch(
                f"policy {policy}: expected names of outputs, strings or tuples of strings such as ('next', 'hidden'), "
                f"found the key {name!r}"
            )
        if isinstance(value, Mapping):
            _check_names(value, policy)


def _flat(tree: Mapping[Any, Any], prefix: Key = ()) -> dict[Key, Any]:
    found: dict[Key, Any] = {}
    for name, value in tree.items():
        key = (*prefix, *as_key(name))
        found.update(_flat(value, key) if isinstance(value, Mapping) else {key: value})
    return found


def match_arguments(policy: Callable[..., Any], known: Sequence[Key], states: Collection[Key] = ()) -> list[Key]:
    """The keys of a policy's arguments: by name, else the only observation.

    Args:
        policy: the module or function.
        known: keys of the stage that may be arguments, the observations first.
        states: those of them that are not observations; they are matched by name only.

    Raises:
        OptionError: an argument has an unknown name, and there is not exactly one observation for one argument.
    """
    names = {**{key[-1]: key for key in known}, **{"_".join(key): key for key in known}}
    parameters = _parameters(policy)
    required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    observations = [key for key in known if key not in states]
    if required and len(observations) == 1 < len(known):
        names.setdefault(required[0], observations[0])
    if required and all(name in names for name in required):
        taken = list(takewhile(lambda p: p.name in names, parameters))
        late = [p.name for p in parameters[len(taken) :] if p.name in names]
        if not late:
            return [names[p.name] for p in taken]
        raise OptionError(
            f"policy {name_of(policy)}: expected arguments that are observations to come first, found {late} after "
            f"{parameters[len(taken)].name!r}, which is none"
        )
    if len(required) <= 1 and len(known) == 1 and _takes_positional(policy):
        return list(known)
    shown = [plain(key) for key in known]
    raise OptionError(
        f"policy {name_of(policy)}: expected arguments named after the env's observations {shown}, found {required}; rename "
        "the arguments, or wrap it: TensorDictModule(policy, in_keys=[...], out_keys=['action'])"
        f"{_state_hint(required, names, observations)}"
    )


def _state_hint(required: Sequence[str], names: Mapping[str, Key], observations: Sequence[Key]) -> str:
    """A remedy if there are more arguments than observations: the others may be recurrent states."""
    unknown = [name for name in required if name not in names]
    if not unknown or set(observations) - {names.get(name) for name in required}:
        return ""
    return f"; if {unknown} is a recurrent state, tell it: policy.initial_state = {{{unknown[0]!r}: torch.zeros(hidden_size)}}"


def argument_keys(policy: Callable[..., Any]) -> list[Key]:
    """The names of a policy's arguments, as keys."""
    return [(p.name,) for p in _parameters(policy)]


def optional_arguments(policy: Callable[..., Any], known: Sequence[Key]) -> list[Key]:
    """Arguments with a default whose names are not keys of the stage: they may be recurrent states."""
    names = {key[-1] for key in known} | {"_".join(key) for key in known}
    given = [p for p in _parameters(policy) if p.default is not inspect.Parameter.empty]
    return [(p.name,) for p in given if p.name not in names]


def _parameters(policy: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in _signature(policy) or () if p.kind in POSITIONAL]


def _takes_positional(policy: Callable[..., Any]) -> bool:
    parameters = _signature(policy)
    needs_names = inspect.Parameter.KEYWORD_ONLY
    if parameters is None:
        return True
    if any(p.kind is needs_names and p.default is inspect.Parameter.empty for p in parameters):
        return False
    return any(p.kind in POSITIONAL or p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


def _signature(policy: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a callable; None if Python does not know them."""
    function = policy.forward if isinstance(policy, nn.Module) else policy
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def name_of(policy: Callable[..., Any]) -> str:
    """The name of a policy in errors: its own, or that of its class."""
    return getattr(policy, "__qualname__", type(policy).__name__)
