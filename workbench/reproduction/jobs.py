"""Cells and items as jobs of a cluster, by submitit; each is noted in a folder, so that the next call finds it.

A job writes its result where a local run does, then a short answer. A job that ends without one was killed, and starts
anew. Pickles are read by the job alone, from a folder that only its owner can open.
"""

import contextlib
import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

from workbench.launch.fork_server import WARM_VARIABLE
from workbench.reproduction.errors import RecordError, UsageError
from workbench.reproduction.files import claim, read_json, write_json
from workbench.reproduction.machine import num_cores
from workbench.reproduction.recording import RUN_DIR, RUN_ITEM
from workbench.rows.progress import PROGRESS_VARIABLE

__all__ = ["JOBS_FOLDER", "Answer", "Engine", "Job", "Jobs", "Needs", "cancel", "noted", "states_of", "tidy"]

JOBS_VARIABLE = "WORKBENCH_JOBS"  # the engine of a run, for the studies in its notebooks
JOBS_FOLDER = ".jobs"  # in the results of a profile
# Variables of the head, which a job must not take from it.
OF_THE_RUN = (JOBS_VARIABLE, RUN_DIR, PROGRESS_VARIABLE, WARM_VARIABLE, "TMPDIR")
MEMORY_GB = 2  # asked for a core: a process that has imported torch holds 0.5 GB, and its model and data are small
MOST_JOBS = 100  # under way by default on a cluster
LEAST_MINUTES = 10  # asked for at least
MARGIN = 4  # times the expected time
UNKNOWN_MINUTES = 60  # asked for where nothing is known
LOOK_S = 3.0  # seconds between two questions to Slurm
FULL_S = 20.0  # seconds until Slurm is asked again after it has refused a job
COMMAND_S = 60.0  # seconds a command of Slurm may take
MOST_RESTARTS = 2  # of a job that was killed; a job that is killed again and again fails
UNDER_WAY: tuple[str, ...] = (
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "RESIZING",
)
UNDER_WAY += ("SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "REQUEUE_FED")
FINAL = {"TIMEOUT": "took longer than its --time", "OUT_OF_MEMORY": "ran out of memory", "CANCELLED": "was cancelled"}
REAP_S = 10.0  # seconds a process of this machine may take to end after its answer
LOG_SHOWN = 2000  # characters of a log's end that a failure repeats


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """Where the jobs of one call of `workbench reproduce` run."""

    cluster: str  # "slurm", or "local" for processes of this machine
    folder: str = ""  # where they are noted
    run: str = ""  # name of the call
    partition: str = ""
    account: str = ""
    gpus_per_node: int = 0  # that a job which has a node alone asks for; others ask for one
    max_jobs: int = 0  # under way at once; 0 for a default
    minutes: int = 0  # asked for each job; 0 for an estimate

    @property
    def most(self) -> int:
        """Jobs under way at most."""
        return self.max_jobs or (MOST_JOBS if self.cluster == "slurm" else num_cores())

    def as_variable(self) -> dict[str, str]:
        """Return the environment variable by which a notebook's studies find this engine."""
        return {JOBS_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls) -> "Engine | None":
        """Return the engine of the run that this process belongs to, if it has one."""
        text = os.environ.get(JOBS_VARIABLE)
        return cls(**json.loads(text)) if text else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What a job needs."""

    cores: int = 1
    expected_s: float = 0.0  # 0 where nothing is known
    alone: bool = False  # a node for itself, since its time is measured or it takes all cores


@dataclass(slots=True)
class Job:
    """A job, as it is noted."""

    key: str  # names its cell or item
    id: str  # of the cluster
    cluster: str
    name: str  # in words
    run: str  # name of the call that submitted it
    item: str  # id of the item that needs it
    submitted: str  # ISO 8601
    again: Callable[[], "Job"] | None = None  # submits it anew
    is_own: bool = False  # whether this process has submitted it
    handle: Any = None  # submitit's, of one of its own
    restarts: int = 0
    began_s: float = 0.0  # first seen running, on the monotonic clock
    unseen: int = 0  # looks in a row that did not find it

    def is_of(self, run: str, item: str = "") -> bool:
        """Say whether a call has submitted it, and for this item where one is named."""
        return self.run == run and item in ("", self.item)

    @property
    def tag(self) -> str:
        """Its name among the jobs of all clusters."""
        return f"{self.cluster}-{self.id}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """How a job has ended."""

    value: Any = None  # what its function returned, as JSON
    failure: str = ""  # why there is none


@dataclass(slots=True)
class Jobs:
    """The jobs of this process; leaving the block by an error cancels those that it has submitted."""

    engine: Engine
    _live: dict[str, Job] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _next_look_s: float = 0.0  # on the monotonic clock
    _full_until_s: float = 0.0  # the same

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is not None:
            self.cancel()
        for job in self._live.values():
            _reap(job)

    @property
    def folder(self) -> Path:
        """Where jobs are noted."""
        return Path(self.engine.folder)

    @property
    def has_room(self) -> bool:
        """Whether one more job may be under way."""
        if monotonic() < self._full_until_s:
            return False
        answered = {path.stem for path in self.folder.glob("*.answer")}
        return sum(path.stem not in answered for path in self.folder.glob("*.job")) < self.engine.most

    def get(self, key: str) -> Job | None:
        """Return a job that has not ended."""
        return self._live.get(key)

    def cancel(self, key: str = "") -> None:
        """Cancel the jobs that this process has submitted, or the one that is named."""
        cancel(job for job in list(self._live.values()) if job.is_own and key in ("", job.key))

    def start(self, key: str, name: str, needs: Needs, function: Callable[..., Any], *args: Any) -> bool:
        """Submit a call, or take over the job of this key that is under way; False where there is no room now."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = claim(self.folder / f"{key}.lock")
        if free is None:  # another call is just submitting it
            return False
        again = partial(self._submit, key, name, needs, function, args)
        try:
            with self._turn:
                job = _read(self.folder / f"{key}.job")
                if job is None or (self.folder / f"{key}.answer").exists() or not states_of([job]).get(job.id):
                    if not self.has_room:
                        return False
                    job = again()
                job.again = again
                self._live[key] = job
        except UsageError:
            if not self._live:
                raise
            self._full_until_s = monotonic() + FULL_S
        finally:
            free()
        return key in self._live

    def answer(self, key: str) -> Answer | None:
        """Return how a job has ended, None while it has not; a killed one is submitted again."""
        with contextlib.suppress(FileNotFoundError, RecordError):
            answer = Answer(**read_json(self.folder / f"{key}.answer"))
            _reap(self._live.pop(key))
            return answer
        with self._turn:
            if monotonic() >= self._next_look_s:
                self._look()
                self._next_look_s = monotonic() + LOOK_S
        return None

    def _look(self) -> None:
        try:
            states = states_of(list(self._live.values()))
        except UsageError:  # Slurm does not answer now; what it runs goes on
            return
        for job in list(self._live.values()):
            state = states.get(job.id, "")
            job.began_s = job.began_s or (monotonic() if state == "RUNNING" else 0.0)
            job.unseen = 0 if state in UNDER_WAY else job.unseen + 1
            if job.unseen < 2:  # its answer may still be on its way through the file system
                continue
            if state in FINAL or job.restarts == MOST_RESTARTS:
                why = FINAL.get(state, f"was killed {job.restarts + 1} times ({state or 'gone'})")
                failure = f"job {job.id} {why}\n{_log(self.folder, job)}"
                write_json(self.folder / f"{job.key}.answer", {"failure": failure})
            elif job.again is not None:
                print(f"job {job.id} ({job.name}) was killed; it starts anew", flush=True)
                with contextlib.suppress(UsageError):  # refused for now: the next look tries again
                    self._live[job.key] = replace(job.again(), again=job.again, restarts=job.restarts + 1)

    def _submit(self, key: str, name: str, needs: Needs, function: Callable[..., Any], args: tuple) -> Job:
        import submitit

        engine, answer = self.engine, self.folder / f"{key}.answer"
        answer.unlink(missing_ok=True)
        expected = max(LEAST_MINUTES, MARGIN * needs.expected_s / 60) if needs.expected_s else UNKNOWN_MINUTES
        asked: dict[str, Any] = {"timeout_min": engine.minutes or round(expected), "cpus_per_task": needs.cores}
        asked |= {"name": f"workbench {name}", "slurm_use_srun": False, "slurm_stderr_to_stdout": True}
        asked["mem_gb"] = 0 if needs.alone else needs.cores * MEMORY_GB  # 0: all that the node has
        asked |= {"slurm_exclusive": True} if needs.alone else {}
        asked |= {"slurm_partition": engine.partition} if engine.partition else {}
        asked |= {"slurm_account": engine.account} if engine.account else {}
        asked |= {"gpus_per_node": engine.gpus_per_node if needs.alone else 1} if engine.gpus_per_node else {}
        asked |= {"slurm_additional_parameters": {"requeue": True}}
        try:
            executor = submitit.AutoExecutor(folder=self.folder / "%j", cluster=engine.cluster)
            executor.update_parameters(**asked)
            with _without(OF_THE_RUN):
                submitted = executor.submit(carry_out, str(answer), list(sys.path), function, *args)
        except (RuntimeError, submitit.core.utils.FailedJobError) as error:
            raise UsageError(f"{name} cannot be submitted to {engine.cluster}: {error}") from None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        about: dict[str, Any] = {
            "name": name,
            "run": engine.run,
            "item": os.environ.get(RUN_ITEM, key),
            "submitted": now,
        }
        write_json(self.folder / f"{key}.job", {"id": submitted.job_id, "cluster": engine.cluster} | about)
        return Job(key=key, id=submitted.job_id, cluster=engine.cluster, is_own=True, handle=submitted, **about)


def carry_out(answer: str, paths: list[str], function: Callable[..., Any], *args: Any) -> None:
    """Be a job: call a function, and write what it returns or raises."""
    sys.path += [path for path in paths if path not in sys.path]
    try:
        said = {"value": function(*args)}
    except Exception as error:
        said = {"failure": "".join(traceback.format_exception(error)).rstrip()}
    write_json(Path(answer), said)


def noted(folder: Path) -> list[Job]:
    """Return the jobs noted in a folder that have not answered."""
    jobs = (_read(path) for path in sorted(folder.glob("*.job")) if not path.with_suffix(".answer").exists())
    return [job for job in jobs if job is not None]


def _read(path: Path) -> Job | None:
    try:
        return Job(key=path.stem, **read_json(path))
    except (FileNotFoundError, RecordError, TypeError):
        return None


def tidy(folder: Path) -> list[Job]:
    """Remove what ended jobs have left, and return those under way."""
    jobs = noted(folder)
    states = states_of(jobs)
    live = [job for job in jobs if states.get(job.id) in UNDER_WAY]
    kept = {job.key for job in live} | {job.id for job in live}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.stem not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return live


def states_of(jobs: Iterable[Job]) -> dict[str, str]:
    """Return the states of jobs under way or just ended, by id, in Slurm's words."""
    jobs = list(jobs)
    states = {job.id: "RUNNING" for job in jobs if job.cluster == "local" and _is_running(int(job.id))}
    ids = {job.id for job in jobs if job.cluster == "slurm"}
    if ids:
        lines = _slurm("squeue", "--noheader", "--states=all", f"--user={getpass.getuser()}", "--format=%i %T")
        states |= {id: state for id, state in map(str.split, lines.splitlines()) if id in ids}
    return states


def _is_running(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "submitit.local._local" in process.cmdline()
    except psutil.Error:
        return False


def _reap(job: Job) -> None:
    give_up = monotonic() + REAP_S
    while job.cluster == "local" and job.handle is not None and not job.handle.done() and monotonic() < give_up:
        sleep(0.02)


def cancel(jobs: Iterable[Job]) -> None:
    """Cancel jobs."""
    jobs = list(jobs)
    if ids := [job.id for job in jobs if job.cluster == "slurm"]:
        with contextlib.suppress(UsageError):  # those that have just ended are refused
            _slurm("scancel", *ids)
    for job in jobs:
        if job.cluster == "local" and _is_running(int(job.id)):
            psutil.Process(int(job.id)).send_signal(signal.SIGINT)


def _slurm(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=True)
    except FileNotFoundError:
        raise UsageError(f"{command[0]} is not here: --on slurm works where Slurm's commands are installed") from None
    except subprocess.CalledProcessError as error:
        raise UsageError(f"{command[0]}: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{command[0]} did not answer within {COMMAND_S:g} s") from None
    return done.stdout


def _log(folder: Path, job: Job) -> str:
    for path in sorted((folder / job.id).glob("*_log.*")):
        if text := path.read_text(encoding="utf-8", errors="replace").strip():
            return f"End of its log {path}:\n{text[-LOG_SHOWN:]}"
    return ""


@contextlib.contextmanager
def _without(names: Iterable[str]) -> Iterator[None]:
    kept: Mapping[str, str] = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
