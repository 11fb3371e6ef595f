"""Four ways to fail, for five tools: four ranks start, one raises, one is killed, and their owner is killed.

The ranks form a gloo group and the others wait in a barrier. Timed is until the owner has the error, or until the last
process is gone; inf is longer than the patience. A tool that this Python cannot import has the row "not installed".
"""

import contextlib
import importlib.metadata
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from workbench.study.measuring import Benchmark, BenchmarkRow

NUM_TRIALS = 3
PATIENCE_S = 10.0  # for an error to arrive and for processes to go
START_PATIENCE_S = 120.0
ASKED_S = 2.0  # of the workbench, for each failure

DEEDS = """
import os, torch, torch.distributed as dist

def ready(rank, path):
    dist.init_process_group("gloo", store=dist.FileStore(path, 4), rank=rank, world_size=4)
    dist.all_reduce(torch.ones(1))

def barrier(rank, path):
    dist.barrier()

def raises(rank, path):
    if rank == 2:
        raise ValueError("the second rank is too warm")
    dist.barrier()

def dies(rank, path):
    if rank == 2:
        os.kill(os.getpid(), 9)
    dist.barrier()
"""

OWNER = """
import json, os, sys, time
began_s = time.monotonic()
way, path = sys.argv[1:]
def say(**words):
    print(json.dumps({**words, "time_s": time.monotonic()}), flush=True)
%s
def call(name):
    try:
        call_all(name)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
if __name__ == "__main__":
    start()
    say(began_s=began_s, error=call("ready"))
    sys.stdin.readline()
    if way == "owner":
        time.sleep(600)
    say(error=call(way))
    sys.stdin.readline()
"""

WORKBENCH = """
import deeds
from workbench.launch import PerRank, Ranks
def start():
    global ranks
    ranks = Ranks(4, preload=())
def call_all(name):  # the group is there already
    ranks.run(getattr(deeds, "barrier" if name == "ready" else name), PerRank(range(4)), path)
"""
CELLS = """
from workbench.notebook.cell_ranks import CellRanks
from workbench.notebook.names import Cell
def start():
    global ranks
    ranks = CellRanks(4, preload=())
def call_all(name):
    name = "barrier" if name == "ready" else name
    ranks.run_cell(Cell(name="<cell 1>", source=f"import deeds\\ndeeds.{name}(rank, None)"))
"""
IPYPARALLEL = """
import deeds, ipyparallel
from concurrent.futures import FIRST_EXCEPTION
def start():
    global view
    view = ipyparallel.Cluster(n=4, log_level=40).start_and_connect_sync()[:]
def call_all(name):  # %px waits for all; this is what the library has beside it
    view.map_async(getattr(deeds, name), range(4), [path] * 4).get(return_when=FIRST_EXCEPTION)
"""
JUPYTER_DISTRIBUTED = """
import asyncio
from jupyter_distributed.kernel_group import DistributedKernelGroup
loop = asyncio.new_event_loop()
def start():
    global group
    group = DistributedKernelGroup(4)
    loop.run_until_complete(group.start())
def call_all(name):
    code = f"import os, deeds\\ndeeds.{name}(int(os.environ['RANK']), {path!r})"
    for one in loop.run_until_complete(group.execute(code)).ranks:
        if one.status != "ok":
            raise RuntimeError(repr(one))
"""
RAY = """
import deeds, ray
def start():
    global actors
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    @ray.remote(num_cpus=1)
    class Rank:
        def do(self, name, *args):
            return getattr(deeds, name)(*args)
    actors = [Rank.remote() for _ in range(4)]
def call_all(name):
    ray.get([actor.do.remote(name, rank, path) for rank, actor in enumerate(actors)])
"""
MONARCH = """
import deeds, monarch.actor
from monarch.actor import Actor, current_rank, endpoint, this_host
monarch.actor.unhandled_fault_hook = lambda failure: None
class Rank(Actor):
    @endpoint
    def do(self, name, path):
        getattr(deeds, name)(current_rank().rank, path)
def start():
    global actors
    actors = this_host().spawn_procs({"ranks": 4}).spawn("ranks", Rank)
def call_all(name):  # call() waits for all; this hears each as it ends
    for answer in actors.do.stream(name, path):
        answer.get()
"""
TOOLS = {  # name: distribution, script
    "workbench, Ranks": ("distributed-training-workbench", WORKBENCH),
    "workbench, %%ranks": ("distributed-training-workbench", CELLS),
    "ipyparallel": ("ipyparallel", IPYPARALLEL),
    "jupyter-distributed": ("jupyter-distributed", JUPYTER_DISTRIBUTED),
    "ray": ("ray", RAY),
    "torchmonarch": ("torchmonarch", MONARCH),
}
WAYS = {"raises": "a rank raises", "dies": "a rank is killed", "owner": "the owner is killed"}


