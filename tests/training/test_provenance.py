"""Provenance: complete, appended, and never a reason to fail."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import jax
import pytest

from rookery.training import provenance
from rookery.training.provenance import collect, record


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A committed checkout with a package in it."""
    package = tmp_path.resolve() / "checkout" / "rookery"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-qm", "first")
    return package


def test_what_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--xla_force_host_platform_device_count=1"  # a real one: XLA aborts the process over others
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setenv("JAX_SOMETHING", "2")
    monkeypatch.setenv("NPROC", "3")
    monkeypatch.setenv("RAY_SOMETHING", "4")
    entry = collect()
    assert json.loads(json.dumps(entry)) == entry
    assert set(entry["packages"]) >= {"jax", "jaxlib", "equinox", "optax", "jaxmarl", "rookery", "numpy", "polars"}
    assert entry["packages"]["jax"] == jax.__version__
    assert entry["environment"]["XLA_FLAGS"] == flags and entry["environment"]["JAX_SOMETHING"] == "2"
    assert entry["environment"]["NPROC"] == "3", "how many threads XLA computes with"
    assert "RAY_SOMETHING" not in entry["environment"] and "PATH" not in entry["environment"]
    assert entry["platform"] == jax.default_backend()
    assert 1 <= entry["cores"] <= entry["cpus"] and entry["host"] and entry["python"].startswith("3.")
    assert entry["settings"]["jax_enable_x64"] in (True, False)


def test_each_start_adds_an_entry(tmp_path: Path) -> None:
    for starts in (1, 2, 3):
        record(tmp_path, {"devices": ["cpu:0 cpu"]})
        assert len(json.loads((tmp_path / "provenance.json").read_text())) == starts


@pytest.mark.parametrize("content", ["", '[{"a"', '{"a": 1}'])
def test_a_corrupted_record_is_kept_and_does_not_stop_a_run(tmp_path: Path, content: str) -> None:
    (tmp_path / "provenance.json").write_text(content)
    record(tmp_path, {"devices": ["cpu:0 cpu"]})
    assert len(json.loads((tmp_path / "provenance.json").read_text())) == 1
    assert (tmp_path / "provenance.json.corrupt").read_text() == content


def test_commit_and_dirty_flag(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", os.devnull)  # as inside a hook: it must not decide which checkout is asked
    commit = subprocess.run(
        ["git", f"--git-dir={checkout.parent / '.git'}", "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    assert provenance._source(checkout) == {"commit": commit, "dirty": False}
    (checkout.parent / "notes.txt").write_text("not the package")
    assert provenance._source(checkout) == {"commit": commit, "dirty": False}
    (checkout / "a.py").write_text("a = 2\n")
    assert provenance._source(checkout) == {"commit": commit, "dirty": True}


def test_a_package_installed_inside_another_checkout_has_no_commit(checkout: Path, tmp_path: Path) -> None:
    installed = checkout.parent / "venv" / "site-packages" / "rookery"
    installed.mkdir(parents=True)
    assert provenance._source(installed) is None
    (tmp_path / "plain" / "rookery").mkdir(parents=True)
    assert provenance._source(tmp_path / "plain" / "rookery") is None


def test_a_machine_without_git_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert collect()["source"] is None
