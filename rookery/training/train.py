"""Train, resume and evaluate runs: the host's side of every engine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import polars as pl

from rookery.core.config import label, normalised, to_json
from rookery.core.errors import ConfigError, RookeryError, RunError
from rookery.core.host import HostTask
from rookery.core.keys import stream
from rookery.core.stats import INTERVAL, show
from rookery.training import checkpoint, digest, frames, imports, logs, pace, provenance
from rookery.training.check import check
from rookery.training.compiled.compiler import use_compilation_cache
from rookery.training.config import RunConfig
from rookery.training.engine import Engine, Layout, claim, open_engine
from rookery.training.failures import Failures, failed
from rookery.training.folder import Kind, Parts, RunFolder
from rookery.training.imports import open_config
from rookery.training.interrupt import Interrupted, Interruptions
from rookery.training.progress import Progress, Silent
from rookery.training.reads import refuse_unread
from rookery.training.recover import lost, recover
from rookery.training.run import Run
from rookery.training.scores import Score, best, by_value, lines
from rookery.training.state import ChunkReport, Policies, RunState

Write = Callable[[Kind, int, pl.DataFrame], None]
"""Adds the part of a chunk to the run's folder, and to the logs."""


def train(
    config: RunConfig, out: Path | str = "runs", progress: Progress | None = None, log: Sequence[str] = ()
) -> Run:
    """Train a config into its run folder: from the start, from its last checkpoint, or not at all if it is complete.

    `log` names other programs that can watch ("tensorboard", "wandb"): their logs are written into the folder too.
    """
    progress = progress or Silent()
    config = normalised(config)
    folder = RunFolder.locate(Path(out), to_json(config), config.preset, config.task_name)
    begun = _begun_on(folder)
    claim(config, begun)
    check(config)
    logs.require(log)
    if not folder.path.exists():
        refuse_unread(config)
    folder = RunFolder.open_or_create(Path(out), to_json(config), config.preset, config.task_name)
    for change in imports.record(folder, config):
        progress.message(change)
    if folder.status().state == "complete":
        progress.message(f"{folder.path} is complete; nothing to do.")
        return Run(folder)
    use_compilation_cache()
    with folder.lock():
        try:
            with closing(open_engine(config, begun)) as engine:
                _train(engine, folder, progress, log)
        except RookeryError as error:
            # A full disk may be the cause, then the status cannot be written either.
            with suppress(RunError):
                folder.set_status("failed", str(error))
            raise
    return Run(folder)


def _begun_on(folder: RunFolder) -> Layout | None:
    """The layout that the run's newest checkpoint was written on; None if there is none."""
    known = [m.layout for m in checkpoint.manifests(folder.checkpoints) if m.layout]
    return Layout(**known[-1]) if known else None


def resume(path: Path | str, progress: Progress | None = None, log: Sequence[str] = ()) -> Run:
    """Go on with the run in this folder."""
    path = Path(path)
    return train(open_config(RunFolder(path)), path.parent, progress, log)


