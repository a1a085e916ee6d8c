"""The parts of a policy, one step at a time: variables of functions, attributes of objects, items of containers.

A `Step` leads from a value to one of its parts, here and in a copy of the value in another process. A part whose place has no
name (such as an item of a set) has no step.
"""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn

from reap.workers.pickling import global_names
from reap.workers.visited import ATOMS, Visited

OPAQUE = (type, str, bytes)
CONTAINERS = (tuple, list, dict, OrderedDict, set)
IMMUTABLE_TYPE = 1 << 8
"""The flag of types that C code defines (`Py_TPFLAGS_IMMUTABLETYPE`)."""
HIDDEN = "hidden member"
"""The kind of step to an attribute that only `super()` finds: a copy of the object cannot have its own."""
REGISTERED = frozenset(("training", "_parameters", "_buffers", "_modules"))
"""Attributes of a module that torch manages."""


class Step(NamedTuple):
    """The step from a value to one of its parts.

    Attributes:
        kind: a key of `TAKE`.
        key: the part among those of this kind.
        label: its component of the name; empty for the object of a bound method.
    """

    kind: str
    key: Any
    label: str


def parts_of(value: Any, visited: Visited) -> Iterator[tuple[Step, Any]]:
    """The parts of a value that have a named place; for modules, attributes that torch does not manage.

    Args:
        value: anything.
        visited: the objects that the pickler visited: functions and classes that travel by name have no parts.
    """
    if isinstance(value, FunctionType):
        if id(value) in visited.by_value:
            yield from _of_function(value)
    elif isinstance(value, MethodType):
        yield Step("attribute", "__self__", ""), value.__self__
        yield Step("attribute", "__func__", "__func__"), value.__func__
    elif isinstance(value, (staticmethod, classmethod, property)):
        names = FIXED[next(kind for kind in FIXED if isinstance(value, kind))]
        yield from ((Step("attribute", name, name), getattr(value, name)) for name in names)
    elif isinstance(value, partial):
        yield Step("attribute", "func", "func"), value.func
        yield from ((Step("argument", i, f"args.{i}"), part) for i, part in enumerate(value.args))
        yield from ((Step("keyword", name, f"keywords.{name}"), part) for name, part in value.keywords.items())
    elif isinstance(value, list | tuple | deque):
        items: Any = value
        yield from ((Step("item", i, str(i)), part) for i, part in enumerate(items) if not is_inert(part))
    elif isinstance(value, TensorDictBase):
        yield from ((Step("item", name, name), value.get(name)) for name in value.keys())
    elif isinstance(value, Mapping) and not is_plain_object(value):  # such an object keeps its items in an attribute
        pairs: Any = value.items()
        named = ((key, part) for key, part in pairs if type(key) in (str, int))
        yield from ((Step("item", key, str(key)), part) for key, part in named if not is_inert(part))
    if not isinstance(value, (FunctionType, TensorDictBase, *FIXED, *OPAQUE)):
        yield from _of_object(value, visited)


