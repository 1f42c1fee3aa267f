"""Parts of metrics and evaluations that are deleted or damaged while a run rests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from small import small_config

import rookery
from rookery.training import checkpoint
from rookery.training.config import Checkpoints, Evaluation, RunConfig
from rookery.training.folder import RunFolder
from rookery.training.progress import Silent


class Stops(Silent):
    """Stops the run after some updates, as a kill would: without a checkpoint of its own."""

    def __init__(self, after: int = 0) -> None:
        self.left = after
        self.texts: list[str] = []

    def update(self, steps: int, total_steps: int, steps_per_second: float, metrics: Mapping[str, float]) -> None:
        self.left -= 1
        if self.left == 0:
            raise ZeroDivisionError

    def message(self, text: str) -> None:
        self.texts.append(text)


def config_of(keep: int) -> RunConfig:
    """Ten chunks, an evaluation after every second; a checkpoint after each."""
    config = small_config("iql", evaluation=Evaluation(points=5, rows=2, episodes=4, final=4), steps=320)
    return replace(config, checkpoints=Checkpoints(keep=keep, seconds=0.0))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run as it is if nothing is lost."""
    return rookery.train(config_of(keep=9), tmp_path_factory.mktemp("whole")).folder


@pytest.fixture(scope="module")
def rests(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, Path], RunFolder]:
    """Makes copies of a run that rests after six chunks, with a number of checkpoints."""
    made: dict[int, RunFolder] = {}

    def copy(keep: int, to: Path) -> RunFolder:
        if keep not in made:
            out = tmp_path_factory.mktemp("rests")
            with pytest.raises(ZeroDivisionError):
                rookery.train(config_of(keep), out, Stops(after=7))
            (path,) = out.iterdir()
            made[keep] = RunFolder(path)
        shutil.copytree(made[keep].path, to / made[keep].name)
        return RunFolder(to / made[keep].name)

    return copy


def bytes_of(run: RunFolder) -> dict[str, bytes]:
    return {f"{kind}/{p.name}": p.read_bytes() for kind in ("metrics", "evaluations") for p in run.parts(kind)}


def test_the_manifest_lists_the_parts_before_it(rests: Callable[[int, Path], RunFolder], tmp_path: Path) -> None:
    run = rests(9, tmp_path)
    newest = checkpoint.manifests(run.checkpoints)[-1]
    parts = newest.parts or {}
    assert {f"metrics/part-{i:08d}.parquet" for i in range(1, newest.chunk + 1)} <= set(parts)
    assert {"evaluations/part-00000000.parquet", "timing/part-00000001.parquet"} <= set(parts)
    assert run.damaged(parts) == {}


@pytest.mark.parametrize("part", ["metrics/part-00000004.parquet", "evaluations/part-00000004.parquet"])
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_what_is_gone_is_computed_again(
    part: str, damage: str, rests: Callable[[int, Path], RunFolder], whole: RunFolder, tmp_path: Path
) -> None:
    run = rests(9, tmp_path)
    if damage == "missing":
        (run.path / part).unlink()
    else:
        data = bytearray((run.path / part).read_bytes())
        data[len(data) // 2] ^= 1
        (run.path / part).write_bytes(data)
    seen = Stops()
    rookery.resume(run.path, seen)
    assert f"{part} is {damage}: computed again from chunk-00000003." in seen.texts
    assert bytes_of(run) == bytes_of(whole)
    assert "lost" not in run.status().facts


def test_what_cannot_be_computed_again_is_named(
    rests: Callable[[int, Path], RunFolder], whole: RunFolder, tmp_path: Path
) -> None:
    run = rests(1, tmp_path)
    gone, torn = "evaluations/part-00000002.parquet", "metrics/part-00000003.parquet"
    (run.path / gone).unlink()
    (run.path / torn).write_bytes(b"torn")
    newest = checkpoint.manifests(run.checkpoints)[-1].chunk
    seen = Stops()
    rookery.resume(run.path, seen)
    (said,) = [text for text in seen.texts if "lost for good" in text]
    assert f"the evaluation near step 64 ({gone} is missing)" in said
    assert f"training metrics near step 96 ({torn} is damaged)" in said
    assert any(f"from chunk-{newest:08d}" in text for text in seen.texts), "nothing is trained twice"
    assert run.status().state == "complete" and run.status().facts["lost"] == [gone, torn]
    left = bytes_of(whole)
    assert bytes_of(run) == {name: data for name, data in left.items() if name not in (gone, torn)}
