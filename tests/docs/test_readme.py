"""README.md says only what works: commands parse, targets and links exist, tables name what is registered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from codeblocks import ROOT, blocks, commands

from rookery.app import cli, options
from rookery.core.registry import PRESETS, TASKS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
COMMANDS = [(page, c) for page in PAGES for b in blocks(page) if b.language == "console" for c in commands(b.text)]


def _named(name: str) -> list[Any]:
    """Command lines that begin with `name`, without it, as parameters of a test."""
    # What needs a file of the page itself is run, with it, by test_extending.
    plain = [(page, words) for page, words in COMMANDS if "--import" not in words]
    lines = [(page.name, words[1:]) for page, words in plain if Path(words[0]).name == name]
    return [pytest.param(words, id=f"{page}: {' '.join(words)}") for page, words in lines]


@pytest.mark.parametrize("words", _named("rookery"))
def test_command_parses(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] == "train":
        assert _code([*words, "--dry-run"]) == 0, capsys.readouterr().err
        return
    assert words[0] in cli.COMMANDS
    parsed: list[Any] = []
    real = cli.tyro.extras.subcommand_cli_from_dict

    def parse_only(*args: Any, **kwargs: Any) -> Any:
        parsed.append(real(*args, **kwargs))
        return lambda: 0

    monkeypatch.setattr(cli.tyro.extras, "subcommand_cli_from_dict", parse_only)
    assert _code(words) == 0, capsys.readouterr().err
    assert parsed or "--help" in words


def _code(words: list[str]) -> int | str | None:
    """The exit code of a command line; tyro exits by itself where it cannot parse."""
    try:
        return cli.main(words)
    except SystemExit as stop:
        return stop.code or 0


@pytest.mark.parametrize("words", _named("make"))
def test_target_exists(words: list[str]) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [word for word in words if "=" not in word and word not in targets] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT[page])
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_presets_in_the_table_exist() -> None:
    options.load_registries()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", TEXT[ROOT / "README.md"], re.MULTILINE)
    assert rows
    assert [row for row in rows if row[0] not in PRESETS or PRESETS[row[0]].family != row[1]] == []


def test_every_family_of_tasks_is_named() -> None:
    options.load_registries()
    kinds = {name.partition("/")[0] for name in TASKS if "/" in name}
    assert {kind for kind in kinds if f"`{kind}/`" not in TEXT[ROOT / "README.md"]} == set()


def test_python_runs(tmp_path: Path) -> None:
    """All Python of the page as one script, with a small task and a few hundred steps, to be done soon."""
    code = "\n".join(block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    short, cuts = re.subn(r"\bsteps=[\d_]+", "steps=400", code)
    assert cuts or "rookery.train(" not in code, "give a budget: steps=..."
    short = re.sub(r'"(mpe|smax)/\w+"', '"matrix/climbing"', short)
    script = tmp_path / "readme.py"
    script.write_text(short)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
