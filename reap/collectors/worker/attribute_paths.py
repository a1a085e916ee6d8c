"""Paths of attributes and items, such as `env.transform[0].module`, as weight sync schemes name models by them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from reap.errors import OptionError


def resolve(root: Any, path: str, get: Callable[[Any, str], Any] = getattr) -> Any:
    """The object at a path.

    Args:
        root: the object at which the path starts.
        path: names after dots, and numbers or strings in brackets.
        get: returns an attribute of an object by its name.

    Raises:
        OptionError: not a path, or nothing is found there.

    Example:
        >>> from types import SimpleNamespace
        >>> resolve(SimpleNamespace(env=SimpleNamespace(parts=[1, 2])), "env.parts[1]")
        2
    """
    try:
        return _found(root, ast.parse(path, mode="eval").body, get)
    except SyntaxError as error:
        raise OptionError(f"{path!r}: expected a path of attributes and items, such as 'env.transform[0]'") from error
    except (AttributeError, LookupError) as error:
        raise OptionError(f"{path!r}: found nothing there: {error}") from error


def _found(root: Any, node: ast.expr, get: Callable[[Any, str], Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return get(root, name)
        case ast.Attribute(value=inner, attr=name):
            return get(_found(root, inner, get), name)
        case ast.Subscript(value=inner, slice=ast.Constant(value=item)):
            return _found(root, inner, get)[item]
        case _:
            raise SyntaxError(ast.unparse(node))
