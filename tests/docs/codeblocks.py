"""Code blocks of a markdown file."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(path: Path) -> list[Block]:
    """All fenced blocks that name a language, in order."""
    return [Block(language, text) for language, text in _BLOCK.findall(path.read_text(encoding="utf-8"))]


def commands(text: str) -> list[list[str]]:
    """The command lines of a console block, as words.

    Where a block marks its commands with "$ ", other lines are output. Continued lines are joined; comments, and what
    a command's output is piped into, are left out.
    """
    lines = text.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    split = [_words(line) for line in lines]
    return [words for words in split if words]


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        words.append(word)
    return words
