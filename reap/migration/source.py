"""The text of a program, whose statements are replaced one by one.

Comments inside a replaced statement are moved above it, or after it if it does not begin a line. Those to a tool, such as
`# noqa`, end the first line of what replaces it, because they count for their line. The rest of the file stays unchanged.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass

_WIDTH = 88
"""Maximum width of a line, unless its statement has only one name."""

_TO_TOOLS = ("noqa", "type:", "pyright:", "mypy:", "pylint:", "ruff:", "isort:", "fmt:", "pragma:")
"""How comments begin that linters, type checkers and the like read."""


@dataclass(frozen=True)
class Edit:
    """One statement that changes.

    Attributes:
        line: its first line, counted from 1.
        old: its text.
        new: the text that replaces it.
        start: the first character of the old text in the source.
    """

    line: int
    old: str
    new: str
    start: int


class Source:
    """The text of a program.

    Args:
        text: the program.

    Raises:
        SyntaxError: it is not Python.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = io.StringIO(text, newline="").readlines()
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        tokens = tokenize.generate_tokens(io.StringIO(text, newline="").readline)
        self._comments = [
            (self._starts[token.start[0] - 1] + token.start[1], token.string)
            for token in tokens
            if token.type == tokenize.COMMENT
        ]

    def replacement(self, node: ast.stmt, statements: Iterable[str]) -> Edit:
        """Replace a statement by others.

        Args:
            node: the statement to replace.
            statements: the new ones, one per line where possible.
        """
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._character(node.lineno, node.col_offset)
        end = self._character(node.end_lineno, node.end_col_offset)
        indent = self.text[self._starts[node.lineno - 1] : start]
        inside = [comment for at, comment in self._comments if start < at < end]
        if indent.strip():  # `if x: import y`, or something before a semicolon: the statement cannot begin a line
            new = "; ".join(statements)
            rest = self.text[end : self._starts[node.end_lineno]].strip()
            if not rest or rest.startswith("#"):
                new = "  ".join([new, *inside])
        else:
            ending = "\r\n" if self._lines[node.lineno - 1].endswith("\r\n") else "\n"
            to_tools = [comment for comment in inside if comment.lstrip("# ").startswith(_TO_TOOLS)]
            lines = [comment for comment in inside if comment not in to_tools]
            for statement in statements:
                first, *rest = _wrapped(statement, len(indent))
                lines += ["  ".join([first, *dict.fromkeys(to_tools)]), *rest]
            new = f"{ending}{indent}".join(lines)
        return Edit(node.lineno, self.text[start:end], new, start)

    def _character(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column]  # ast counts columns in bytes
        return self._starts[line - 1] + len(before.decode())

    def edited(self, edits: Iterable[Edit]) -> str:
        """The text after these edits, which are in the order of the text."""
        pieces: list[str] = []
        at = 0
        for edit in edits:
            pieces += self.text[at : edit.start], edit.new
            at = edit.start + len(edit.old)
        return "".join([*pieces, self.text[at:]])


def _wrapped(statement: str, indent: int) -> list[str]:
    """A statement in one line, or with each imported name in a line of its own."""
    before, found, names = statement.partition(" import ")
    if not found or indent + len(statement) <= _WIDTH or "," not in names:
        return [statement]
    return [f"{before} import (", *(f"    {name}," for name in names.split(", ")), ")"]
