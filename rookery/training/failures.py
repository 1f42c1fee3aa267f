"""Members whose training diverged. They are reported as failed at their step, and the others finish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl

from rookery.core.errors import TrainingError
from rookery.training import checkpoint
from rookery.training.config import RunConfig
from rookery.training.folder import RunFolder, read_json, write_json, writing
from rookery.training.state import ChunkReport, MemberInfo, member_infos, member_infos_of_json


@dataclass(frozen=True)
class Failure:
    """When a member's training stopped making sense."""

    member: int
    step: int
    """The member's environment steps when a metric first was not finite."""
    metric: str

    def __str__(self) -> str:
        return f"{self.metric} is not finite at step {self.step:,}"


def failed(folder: RunFolder) -> dict[int, Failure]:
    """The failed members of a run. Where a score is made of the others, say so."""
    file = folder.path / "failures.json"
    return {entry["member"]: Failure(**entry) for entry in (read_json(file) if file.exists() else [])}


def told(folder: RunFolder) -> list[str]:
    """The failed members of a run in words."""
    infos = member_infos_of_json(folder.config())
    return [_words(infos[member], failure) for member, failure in failed(folder).items()]


class Failures:
    """The failed members of a run, kept in its folder. A failed member's rows are left out from then on.

    Its arrays stay in the state, because members are one axis of one program; nothing of theirs reaches the others.
    """

    def __init__(self, folder: RunFolder, config: RunConfig, steps: Sequence[int]) -> None:
        """Those of a run that continues after `steps` of each member; later ones will come again."""
        self._folder, self._file, self._infos = folder, folder.path / "failures.json", member_infos(config)
        known = failed(folder)
        self.of = {member: failure for member, failure in known.items() if failure.step <= steps[member]}
        if len(self.of) < len(known):
            self._write()

    def take_in(self, report: ChunkReport) -> list[str]:
        """Note the members that failed in this chunk; returns what to tell. Raises if none is left."""
        found: dict[int, Failure] = {}
        for metric, steps in report.broken.items():
            for member, step in enumerate(np.asarray(steps).reshape(-1).tolist()):
                if step >= 0 and member not in self.of and step < found.get(member, Failure(member, 2**62, "")).step:
                    found[member] = Failure(member, step, metric)
        self.of |= found
        if found:
            self._write()
        if len(self.of) == len(self._infos):
            last = max(self.of.values(), key=lambda failure: failure.step)
            raise TrainingError(
                f"{self.words(last)} No other seed is left. {_kept(self._folder)} Try a lower learning rate or a "
                "smaller gradient clip."
            )
        return [f"{self.words(failure)} The others go on." for failure in found.values()]

    def words(self, failure: Failure) -> str:
        """A failure in a sentence."""
        return _words(self._infos[failure.member], failure)

    def living(self, of_members: np.ndarray) -> np.ndarray:
        """The entries of the members that did not fail."""
        return np.delete(of_members, list(self.of), axis=0)

    def without(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows of members that did not fail."""
        return frame.filter(~pl.col("member").is_in(list(self.of))) if self.of else frame

    @property
    def told(self) -> list[str]:
        """All failures in words."""
        return [self.words(failure) for failure in self.of.values()]

    def _write(self) -> None:
        with writing(self._file):
            write_json(self._file, [asdict(failure) for failure in self.of.values()])


def _words(info: MemberInfo, failure: Failure) -> str:
    swept = "".join(f", {path}={value:g}" for path, value in info.values.items())
    return f"seed {info.seed}{swept} failed: {failure}."


def _kept(folder: RunFolder) -> str:
    known = checkpoint.manifests(folder.checkpoints)
    return f"The last good checkpoint is {known[-1].name} in {folder.path}." if known else "There is no checkpoint yet."
