"""The run of one item: its notebook by papermill, in a kernel that cannot outlive its runner and a folder of its own.

papermill runs in a thread of the runner, since importing it for each item would cost more than a second; whatever can
hang or die is in the kernel's processes.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import psutil

from workbench.checkout import RESULTS_VARIABLE, ROOT_VARIABLE
from workbench.launch.forking import ForkedProcess
from workbench.launch.kernel_server import THREADS_VARIABLE, KernelServer
from workbench.launch.tether import tethered
from workbench.reproduction.cells.store import CELLS_FILE, origins
from workbench.reproduction.comparing import Verdict
from workbench.reproduction.errors import RecordError
from workbench.reproduction.files import checksums, claim, write_json, write_record
from workbench.reproduction.fingerprint import Fingerprinter
from workbench.reproduction.jobs import Engine, cancel, noted
from workbench.reproduction.machine import commit_of
from workbench.reproduction.notebook_cells import read_notebook
from workbench.reproduction.project import ItemRun
from workbench.reproduction.recording import KEEP_CELLS, RECORDING_FILE, RUN_DIR, RUN_ITEM, RUN_PROFILE, verdicts_of
from workbench.reproduction.records import FAILURE_FILE, RECORD_FILE, SCHEMA, read_record
from workbench.reproduction.runner.plan import Action, ItemOutcome, Status, plan
from workbench.reproduction.runner.watch import Watch
from workbench.reproduction.schema import ARTIFACTS, FAILED_ARTIFACTS
from workbench.rows.progress import PROGRESS_VARIABLE, HowFar

__all__ = ["INTERRUPTED", "Execution", "Failure", "clear", "partial_folder", "place_failure", "place_record", "sweep"]

NOTEBOOK_FILE, LOG_FILE = ARTIFACTS["notebook"], ARTIFACTS["log"]
PARTIAL = ".partial-"
REPLACED = ".replaced"
FAILED_NOTEBOOK, FAILED_LOG = FAILED_ARTIFACTS["notebook"], FAILED_ARTIFACTS["log"]  # what is left of a failed run
SWEEP_PATIENCE_S = 5.0  # seconds a dying kernel may go on writing into a folder that is being removed
INTERRUPTED = "the run was interrupted"
CONNECTION_FILE = ".kernel.json"
TEMPORARY = ".tmp"  # folder of temporary files of the kernel and its ranks: it goes with the run, also after a kill
PROGRESS_FILE = f"{TEMPORARY}/progress.json"
START_PATIENCE_S = 60  # seconds a kernel may take to answer, generous for a cold disk
LOG_SHOWN = 2000  # characters of the log's end that a failure repeats
TURN_S = 1.0  # seconds between two looks at an item that another call runs
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True)
class Execution:
    """One item being run, which can be stopped from another thread."""

    place: ItemRun  # what runs, and where it goes
    kernel_asked: str | None = None  # name of a Jupyter kernel; None for the notebook's own
    keep_cells: bool = False  # accept cells that are out of date
    server: KernelServer | None = None  # forks this Python's own kernels; None starts each anew
    engine: Engine | None = None  # where its cells are jobs; None for processes of this machine
    job: str = ""  # name of the job that runs it, if one does
    threads: int = 0  # of torch in its kernel, where others run beside it; 0 is torch's own choice
    kernel: "KernelProcess" = field(default_factory=lambda: KernelProcess())
    fingerprint: Mapping[str, Any] = field(default_factory=dict)  # as the item starts: a change during the run counts
    started: str = ""  # ISO 8601
    seconds: float = 0.0  # it took, once it has ended
    _began: float = 0.0
    _watch: Watch | None = None
    _free: Callable[[], None] | None = None  # lets other calls run the item, where they may

    @property
    def kernel_name(self) -> str:
        """The kernel it runs in."""
        return self.kernel_asked or read_notebook(self.place.project.notebook(self.place.item)).kernel

    @property
    def is_job(self) -> bool:
        """Whether it runs as a job rather than beside the runner."""
        return False

    @property
    def folder(self) -> Path:
        """The folder it writes into, until it is moved into place."""
        return partial_folder(self.place.project.results_of(self.place.profile), self.job) / self.place.item.id

    def run(self) -> ItemOutcome:
        """Run the notebook, judge its recording and place its record; every error is in the outcome."""
        try:
            if self.engine is not None and self._waits_for_another_call():
                (now,) = plan(self.place.project, [self.place.item], self.place.profile, kernel=self.kernel_asked)
                if now.action is Action.NOTHING:
                    return ItemOutcome(id=self.place.item.id, status=Status.UP_TO_DATE)
            self.fingerprint = Fingerprinter(self.place.project)(self.place.item, self.place.profile, self.kernel_asked)
            failure = self.execute()
            if failure is None:
                verdicts = place_record(self)["verdicts"]
                silent = [verdict for verdict in verdicts if verdict["verdict"] == Verdict.NOT_COMPARABLE]
                return ItemOutcome(
                    id=self.place.item.id,
                    status=Status.RECORDED,
                    seconds=self.seconds,
                    verdicts=dict(Counter(verdict["verdict"] for verdict in verdicts)),
                    not_comparable={verdict["claim"]: verdict["reason"] for verdict in silent},
                )
        except Exception as error:  # of this item alone: a full disk, a claim that cannot be judged
            failure = Failure.of(error)
        finally:
            if self._free is not None:
                self._free()
        if self.kernel.stopped_because != INTERRUPTED:
            place_failure(self, failure)
        return ItemOutcome(id=self.place.item.id, status=Status.FAILED, seconds=self.seconds, reason=failure.reason)

    def _waits_for_another_call(self) -> bool:
        """Lock the item, and return whether another call had to end first."""
        assert self.engine is not None
        path, has_waited = Path(self.engine.folder) / f"{self.place.item.id.replace('/', '.')}.item", False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while (free := claim(path)) is None and not self.kernel.stopped_because:
            has_waited = True
            sleep(TURN_S)
        self._free = free
        return has_waited

    def stop(self, because: str) -> None:
        """End the kernel and everything below it; an interrupt ends all kernels, also those that are to start."""
        self.kernel.stop(because)
        if self.engine is not None and because != INTERRUPTED:  # its cells: the kernel that has submitted them is dead
            cancel(job for job in noted(Path(self.engine.folder)) if job.is_of(self.engine.run, self.place.item.id))
        if because == INTERRUPTED and self.server is not None:
            self.server.close()

    @property
    def has_kernel(self) -> bool:
        """Whether its kernel has been started."""
        return self.kernel.is_started

    def seconds_so_far(self) -> float:
        """Return the seconds since it began, 0 before that."""
        return monotonic() - self._began if self._began else 0.0

    def how_far(self, expected_s: float) -> HowFar | None:
        """Return how far it is and the seconds to go, of which `expected_s` were expected; None before its notebook."""
        self._watch = self._watch or Watch(self.folder / PROGRESS_FILE, self.folder / NOTEBOOK_FILE)
        return self._watch.look(expected_s)

    def execute(self) -> "Failure | None":
        """Execute the notebook; return why it failed, or None once its recording is there."""
        self.started, self._began = datetime.now(UTC).isoformat(timespec="seconds"), monotonic()
        try:
            (self.folder / TEMPORARY).mkdir(parents=True, exist_ok=True)
            with (self.folder / LOG_FILE).open("a", encoding="utf-8", buffering=1) as log:
                self._call_papermill(log)
            if not (self.folder / RECORDING_FILE).exists():
                raise LookupError(f"{self.place.item.notebook} ended without calling record(...)")
        except Exception as error:  # whatever it is, it is this item's failure and no other's
            return self._failure(error)
        finally:
            self.seconds = monotonic() - self._began
            (self.folder / CONNECTION_FILE).unlink(missing_ok=True)
            shutil.rmtree(self.folder / TEMPORARY, ignore_errors=True)
        return None

    def _call_papermill(self, log: Any) -> None:
        import papermill

        environment = {
            RUN_DIR: str(self.folder),
            RUN_ITEM: self.place.item.id,
            RUN_PROFILE: self.place.profile,
            ROOT_VARIABLE: str(self.place.project.root),
            RESULTS_VARIABLE: str(self.place.project.results),
            KEEP_CELLS: "1" if self.keep_cells else "0",
            "TMPDIR": str(self.folder / TEMPORARY),
            PROGRESS_VARIABLE: str(self.folder / PROGRESS_FILE),
            **({THREADS_VARIABLE: str(self.threads)} if self.threads else {}),
            **(self.engine.as_variable() if self.engine else {}),
        }
        source = self.place.project.notebook(self.place.item)
        papermill.execute_notebook(
            _no_format(source),
            _no_format(self.folder / NOTEBOOK_FILE),
            parameters={"item": self.place.item.id, **self.place.item.parameters[self.place.profile]},
            kernel_name=self.kernel_name,
            progress_bar=False,
            start_timeout=START_PATIENCE_S,
            stdout_file=log,
            stderr_file=log,
            kernel_manager_class=_tethered_kernel_manager(
                self.kernel, self.server, environment, source.parent, self.folder / CONNECTION_FILE, log
            ),
        )

    def _failure(self, error: Exception) -> "Failure":
        if self.kernel.stopped_because:
            return Failure(reason=self.kernel.stopped_because, traceback=_last_cell_and_log(self.folder))
        died = isinstance(error, RuntimeError) and "kernel died" in str(error).lower()  # nbclient, jupyter_client
        if died and not hasattr(error, "ename"):
            return Failure(reason=_end_of_kernel(self.kernel.exit_code), traceback=_last_cell_and_log(self.folder))
        return Failure.of(error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why an item failed."""

    reason: str  # in one line
    traceback: str  # as the notebook or the runner saw it

    def __post_init__(self) -> None:
        for name in ("reason", "traceback"):  # a lone surrogate could be neither shown nor written
            object.__setattr__(self, name, getattr(self, name).encode("utf-8", "backslashreplace").decode("utf-8"))

    @classmethod
    def of(cls, error: Any) -> "Failure":
        """Return the failure that an exception is; one that a cell raised has the kernel's own traceback."""
        if hasattr(error, "ename"):
            trace = COLOURS.sub("", "\n".join(error.traceback))
            return cls(reason=_reason(error.ename, error.evalue, trace), traceback=trace)
        trace = "".join(traceback.format_exception(error))
        return cls(reason=_reason(type(error).__name__, str(error), trace), traceback=trace)


