"""The worked examples in docs/extending.md, run as a reader would: files in one folder, commands in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from codeblocks import ROOT, Block, blocks, commands

EXTENDING = ROOT / "docs" / "extending.md"
PROGRAM = """
import functools, jax, reinforce, rookery
from rookery.training.compiled.program import Program
program = Program(rookery.config("reinforce", "matrix/climbing", seeds=2))
chunk = functools.partial(program.chunk, iterations=1)
print(jax.jit(chunk).lower(jax.eval_shape(program.init)).as_text())
"""


_PROGRAMS = {"python": [], "rookery": ["-m", "rookery.app.cli"]}


def test_the_examples_run(tmp_path: Path) -> None:
    seen = [_follow(block, tmp_path) for block in blocks(EXTENDING)]
    assert seen.count("console") == 3
    assert seen.count("diff") == 1


def test_the_algorithm_is_short(tmp_path: Path) -> None:
    code = _file(blocks(EXTENDING), "reinforce.py").split("class ReinforceState")[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 80


def test_the_mechanism_is_absent_from_the_program_when_off(tmp_path: Path) -> None:
    """The algorithm that takes up the mechanism compiles to what it was before, at the neutral value."""
    programs = {}
    for block in blocks(EXTENDING):
        if block.language in ("python", "diff"):
            _follow(block, tmp_path)
        if block.language == "diff" or block.text.startswith("# reinforce.py\n"):
            programs[block.language] = _run([sys.executable, "-c", PROGRAM], tmp_path)
    assert programs["python"] == programs["diff"]


def _follow(block: Block, folder: Path) -> str:
    """Do what a reader does with a block: save it, apply it, or run it."""
    if block.language == "python":
        (folder / _name(block)).write_text(block.text)
    elif block.language == "diff":
        path = folder / block.text.splitlines()[0].removeprefix("--- ")
        path.write_text(_patched(path.read_text(), block.text))
    elif block.language == "console":
        for words in commands(block.text):
            assert words[0] in _PROGRAMS, f"a command that this test does not know: {words}"
            _run([sys.executable, *_PROGRAMS[words[0]], *words[1:]], folder)
    return block.language


def _name(block: Block) -> str:
    first = block.text.splitlines()[0]
    assert first.startswith("# ") and first.endswith(".py"), f"a block must begin with its file's name, not {first!r}"
    return first.removeprefix("# ")


def _file(found: list[Block], name: str) -> str:
    return next(block.text for block in found if block.language == "python" and _name(block) == name)


def _run(command: list[str], folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _patched(text: str, diff: str) -> str:
    """`text` with every hunk of a diff applied; hunks are found by what they show, which must stand there once."""
    _, *hunks = diff.split("@@\n")
    for hunk in hunks:
        lines = hunk.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        assert text.count(before) == 1, f"the diff does not apply at:\n{before}"
        text = text.replace(before, after)
    return text
