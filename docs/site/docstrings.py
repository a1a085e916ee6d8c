"""Docstrings as griffe, which reads them for the site, expects them."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)


class Examples(griffe.Extension):
    """Google's style allows `Example:` and `Examples:`; griffe reads code in the second only."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """An object has been read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
