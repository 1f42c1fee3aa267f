"""Train, resume and evaluate runs: the host's side of the compiled loop."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl
from jaxtyping import Array

from rookery.core.config import from_json, label, to_json
from rookery.core.errors import ConfigError, RookeryError, RunError, TrainingError
from rookery.core.keys import stream
from rookery.core.types import Action, Clock, Step
from rookery.training import checkpoint, digest, logs, provenance
from rookery.training.build import Build, Chunk, Evaluate, build, jit
from rookery.training.check import check
from rookery.training.config import RunConfig
from rookery.training.devices import claim_devices
from rookery.training.folder import Kind, RunFolder
from rookery.training.loop import ChunkReport, Policies, Program, RunState, member_infos
from rookery.training.progress import Progress, Silent
from rookery.training.reads import refuse_unread

Write = Callable[[Kind, int, pl.DataFrame], None]
"""Adds the part of a chunk to the run's folder, and to the logs."""


@dataclass(frozen=True)
class Run:
    """A trained (or partly trained) run and what it left behind."""

    folder: RunFolder

    @cached_property
    def config(self) -> RunConfig:
        """The resolved config."""
        return from_json(RunConfig, self.folder.config())

    @cached_property
    def program(self) -> Program:
        return Program(self.config)

    def metrics(self) -> pl.DataFrame:
        """Training metrics: one row per chunk and member."""
        return self.folder.metrics()

    def evaluations(self) -> pl.DataFrame:
        """Greedy evaluations: one row per episode."""
        return self.folder.evaluations()

    def final(self) -> pl.DataFrame:
        """The absolute evaluation: one row per episode, of each member's last and best policy."""
        return self.folder.final()

    def timing(self) -> pl.DataFrame:
        """Seconds and steps of each chunk."""
        return self.folder.timing()

    @cached_property
    def policies(self) -> Policies:
        """The last and the best policy of every member."""
        shapes = jax.eval_shape(self.program.init)
        like = jax.eval_shape(self.program.policies, shapes)
        if self.folder.policies.exists():
            found = checkpoint.load(self.folder.policies, like)
        else:
            found = checkpoint.load(self.folder.checkpoints, shapes)
        if found is None:
            raise RunError(f"{self.folder.path} has no checkpoint yet. Train on: rookery resume {self.folder.path}")
        return found.state if self.folder.policies.exists() else jit(self.program.policies, once=True)(found.state)

    def policy(self, which: str = "best", member: int = 0) -> Policy:
        """One member's policy, to act with."""
        if which not in ("best", "last"):
            raise ConfigError(f"a run has a 'best' and a 'last' policy, not '{which}'.")
        infos = member_infos(self.config)
        if not 0 <= member < len(infos):
            raise ConfigError(f"member {member} does not exist; the run has members 0 to {len(infos) - 1}.")
        p = self.policies
        params, hyper = jax.tree.map(lambda x: x[member], (p.best if which == "best" else p.last, p.hyper))
        return Policy(self.program, params, hyper, Clock(p.iteration, p.steps[member], p.budget))


class Policy:
    """Acts in one environment; remembers what its network carries from step to step."""

    def __init__(self, program: Program, params: Any, hyper: dict[str, Array], clock: Clock) -> None:
        self.spec = program.task.spec
        algo = program.algo(hyper)
        self._carry = algo.carry(self.spec, 1)

        def act(carry: Any, step: Step, key: Array, greedy: bool) -> tuple[Any, Action]:
            rows = jax.tree.map(lambda x: x[None], step)
            carry, action, _ = algo.act(self.spec, params, carry, rows, clock, key, greedy=greedy)
            return carry, action[0]

        self._act = jit(act, static_argnums=3)

    def act(self, step: Step, key: Array | None = None) -> Action:
        """Actions of all agents for an unbatched step: greedy, or sampled if a key is given."""
        used = jax.random.PRNGKey(0) if key is None else key
        self._carry, action = self._act(self._carry, step, used, key is None)
        return action


def train(
    config: RunConfig, out: Path | str = "runs", progress: Progress | None = None, log: Sequence[str] = ()
) -> Run:
    """Train a config into its run folder: from the start, from its last checkpoint, or not at all if it is complete.

    `log` names other programs that can watch ("tensorboard", "wandb"): their logs are written into the folder too.
    """
    progress = progress or Silent()
    claim_devices(config)
    check(config)
    logs.require(log)
    if not RunFolder.locate(Path(out), to_json(config), config.preset, config.task_name).path.exists():
        refuse_unread(config)
    folder = RunFolder.open_or_create(Path(out), to_json(config), config.preset, config.task_name)
    if folder.status().state == "complete":
        progress.message(f"{folder.path} is complete; nothing to do.")
        return Run(folder)
    with folder.lock():
        try:
            _train(config, folder, progress, log)
        except RookeryError as error:
            # A full disk may be the cause, then the status cannot be written either.
            with suppress(RunError):
                folder.set_status("failed", str(error))
            raise
    return Run(folder)


