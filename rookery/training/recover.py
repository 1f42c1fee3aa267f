"""Where a run is taken up again, and what of it was lost in the meantime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rookery.training import checkpoint
from rookery.training.checkpoint import Loaded, Manifest
from rookery.training.folder import Parts, RunFolder, chunk_of, writing
from rookery.training.state import RunState


@dataclass(frozen=True)
class Start:
    """A run that is ready to go on: its folder holds nothing newer than the checkpoint."""

    found: Loaded | None
    """The checkpoint; None: begin at step 0."""
    parts: Parts = field(default_factory=dict)
    """All parts up to the checkpoint; the checksum of a lost one is empty."""
    notes: tuple[str, ...] = ()
    """What the user should know."""

    @property
    def chunk(self) -> int:
        return self.found.manifest.chunk if self.found else -1


def recover(folder: RunFolder, shapes: RunState) -> Start:
    """The newest checkpoint whose parts are all intact. Without one, the newest, and a note of exactly what is lost."""
    found = checkpoint.load(folder.checkpoints, shapes)
    if found is None:
        folder.drop_after(-1)
        return Start(None)
    notes, parts = list(found.warnings), dict(found.manifest.parts or {})
    if damaged := folder.damaged(parts):
        manifest = found.manifest
        del found  # one state in memory at a time
        first = min(map(chunk_of, damaged))
        earlier = checkpoint.load_before(folder.checkpoints, shapes, first)
        if earlier:
            with writing(folder.checkpoints):
                checkpoint.remove_after(folder.checkpoints, earlier.manifest.chunk)
            parts = dict(earlier.manifest.parts or {})
            notes.append(f"{_listed(damaged)}: computed again from {earlier.manifest.name}.")
            found = earlier
        else:
            for name in damaged:
                folder.set_part_aside(name)
            parts |= dict.fromkeys(damaged, "")
            notes.append(_lost(damaged, manifest))
            found = checkpoint.load(folder.checkpoints, shapes)
            assert found is not None
    folder.drop_after(found.manifest.chunk)
    return Start(found, parts, tuple(notes))


def lost(parts: Parts) -> list[str]:
    """Names of the parts that are gone for good."""
    return [name for name, checksum in parts.items() if not checksum]


def _listed(damaged: Mapping[str, str]) -> str:
    return ", ".join(f"{name} is {what}" for name, what in damaged.items())


def _lost(damaged: Mapping[str, str], manifest: Manifest) -> str:
    """Says what each lost part held, and that there is no checkpoint to compute it again from."""
    held = {"metrics": "training metrics", "evaluations": "the evaluation", "timing": "the time taken"}
    pieces = []
    for name, what in damaged.items():
        step = min(manifest.steps) * chunk_of(name) // max(manifest.chunk, 1)
        pieces.append(f"{held[name.partition('/')[0]]} near step {step:,} ({name} is {what})")
    return f"warning: lost for good, as no earlier checkpoint is left: {'; '.join(pieces)}. Nothing else is missing."