def _reason(name: str, text: str, trace: str) -> str:
    """Return an exception in one line; where its text is empty, the last line of its traceback."""
    if text.strip():
        return f"{name}: {text.strip().splitlines()[0]}"
    last = next((line.strip() for line in reversed(trace.splitlines()) if line.strip()), name)
    return last.rstrip(":") if name in last else f"{name}: {last}"


def _no_format(path: Path) -> str:
    return str(path).replace("{", "{{").replace("}", "}}")  # papermill formats its paths with the parameters


def _end_of_kernel(exit_code: int | None) -> str:
    number = 0 if exit_code is None else -exit_code if exit_code < 0 else exit_code - 128 if exit_code > 128 else 0
    if number == 9:
        return "the kernel was killed by signal 9, likely out of memory or from outside"
    if number:
        return f"the kernel was killed by signal {number}"
    return f"the kernel ended by itself (exit code {exit_code})"


def _last_cell_and_log(folder: Path) -> str:
    try:
        cells = json.loads((folder / NOTEBOOK_FILE).read_text(encoding="utf-8"))["cells"]
        log = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, KeyError):
        return "it had not begun its first cell"
    begun = [cell for cell in cells if cell.get("metadata", {}).get("papermill", {}).get("start_time")]
    source = "".join(begun[-1]["source"]) if begun else "none yet"
    return f"The last cell it began:\n{source}\n\nEnd of the log:\n{log[-LOG_SHOWN:]}"


