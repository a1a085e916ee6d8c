"""`shows_options`: gives a collector class the signature, the documentation and the attributes of its options.

Options are written once, as the fields of `CollectorOptions` and `WorkerOptions`. The classes take them as `**options`; this
module derives from the fields what `inspect.signature`, `help` and completion show.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

GIVEN_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of parameters that the options replace: keywords, and positional arguments of the first generation."""


class OptionValue:
    """An option as a read-only attribute of its collector.

    Args:
        name: the option.
        holder: the collector's attribute that holds it.
    """

    def __init__(self, name: str, holder: str) -> None:
        self._name, self._holder = name, holder
        self.__doc__ = f"The option `{name}`."

    def __get__(self, collector: Any, kind: Any = None) -> Any:
        return self if collector is None else getattr(getattr(collector, self._holder), self._name)

    def __set__(self, collector: Any, value: Any) -> None:
        raise AttributeError(f"{self._name}: an option of a {type(collector).__name__} is chosen when it is built")


def shows_options(**holders: type) -> Callable[[C], C]:
    """A class decorator.

    Args:
        holders: option classes by the name of the collector's attribute that holds them.
    """

    def show(cls: C) -> C:
        own = [option for options in holders.values() for option in fields(options)]
        takes: Any = cls.__new__ if "__new__" in vars(cls) else cls.__init__
        leading = [one for one in inspect.signature(takes).parameters.values() if one.kind not in GIVEN_ON]
        takes.__signature__ = inspect.Signature([*leading, *map(_parameter, own)], return_annotation=None)
        cls.__doc__ = "\n\n".join([inspect.cleandoc(cls.__doc__ or ""), *map(_documentation, holders.values())])
        for holder, options in holders.items():
            for option in fields(options):
                if not hasattr(cls, option.name):
                    setattr(cls, option.name, OptionValue(option.name, holder))
        return cls

    return show


def _parameter(option: Field[Any]) -> inspect.Parameter:
    default = inspect.Parameter.empty if option.default is MISSING else option.default
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option.type)


def _documentation(options: type) -> str:
    """The options' part of a docstring."""
    _, _, texts = inspect.cleandoc(options.__doc__ or "").partition("Attributes:\n")
    return f"Options (`{options.__name__}`):\n{texts.rstrip()}"