def evaluate_run(
    path: Path | str, episodes: int, which: str = "best", actions: Literal["own", "greedy", "sampled"] = "own"
) -> pl.DataFrame:
    """Fresh episodes of a run's policies: one row per episode and member that did not fail.

    `own`: as the run's own evaluations act.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, not {episodes}.")
    run = Run(RunFolder(Path(path)))
    use_compilation_cache()
    sampled = run.config.evaluation.sampled if actions == "own" else actions == "sampled"
    evaluation = replace(run.config.evaluation, sampled=sampled)
    with closing(open_engine(replace(run.config, evaluation=evaluation))) as engine:
        frame = _absolute(engine, run.policies, episodes, "rookery eval")
    return frame.filter(pl.col("which") == which, ~pl.col("member").is_in(list(failed(run.folder)))).drop("which")


def evaluate_fresh(config: RunConfig, episodes: int) -> pl.DataFrame:
    """Episodes of what a config begins with (saved policies, for one): one row per episode and member."""
    check(config)
    use_compilation_cache()
    with closing(open_engine(config)) as engine:
        frame = _absolute(engine, engine.policies(engine.init()), episodes, "rookery eval")
    return frame.filter(pl.col("which") == "last").drop("which")


def _train(engine: Engine, folder: RunFolder, progress: Progress, log: Sequence[str]) -> None:
    needed = checkpoint.nbytes(engine.shapes) * (engine.config.checkpoints.keep + 2)
    checkpoint.check_writable(folder.checkpoints, needed)
    provenance.record(folder.path, engine.record())
    start = recover(folder, engine.shapes)
    told = [*engine.notes, *pace.notes(engine.config), *start.notes]
    for note in told:
        progress.message(note)
    _set_status(engine, folder, "running", lost=lost(start.parts))
    progress.compiling("program")
    begun = time.perf_counter()
    engine.prepare(fresh=start.found is None)
    state = engine.restore(start.found.state) if start.found else engine.init()
    progress.compiled("program", time.perf_counter() - begun)
    provenance.amend(folder.path, engine.record())
    for note in engine.notes:
        if note not in told:
            progress.message(note)
    if start.found:
        manifest = start.found.manifest
        progress.message(f"resumed after {min(manifest.steps):,} steps of each seed from {manifest.name}.")
    progress.message(f"brackets: {INTERVAL}.")
    done, parts = start.chunk, start.parts
    del start
    with logs.logging(log, engine.config, folder) as write_log:

        def write(kind: Kind, chunk: int, frame: pl.DataFrame) -> None:
            parts.update(folder.write_part(kind, chunk, frame))
            write_log(kind, frame)

        failures = Failures(folder, engine.config, np.asarray(state.members.steps).tolist())
        state = _loop(engine, folder, write, parts, failures, state, done, progress)
    _finish(engine, folder, state, parts, failures, progress)


def _set_status(
    engine: Engine, folder: RunFolder, state: Any, message: str = "", share: float = 0.0, **facts: Any
) -> None:
    known = {name: value for name, value in facts.items() if value != []}
    folder.set_status(state, message, share, label=label(engine.config.preset, engine.config.algo), **known)


def _loop(
    engine: Engine,
    folder: RunFolder,
    write: Write,
    parts: Parts,
    failures: Failures,
    state: RunState,
    done: int,
    progress: Progress,
) -> RunState:
    """Chunks until every member has spent the budget; evaluations and checkpoints in between."""
    config = engine.config
    taken = np.asarray(state.members.steps, np.int64)
    saved = time.monotonic()
    if done < 0:
        state, _ = _evaluate(engine, write, failures, state, 0, progress)
    scores: list[Score] = []
    chunk = max(done, 0)
    with Interruptions(progress.message) as stop:
        while failures.living(taken).min() < config.steps:
            chunk += 1
            start = time.perf_counter()
            state, report = engine.chunk(state)
            means = _means(report)
            seconds = time.perf_counter() - start
            for text in failures.take_in(report):
                progress.message(text)
            before, taken = taken, np.asarray(report.steps, np.int64)
            write("metrics", chunk, failures.without(frames.metrics(config, chunk, report, means)))
            write("timing", chunk, frames.timing(chunk, seconds, int((taken - before).sum())))
            slowest = int(failures.living(taken).min())
            finished = slowest >= config.steps
            if finished or _evaluations(parts) < pace.evaluations_due(config, chunk, slowest):
                state, scores = _evaluate(engine, write, failures, state, chunk, progress)
            rate = float(failures.living(taken - before).mean()) / seconds
            shown = {name: failures.living(x) for name, x in means.items()}
            progress.update(slowest, config.steps, rate, {} if config.sweep else _over_seeds(shown))
            if time.monotonic() - saved > config.checkpoints.seconds or finished or stop.asked:
                checkpoint.save(
                    folder.checkpoints,
                    state,
                    chunk=chunk,
                    steps=taken.tolist(),
                    score=best(scores).iqm if scores else float("nan"),
                    keep=config.checkpoints.keep,
                    layout=asdict(engine.layout),
                    stores=(config.algo.stores(state.members.algo), state.members.best),
                    parts=parts,
                )
                facts = {"steps": slowest, "steps_per_second": round(rate), **_score_facts(scores)}
                told, share = failures.told, min(slowest / config.steps, 1.0)
                _set_status(engine, folder, "running", " ".join(told), share, lost=lost(parts), failed=told, **facts)
                saved = time.monotonic()
            if stop.asked and not finished:
                raise Interrupted(f"everything up to step {slowest:,} of each seed is kept")
    return state


def _evaluations(parts: Parts) -> int:
    """Evaluations so far, besides the one before training."""
    return sum(name.startswith("evaluations/") for name in parts) - 1


def _over_seeds(means: dict[str, np.ndarray]) -> dict[str, float]:
    """Means over the members that measured something."""
    return {name: float(np.nanmean(x)) for name, x in means.items() if not np.isnan(x).all()}


def _score_facts(scores: list[Score]) -> dict[str, Any]:
    """For the status: the score (of the best swept value), and the score of each swept value."""
    if not scores:
        return {}
    each = {"scores": {score.value: score.iqm for score in scores}} if len(scores) > 1 else {}
    return {"score": best(scores).iqm, **each}


def _evaluate(
    engine: Engine, write: Write, failures: Failures, state: RunState, chunk: int, progress: Progress
) -> tuple[RunState, list[Score]]:
    """Episodes, written; returns the score of each swept value."""
    steps = np.asarray(state.members.steps).tolist()  # before the state is donated
    state, episodes = engine.evaluate(state)
    frame = failures.without(frames.episodes(engine.config, episodes, steps)).with_columns(chunk=pl.lit(chunk))
    write("evaluations", chunk, frame)
    scores = by_value(frame)
    progress.evaluation(int(failures.living(np.asarray(steps)).min()), score_unit(engine.config), scores)
    return state, scores


def score_unit(config: RunConfig) -> str:
    """What the score of the run's task counts."""
    if config.task.spec.score == "return":
        return "return (mean over agents)"
    return config.task.score_unit if isinstance(config.task, HostTask) else "success"