@dataclass(slots=True)
class KernelProcess:
    """The tether of one item's kernel, which can be stopped from another thread at any moment."""

    stopped_because: str = ""  # why it was stopped; empty while it was not
    _process: subprocess.Popen | ForkedProcess | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def started(self, process: subprocess.Popen | ForkedProcess) -> None:
        """Take note of the tether's process, and end it at once if a stop came first."""
        with self._lock:
            self._process = process
            if self.stopped_because:
                _end(process)

    def stop(self, because: str) -> None:
        """End the kernel and everything below it; a later kernel ends as it starts."""
        with self._lock:
            self.stopped_because = self.stopped_because or because
            if self._process is not None:
                _end(self._process)

    @property
    def is_started(self) -> bool:
        """Whether there is a process yet."""
        return self._process is not None

    @property
    def exit_code(self) -> int | None:
        """Exit status of the tether once it has ended; negative for a signal."""
        return None if self._process is None else self._process.poll()


def _end(process: subprocess.Popen | ForkedProcess) -> None:
    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    process.kill()  # a signal that cannot be passed on: the tether's guard sees its end and kills all that is below
    for child in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _tethered_kernel_manager(
    kernel: KernelProcess,
    server: KernelServer | None,
    environment: Mapping[str, str],
    working_folder: Path,
    connection: Path,
    log: Any,
) -> type:
    """Return the kernel manager class of one item; output past Jupyter, such as that of a crash, goes to the log."""
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_client.provisioning import LocalProvisioner
    from traitlets import Unicode

    class ForkingProvisioner(LocalProvisioner):
        process: Any

        async def launch_kernel(self, cmd: list[str], **options: Any) -> Any:
            assert server is not None
            folder = options["cwd"]
            self.process = server.start(cmd, environment=options["env"], folder=folder, output=log.fileno())
            self.pid, self.cwd = self.process.pid, folder  # no group: signals go to the tether, which passes them on
            return self.connection_info

    class TetheredKernelManager(AsyncKernelManager):
        connection_file = Unicode(str(connection))
        if sys.platform.startswith("linux"):  # abstract sockets: two kernels never meet on a TCP port, no file is left
            transport = Unicode("ipc")
            ip = Unicode(f"@workbench-{uuid4().hex}")

        @property
        def is_forked(self) -> bool:
            spec: Any = self.kernel_spec
            its_own = spec.argv[0] in ("python", sys.executable) and spec.argv[1:3] == ["-m", "ipykernel_launcher"]
            return server is not None and its_own and not spec.env

        def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
            command = super().format_kernel_cmd(extra_arguments)
            return command[3:] if self.is_forked else tethered(command, os.getpid())

        async def _async_pre_start_kernel(self, **options: Any) -> Any:
            options |= {"env": {**os.environ, **environment}, "cwd": str(working_folder), "stdout": log, "stderr": log}
            options["transport_encryption"] = "auto"  # where the kernel can; others on this machine then cannot listen
            if self.is_forked:
                names = {"kernel_id": self.kernel_id, "kernel_spec": self.kernel_spec, "parent": self}
                self.provisioner = self.provisioner or ForkingProvisioner(**names)
            return await super()._async_pre_start_kernel(**options)

        async def _async_launch_kernel(self, kernel_cmd: list[str], **kw: Any) -> None:
            await super()._async_launch_kernel(kernel_cmd, **kw)
            provisioner: Any = self.provisioner
            kernel.started(provisioner.process)

    return TetheredKernelManager