def _of_function(function: FunctionType) -> Iterator[tuple[Step, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():
            yield Step("variable", name, name), cell.cell_contents
    names = dict.fromkeys(global_names(function.__code__))
    yield from ((Step("global", name, name), function.__globals__[name]) for name in names if name in function.__globals__)
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    first = len(arguments) - len(defaults)
    yield from ((Step("default", i, arguments[first + i]), part) for i, part in enumerate(defaults))
    yield from ((Step("keyword default", name, name), part) for name, part in (function.__kwdefaults__ or {}).items())
    yield from ((Step("entry", name, name), part) for name, part in vars(function).items())


def _of_object(value: Any, visited: Visited) -> Iterator[tuple[Step, Any]]:
    own = attributes_of(value)
    hidden = REGISTERED if isinstance(value, nn.Module) else ()
    shown = ((name, part) for name, part in own.items() if name not in hidden)
    yield from ((Step("entry", name, str(name)), part) for name, part in shown if not is_inert(part))
    taken = set(own)
    for kind in type(value).__mro__:
        yield from ((Step("attribute", name, name), getattr(value, name)) for name in _slots(kind) if hasattr(value, name))
        if id(kind) in visited.by_value:
            yield from _of_class(kind, taken)
        taken.update(vars(kind))


def _of_class(kind: type, taken: set[str]) -> Iterator[tuple[Step, Any]]:
    """Attributes from one of the object's classes; for `super()` only, if another class or the object has the same name."""
    for name, part in vars(kind).items():
        if name not in taken:
            yield Step("member", name, f"__class__.{name}"), part
        elif name not in ("__dict__", "__weakref__", "__doc__", "__module__"):
            yield Step(HIDDEN, (kind.__name__, name), f"__class__.{kind.__name__}.{name}"), part


def _slots(kind: type) -> list[str]:
    slots: Any = kind.__dict__.get("__slots__", ())
    return [name for name in ((slots,) if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")]


def is_inert(value: Any) -> bool:
    """Whether a value obviously leads to no weights, like most of the data that a policy keeps, such as a million frames."""
    kind = type(value)
    if kind in CONTAINERS:
        return all(map(_is_data, value.values() if isinstance(value, dict) else value))
    return _is_data(value)


def _is_data(value: Any) -> bool:
    kind = type(value)
    if kind is torch.Tensor:
        return not value.requires_grad
    return kind in ATOMS or (kind is np.ndarray and not value.dtype.hasobject)


def is_plain_object(value: Any) -> bool:
    """Whether a value is an object of a Python class that consists of its attributes only."""
    kind = type(value)
    return kind.__new__ is object.__new__ and not isinstance(value, (nn.Module, type)) and not kind.__flags__ & IMMUTABLE_TYPE


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, by name, as they are kept."""
    return getattr(value, "__dict__", {})


def attributes_and_slots(value: Any) -> dict[str, Any]:
    """The attributes of an object, by name, those in its `__slots__` among them."""
    kinds = type(value).__mro__
    slots = {name: getattr(value, name) for kind in kinds for name in _slots(kind) if hasattr(value, name)}
    return {**slots, **attributes_of(value)}


def _member(value: Any, name: str) -> Any:
    return next(vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind))


def _hidden_member(value: Any, key: tuple[str, str]) -> Any:
    return next(
        vars(kind)[key[1]] for kind in type(value).__mro__[1:] if (kind.__name__, key[1]) == key and key[1] in vars(kind)
    )


def _variable(function: Any, name: str) -> Any:
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def _submodule(module: Any, name: str) -> Any:
    return module.get_submodule(name)


TAKE: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": getattr,
    "argument": lambda value, i: value.args[i],
    "keyword": lambda value, name: value.keywords[name],
    "item": lambda value, key: value[key],
    "variable": _variable,
    "global": lambda value, name: value.__globals__[name],
    "default": lambda value, i: value.__defaults__[i],
    "keyword default": lambda value, name: value.__kwdefaults__[name],
    "entry": lambda value, name: attributes_of(value)[name],
    "member": _member,
    HIDDEN: _hidden_member,
    "submodule": _submodule,
}
"""The functions that take each kind of step."""


def follow(value: Any, steps: tuple[Step, ...]) -> Any:
    """The part to which these steps lead.

    Raises:
        AttributeError, LookupError, TypeError, ValueError, StopIteration: the value has no such part.
    """
    for kind, key, _ in steps:
        value = TAKE[kind](value, key)
    return value


def is_fixed(value: Any) -> bool:
    """Whether the parts of a value are fixed when it is made."""
    return isinstance(value, (MethodType, partial, tuple, staticmethod, classmethod, property))


def fixed_with(value: Any, changed: Mapping[Step, Any]) -> Any:
    """A value like this one, with other parts in these places."""
    part = {(step.kind, step.key): new for step, new in changed.items()}
    if isinstance(value, tuple):
        items: Any = value
        return tuple.__new__(type(value), [part.get(("item", i), one) for i, one in enumerate(items)])
    if isinstance(value, partial):
        arguments = [part.get(("argument", i), one) for i, one in enumerate(value.args)]
        keywords = {name: part.get(("keyword", name), one) for name, one in value.keywords.items()}
        new = type(value)(part.get(("attribute", "func"), value.func), *arguments, **keywords)
        vars(new).update({**vars(value), **{key: one for (kind, key), one in part.items() if kind == "entry"}})
        return new
    names = FIXED[next(kind for kind in FIXED if isinstance(value, kind))]
    return type(value)(*(part.get(("attribute", name), getattr(value, name)) for name in names))


FIXED: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel", "__doc__"),
}
"""The parts of these, in order."""


def twin(value: Any, steps: Iterable[Step]) -> Any:
    """A copy of a value that shares its parts, but has separate places for the parts to which these steps lead."""
    if not isinstance(value, FunctionType):
        return _shallow(value)
    own = {step.key for step in steps if step.kind == "variable"}
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    closure = tuple(CellType() if name in own else cell for name, cell in cells)
    has_globals = any(step.kind == "global" for step in steps)
    variables = dict(value.__globals__) if has_globals else value.__globals__
    # A separate code object: one compiled by torch.compile refers to the globals of the first function.
    new = FunctionType(value.__code__.replace(), variables, value.__name__, value.__defaults__, closure)
    new.__kwdefaults__ = dict(value.__kwdefaults__ or {})
    new.__qualname__, new.__module__, new.__annotations__ = value.__qualname__, value.__module__, value.__annotations__
    vars(new).update(vars(value))
    return new


def _shallow(value: Any) -> Any:
    """A copy with the same attributes, also those that the object does not pickle."""
    if isinstance(value, TensorDictBase):
        return value.copy()
    if not is_plain_object(value):
        return copy.copy(value)
    new = object.__new__(type(value))
    for kind in type(value).__mro__:
        for name in _slots(kind):
            if hasattr(value, name):
                object.__setattr__(new, name, getattr(value, name))
    attributes_of(new).update(attributes_of(value))
    return new


def put(value: Any, step: Step, part: Any) -> None:
    """Put another part into this place of a copy."""
    PUT[step.kind](value, step.key, part)


def _put_variable(function: Any, name: str, part: Any) -> None:
    function.__closure__[function.__code__.co_freevars.index(name)].cell_contents = part


def _put_default(function: Any, i: int, part: Any) -> None:
    function.__defaults__ = (*function.__defaults__[:i], part, *function.__defaults__[i + 1 :])


def _put_member(value: Any, name: str, part: Any) -> None:
    kind: Any = type(value)
    object.__setattr__(value, "__class__", type(kind)(kind.__name__, (kind,), {name: part, "__module__": kind.__module__}))


PUT: dict[str, Callable[[Any, Any, Any], None]] = {
    "attribute": object.__setattr__,
    "item": operator.setitem,
    "variable": _put_variable,
    "global": lambda value, name, part: operator.setitem(value.__globals__, name, part),
    "default": _put_default,
    "keyword default": lambda value, name, part: operator.setitem(value.__kwdefaults__, name, part),
    "entry": lambda value, name, part: operator.setitem(attributes_of(value), name, part),
    "member": _put_member,
}
"""The functions that replace a part, by kind of step."""