def _finish(
    engine: Engine, folder: RunFolder, state: RunState, parts: Parts, failures: Failures, progress: Progress
) -> None:
    """The absolute evaluation; then policies replace the states, which a complete run never needs again."""
    config, policies = engine.config, engine.policies(state)
    final = failures.without(_absolute(engine, policies, config.evaluation.final, "final"))
    folder.write_part("final", 0, final)
    digest.write(folder)
    if not folder.policies.exists():
        steps = np.asarray(policies.steps).tolist()
        checkpoint.save(folder.policies, policies, chunk=0, steps=steps, score=float("nan"), keep=1)
    scores = {which: by_value(final.filter(pl.col("which") == which)) for which in ("best", "last")}
    tops = {which: best(found) for which, found in scores.items()}
    text = ", ".join(
        f"{which} policy {show(top.estimate)}{f' at {top.value}' if top.value else ''}" for which, top in tops.items()
    )
    slowest = int(failures.living(np.asarray(policies.steps)).min())
    reached = {"steps": slowest, **_score_facts(scores["best"])}
    kept = {"lost": lost(parts), "failed": failures.told}
    message = " ".join([f"final {score_unit(config)}, IQM: {text}", *_left_out(failures.told)])
    _set_status(engine, folder, "complete", message, 1.0, **kept, **reached)
    shutil.rmtree(folder.checkpoints)
    heading = f"complete: final {score_unit(config)} of {config.evaluation.final} episodes of each seed, IQM"
    if not config.sweep:
        progress.message(f"{heading}: {text}")
    else:
        for which, found in scores.items():
            progress.message("\n".join([f"{heading}, {which} policy:", *(f"  {line}" for line in lines(found))]))
    for line in _left_out(failures.told):
        progress.message(line)


def _left_out(told: Sequence[str]) -> list[str]:
    """What to say beside the scores of the other members."""
    return [f"Left out: {' '.join(told)}"] if told else []


def _absolute(engine: Engine, policies: Policies, episodes: int, purpose: str) -> pl.DataFrame:
    """At least `episodes` episodes of every member's last and best policy, in groups of one compiled size.

    Start states depend on the member's seed only: seeds are independent of each other, algorithms are paired.
    """
    per_call = engine.config.evaluation.episodes
    steps = np.asarray(policies.steps).tolist()
    played = []
    for call in range(-(-episodes // per_call)):
        keys = jnp.stack([stream(key, purpose, call) for key in policies.key])
        for which, result in engine.play(policies, keys).items():
            frame = frames.episodes(engine.config, result, steps, call * per_call)
            played.append(frame.with_columns(pl.lit(which).alias("which")))
    return pl.concat(played).filter(pl.col("episode") < episodes).sort("which", "member", "episode")


def _means(report: ChunkReport) -> dict[str, np.ndarray]:
    """Means of the chunk for each member; NaN where nothing was measured."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            name: np.where(np.asarray(m.weight) > 0, np.asarray(m.total) / np.asarray(m.weight), np.nan)
            for name, m in report.means.items()
        }