def resume(path: Path | str, progress: Progress | None = None, log: Sequence[str] = ()) -> Run:
    """Go on with the run in this folder."""
    path = Path(path)
    return train(from_json(RunConfig, RunFolder(path).config()), path.parent, progress, log)


def evaluate_run(path: Path | str, episodes: int, which: str = "best") -> pl.DataFrame:
    """Fresh greedy episodes of a run's policies: one row per episode and member."""
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, not {episodes}.")
    run = Run(RunFolder(Path(path)))
    use_compilation_cache()
    frame = _absolute(run.program, run.policies, episodes, "rookery eval")
    return frame.filter(pl.col("which") == which).drop("which")


def use_compilation_cache() -> None:
    """Keep compiled programs on disk: ROOKERY_CACHE names the folder, `off` turns it off."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rookery" / "xla"
    folder = os.environ.get("ROOKERY_CACHE", str(default))
    if folder != "off":
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


@dataclass(frozen=True)
class _Compiled:
    """The executables of a run."""

    chunk: Chunk
    evaluate: Evaluate


def _compile(run: Build, progress: Progress, found: RunState | None) -> tuple[_Compiled, RunState]:
    """The executables, and the state to begin with: what was found, or a fresh one."""
    progress.compiling("program")
    start = time.perf_counter()
    init = run.init() if found is None else lambda: found
    compiled = _Compiled(run.chunk(), run.evaluate())
    state = init()
    compiled.chunk.wait()
    compiled.evaluate.wait()
    progress.compiled("program", time.perf_counter() - start)
    return compiled, state


def _train(config: RunConfig, folder: RunFolder, progress: Progress, log: Sequence[str]) -> None:
    use_compilation_cache()
    run = build(config)
    program = run.program
    needed = checkpoint.nbytes(run.shapes) * (config.checkpoints.keep + 2)
    checkpoint.check_writable(folder.checkpoints, needed)
    provenance.record(folder.path)
    found = checkpoint.load(folder.checkpoints, run.shapes)
    for warning in found.warnings if found else ():
        progress.message(warning)
    done = found.manifest.chunk if found else -1
    folder.drop_after(done)
    _set_status(program, folder, "running")
    compiled, state = _compile(run, progress, found.state if found else None)
    if found:
        progress.message(f"resumed after {min(found.manifest.steps):,} steps from {found.manifest.name}.")
        del found
    with logs.logging(log, config, folder) as write_log:

        def write(kind: Kind, chunk: int, frame: pl.DataFrame) -> None:
            folder.write_part(kind, chunk, frame)
            write_log(kind, frame)

        state = _loop(program, compiled, folder, write, state, done, progress)
    _finish(program, folder, state, progress)


def _set_status(
    program: Program, folder: RunFolder, state: Any, message: str = "", share: float = 0.0, **facts: Any
) -> None:
    folder.set_status(state, message, share, label=label(program.config.preset, program.config.algo), **facts)


def _loop(
    program: Program,
    compiled: _Compiled,
    folder: RunFolder,
    write: Write,
    state: RunState,
    done: int,
    progress: Progress,
) -> RunState:
    """Chunks until every member has spent the budget; evaluations and checkpoints in between."""
    config, members = program.config, member_infos(program.config)
    total = config.steps * len(members)
    saved = time.monotonic()
    if done < 0:
        state, _ = _evaluate(program, compiled, write, state, 0, progress)
    taken = int(np.asarray(state.members.steps, np.int64).sum())
    score = float("nan")
    chunk = max(done, 0)
    while np.asarray(state.members.steps).min() < config.steps:
        chunk += 1
        start = time.perf_counter()
        state, report = compiled.chunk(state)
        means = _means(report)
        seconds = time.perf_counter() - start
        _stop_if_broken(report, folder)
        before, taken = taken, int(np.asarray(report.steps, np.int64).sum())
        write("metrics", chunk, _metric_frame(program, chunk, report, means))
        write("timing", chunk, _timing_frame(chunk, seconds, taken - before))
        finished = np.asarray(report.steps).min() >= config.steps
        if chunk % config.evaluation.rows == 0 or finished:
            state, score = _evaluate(program, compiled, write, state, chunk, progress)
        rate = (taken - before) / seconds
        measured = {name: float(np.nanmean(x)) for name, x in means.items() if not np.isnan(x).all()}
        progress.update(taken, total, rate, measured)
        if time.monotonic() - saved > config.checkpoints.seconds or finished:
            steps = np.asarray(report.steps).tolist()
            keep = config.checkpoints.keep
            checkpoint.save(folder.checkpoints, state, chunk=chunk, steps=steps, score=score, keep=keep)
            facts = {"steps": taken, "steps_per_second": round(rate), "score": score}
            _set_status(program, folder, "running", "", min(taken / total, 1.0), **facts)
            saved = time.monotonic()
    return state


def _evaluate(
    program: Program, compiled: _Compiled, write: Write, state: RunState, chunk: int, progress: Progress
) -> tuple[RunState, float]:
    """Greedy episodes, written; returns the mean score over members."""
    steps = np.asarray(state.members.steps).tolist()  # before the state is donated
    state, episodes = compiled.evaluate(state)
    frame = _episode_frame(program, episodes, steps).with_columns(pl.lit(chunk).alias("chunk"))
    write("evaluations", chunk, frame)
    scores = frame.group_by("member").agg(pl.col("score").mean()).sort("member")["score"].to_numpy()
    half = 1.96 * float(scores.std(ddof=1)) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
    mean = float(scores.mean())
    progress.evaluation(min(steps), mean, score_unit(program), (mean - half, mean + half))
    return state, mean


def score_unit(program: Program) -> str:
    """What the score of the run's task counts."""
    return "success" if program.task.spec.score == "success" else "return (mean over agents)"


