"""A folder to run commands in, and a shell that runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from processes import COMMAND, Shell


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that commands are run in."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def shell(home: Path) -> Shell:
    """Run a command to its end and return what it printed."""

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run([COMMAND, *words], cwd=home, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, f"rookery {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + (done.stderr if code else "")

    return run
