"""The commands of the README, in order, for real: only budgets are small and tasks are quick to compile."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from conftest import Shell

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))
from codeblocks import ROOT, blocks, commands

SHORT = ["--evaluation.points", "2", "--evaluation.episodes", "4", "--evaluation.final", "8"]
STUDY = """
tasks = ["matrix/climbing"]
algorithms = ["mappo", "vdn"]
seeds = 2
steps = 2_000
[evaluation]
points = 2
episodes = 4
final = 8
"""


def quick(words: list[str], home: Path) -> list[str]:
    """A command with a small budget; a run's name in it becomes that of a run that is there."""
    words = [re.sub(r"^(mpe|smax)/\w+$", "matrix/climbing", word) for word in words]
    words = ["400" if before == "--steps" else word for before, word in zip(["", *words], words, strict=False)]
    words = [word.replace("__mpe", "__matrix") for word in words]
    if words[0] == "train":
        assert "--steps" in words, f"a training command of the README needs a budget: {words}"
        return [*words, *SHORT]
    named = re.compile(r"runs/(\w+?)__\S+")
    return [
        str(next(iter(sorted((home / "runs").glob(f"{found[1]}__*"))))) if (found := named.match(word)) else word
        for word in words
    ]


def test_the_commands_of_the_readme_work(home: Path, shell: Shell) -> None:
    (home / "studies").mkdir()
    (home / "studies" / "quickstart.toml").write_text(STUDY)
    lines = [words for b in blocks(ROOT / "README.md") if b.language == "console" for words in commands(b.text)]
    ours = [words[1:] for words in lines if words[0] == "rookery"]
    assert {"train", "ls", "show", "eval", "resume", "compare", "study"} <= {words[0] for words in ours}
    for words in ours:
        command = quick(words, home)
        if words[0] == "show" or words[0] == "eval":  # two runs of one beginning may be there by now
            command[1] = sorted(path.name for path in (home / "runs").glob(f"{command[1].split('__')[0]}__*"))[0]
        shell(*command)