class Trial:
    """One owner with its four ranks, and what it said."""

    def __init__(self, script: str, way: str, folder: Path):
        (folder / "deeds.py").write_text(DEEDS)
        (folder / "owner.py").write_text(OWNER % script)
        paths = [str(folder), *sys.path, os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.errors = (folder / "errors.txt").open("w")
        self.owner = subprocess.Popen(
            [sys.executable, folder / "owner.py", way, folder / "meeting"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            start_new_session=True,
        )
        os.set_blocking(self.owner.stdout.fileno(), False)
        self.rest = b""

    def hear(self, patience_s: float) -> dict | None:
        """Return the next JSON line of the owner, None if it does not come in time or the owner ends."""
        ends_s = time.monotonic() + patience_s
        while time.monotonic() < ends_s:
            self.rest += self.owner.stdout.read() or b""
            *lines, self.rest = self.rest.split(b"\n")
            for line in lines:
                if line.startswith(b'{"'):
                    return json.loads(line)
            if self.owner.poll() is not None:
                return None
            time.sleep(0.01)
        return None

    def go(self) -> float:
        """Let the owner go on; return the time."""
        now_s = time.monotonic()
        self.owner.stdin.write(b"\n")
        self.owner.stdin.flush()
        return now_s

    def close(self, family: list[psutil.Process]) -> None:
        """Kill what is left."""
        self.owner.kill()
        self.owner.wait()
        for process in living(family):
            process.kill()
        self.owner.stdin.close()
        self.owner.stdout.close()
        self.errors.close()


def living(family: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that run; the dead but unreaped do not."""
    left = []
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left


def measure(script: str, way: str) -> tuple[float, float, int]:
    """Return the seconds of the start and of the failure, and how many processes outlive a killed owner."""
    with tempfile.TemporaryDirectory() as name:
        trial, family = Trial(script, way, Path(name)), []
        try:
            ready = trial.hear(START_PATIENCE_S)
            if ready is None or ready["error"]:
                print(f"did not start: {ready}\n{(Path(name) / 'errors.txt').read_text()[-1000:]}")
                return math.inf, math.nan, 0
            owner = psutil.Process(trial.owner.pid)
            family = [owner, *owner.children(recursive=True)]
            began_s = trial.go()
            start_s = ready["time_s"] - ready["began_s"]
            if way == "owner":
                owner.kill()
                while living(family) and time.monotonic() < began_s + PATIENCE_S:
                    trial.owner.poll()
                    time.sleep(0.01)
                left = len(living(family))
                return start_s, math.inf if left else time.monotonic() - began_s, left
            said = trial.hear(PATIENCE_S)
            is_told = said is not None and bool(said["error"])
            return start_s, said["time_s"] - began_s if is_told else math.inf, 0
        finally:
            trial.close(family)


def four_ways() -> list[BenchmarkRow]:
    """Take the tools in turn, so that all meet the same weather."""
    installed, rows = {}, []
    for name, (distribution, script) in TOOLS.items():
        try:
            version = importlib.metadata.version(distribution)
            installed[f"{name} {version}"] = script
        except importlib.metadata.PackageNotFoundError:
            rows.append(BenchmarkRow(name=f"{name}: not installed", figure=math.nan, unit=""))
    trials: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    for name, way in [*itertools.product(installed, WAYS)] * NUM_TRIALS:
        trials.setdefault((name, way), []).append(measure(installed[name], way))
    for name in installed:
        starts = [start_s for way in WAYS for start_s, _, _ in trials[name, way]]
        rows.append(BenchmarkRow(name=f"{name}: 4 ranks ready", figure=median(starts), unit="s"))
        for way, words in WAYS.items():
            seconds = median([seconds for _, seconds, _ in trials[name, way] if not math.isnan(seconds)] or [math.nan])
            asked = {"asked": f"at most {ASKED_S:g} s", "holds": seconds <= ASKED_S} if "workbench" in name else {}
            rows.append(BenchmarkRow(name=f"{name}: {words}", figure=seconds, unit="s", **asked))
        left = max(left for _, _, left in trials[name, "owner"])
        rows.append(BenchmarkRow(name=f"{name}: processes left", figure=left, unit="processes"))
    return rows


BENCHMARKS = [Benchmark(name="four-ways-to-fail", asks="How soon is a failure known, and what is left?", run=four_ways)]