def _finish(program: Program, folder: RunFolder, state: RunState, progress: Progress) -> None:
    """The absolute evaluation; then policies replace the states, which a complete run never needs again."""
    policies = jit(program.policies, once=True)(state)
    final = _absolute(program, policies, program.config.evaluation.final, "final")
    folder.write_part("final", 0, final)
    digest.write(folder)
    if not folder.policies.exists():
        steps = np.asarray(policies.steps).tolist()
        checkpoint.save(folder.policies, policies, chunk=0, steps=steps, score=float("nan"), keep=1)
    scores = dict(final.group_by("which").agg(pl.col("score").mean()).sort("which").iter_rows())
    text = ", ".join(f"{which} {score:.4g}" for which, score in scores.items())
    _set_status(program, folder, "complete", f"final {score_unit(program)}: {text}", 1.0, score=scores["best"])
    shutil.rmtree(folder.checkpoints)
    progress.message(f"complete: final {score_unit(program)} of {program.config.evaluation.final} episodes: {text}")


def _absolute(program: Program, policies: Policies, episodes: int, purpose: str) -> pl.DataFrame:
    """At least `episodes` greedy episodes of every member's last and best policy, in groups of one compiled size."""
    per_call = program.config.evaluation.episodes
    key = stream(jax.random.PRNGKey(0), purpose)
    play = jit(program.play)
    steps = np.asarray(policies.steps).tolist()
    frames = []
    for call in range(-(-episodes // per_call)):
        played = play(policies, jax.random.fold_in(key, call))
        for which, result in played.items():
            frame = _episode_frame(program, result, steps, call * per_call)
            frames.append(frame.with_columns(pl.lit(which).alias("which")))
    return pl.concat(frames).filter(pl.col("episode") < episodes).sort("which", "member", "episode")


def _means(report: ChunkReport) -> dict[str, np.ndarray]:
    """Means of the chunk for each member; NaN where nothing was measured."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            name: np.where(np.asarray(m.weight) > 0, np.asarray(m.total) / np.asarray(m.weight), np.nan)
            for name, m in report.means.items()
        }


def _stop_if_broken(report: ChunkReport, folder: RunFolder) -> None:
    for name, steps in report.broken.items():
        for member, step in enumerate(np.asarray(steps).tolist()):
            if step >= 0:
                known = checkpoint.manifests(folder.checkpoints)
                kept = f"The last good checkpoint is {known[-1].name}" if known else "No checkpoint was written yet"
                raise TrainingError(
                    f"{name} of member {member} is not finite at step {step:,}. {kept} in {folder.path}. "
                    "Try a lower learning rate or a smaller gradient clip."
                )


def _identity(program: Program) -> pl.DataFrame:
    """Columns that say which member a row is of."""
    infos = member_infos(program.config)
    columns: dict[str, Any] = {"member": range(len(infos)), "seed": [i.seed for i in infos]}
    columns |= {s.path: [i.values[s.path] for i in infos] for s in program.config.sweep}
    return pl.DataFrame(columns)


def _metric_frame(program: Program, chunk: int, report: ChunkReport, means: dict[str, np.ndarray]) -> pl.DataFrame:
    columns = {"chunk": chunk, "steps": np.asarray(report.steps, np.int64), **means}
    return _identity(program).with_columns(
        pl.lit(x).alias(name) if np.isscalar(x) else pl.Series(name, x) for name, x in columns.items()
    )


def _timing_frame(chunk: int, seconds: float, steps: int) -> pl.DataFrame:
    return pl.DataFrame({"chunk": [chunk], "seconds": [seconds], "steps": [steps]})


def _episode_frame(program: Program, episodes: dict[str, Array], steps: list[int], first: int = 0) -> pl.DataFrame:
    """One row per member and episode."""
    returns = np.asarray(episodes["returns"])
    members, count, agents = returns.shape
    flat = {
        "member": np.repeat(np.arange(members), count),
        "steps": np.repeat(np.asarray(steps, np.int64), count),
        "episode": np.tile(np.arange(first, first + count), members),
        "score": np.asarray(program.score(episodes)).reshape(-1),
        "return_mean": returns.mean(axis=-1).reshape(-1),
        "return_sum": returns.sum(axis=-1).reshape(-1),
        "length": np.asarray(episodes["length"]).reshape(-1),
        "success": np.asarray(episodes["success"]).reshape(-1),
        "returns": returns.reshape(-1, agents),
    }
    return _identity(program).join(pl.DataFrame(flat), on="member", maintain_order="right")