# A finished item is moved into place whole, a failed one keeps its old record, and dead runners are swept up. The lock
# on results/<profile> is held, so every partial folder of another runner is that of a dead one.


def partial_folder(results: Path, job: str = "") -> Path:
    """Return the folder this runner, or a job, works in."""
    return results / f"{PARTIAL}{job or os.getpid()}"


def place_record(run: Execution) -> dict[str, Any]:
    """Judge a recording, seal its record, move its folder into place; on errors the old record stays."""
    recording = json.loads((run.folder / RECORDING_FILE).read_text(encoding="utf-8"))
    record = _record(run, recording)
    for name in (RECORDING_FILE, CELLS_FILE):  # their content is in the record
        (run.folder / name).unlink(missing_ok=True)
    record = write_record(run.folder / RECORD_FILE, record)
    _swap(run.folder, run.place.folder)
    return record


def _record(run: Execution, recording: dict[str, Any]) -> dict[str, Any]:
    item, profile = run.place.item, run.place.profile
    verdicts = [verdict.to_json() for verdict in verdicts_of(run.place.project, item, recording)]
    artifacts = {"notebook": NOTEBOOK_FILE, "log": LOG_FILE, **recording["artifacts"]}
    about = {
        "schema": SCHEMA,
        "id": item.id,
        "technique": item.technique,
        "item": item.item,
        "evidence": item.evidence.value,
        "title": item.title,
        "profile": profile,
        "notebook": item.notebook,
        "kernel": run.kernel_name,
    }
    facts = {
        "verdicts": [] if profile == "smoke" else verdicts,
        "parameters": dict(item.parameters[profile]),
        "commit": commit_of(run.place.project.root),
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "fingerprint": run.fingerprint,
        "artifacts": artifacts,
        "artifact_sha256": checksums(run.folder, artifacts),
    }
    cells = origins(run.folder)
    return about | recording | facts | ({"cells": cells} if cells else {})


def _swap(folder: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f"{folder.name}{REPLACED}")
    if target.exists():
        os.rename(target, aside)
    try:
        os.rename(folder, target)
    except OSError:
        if aside.exists():
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def place_failure(run: Execution, failure: Failure) -> None:
    """Keep the files of a failed run beside the old record; on a full disk failure.json alone, if it has room."""
    target, kept = run.place.folder, {"notebook": (NOTEBOOK_FILE, FAILED_NOTEBOOK), "log": (LOG_FILE, FAILED_LOG)}
    with contextlib.suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
        for source, name in kept.values():
            if (run.folder / source).exists():
                os.replace(run.folder / source, target / name)
    clear(run.folder)
    artifacts = {kind: name for kind, (_, name) in kept.items() if (target / name).exists()}
    content = {
        "schema": SCHEMA,
        "id": run.place.item.id,
        "profile": run.place.profile,
        "message": failure.reason,
        "reason": failure.reason,
        "traceback": failure.traceback,
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "fingerprint": run.fingerprint,
    }
    try:
        write_json(target / FAILURE_FILE, content | {"artifacts": artifacts})
    except OSError:
        with contextlib.suppress(OSError):
            for _, name in kept.values():
                (target / name).unlink(missing_ok=True)
            write_json(target / FAILURE_FILE, content | {"artifacts": {}})


def sweep(results: Path, jobs: Collection[str] = ()) -> None:
    """Move into place the items that dead runners had finished, and remove the rest; what cannot move stays.

    The folders of the named jobs, which are under way, stay, too.
    """
    for partial in set(results.glob(f"{PARTIAL}*")) - {partial_folder(results, job) for job in jobs}:
        folders = [folder for folder in partial.glob("*/*/*") if folder.suffix != REPLACED]
        moved = [
            _settle(folder, results / folder.relative_to(partial))
            for folder in folders
            if _is_whole(folder, folder.relative_to(partial).as_posix(), results.name)
        ]
        for aside in partial.glob(f"*/*/*{REPLACED}"):
            target = (results / aside.relative_to(partial)).with_suffix("")
            moved.append(target.exists() or _settle(aside, target))
        if all(moved):
            clear(partial)


def _is_whole(folder: Path, id: str, profile: str) -> bool:
    try:
        read_record(folder / RECORD_FILE, id=id, profile=profile)
    except (FileNotFoundError, NotADirectoryError, RecordError):
        return False
    return True


def _settle(folder: Path, target: Path) -> bool:
    try:
        _swap(folder, target)
    except OSError:  # another technique's folder that is a file, or on another disk, is no reason to run nothing
        return False
    return True


def clear(folder: Path) -> None:
    """Remove a folder, also while a dying kernel still writes into it."""
    give_up = monotonic() + SWEEP_PATIENCE_S
    while folder.exists() and monotonic() < give_up:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            sleep(0.05)
