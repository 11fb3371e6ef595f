"""Cells and items as jobs: on processes of this machine, and on a real Slurm of two nodes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import slurm_cluster
from cell_functions import score
from processes_seen import assert_all_dead_within, family, wait_for, wait_for_text
from toy_project import RECORD, ToyProject

from workbench.cli.reproduce import minutes_of
from workbench.reproduction import CellsFailed, UsageError, run_cells
from workbench.reproduction.jobs import Engine, Jobs, noted, states_of, tidy

ITEM = "toy/table-1/counted"
TASKS = [{"task": "rte", "seed": seed} for seed in range(8)]
WAITING = """
from cell_functions import waits
from workbench.reproduction import run_cells
run_cells(item, waits, [{{"place": place, "folder": {folder!r}}} for place in range({number})])
"""


@pytest.fixture
def engine(toy: ToyProject, monkeypatch):
    """Return what makes cells jobs, and returns the folder where they are noted."""

    def use(cluster: str, **options) -> Path:
        folder = toy.root / "results/laptop/.jobs"
        variables = Engine(cluster=cluster, folder=str(folder), run="this", **options).as_variable()
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        return folder

    return use


@pytest.mark.parametrize(
    ("text", "minutes"), [("", 0), ("90", 90), ("2:00:00", 120), ("1-02:30:01", 26 * 60 + 31), ("5:30", 6)]
)
def test_a_time_is_read_as_slurm_reads_it(text, minutes):
    assert minutes_of(text) == minutes
    with pytest.raises(UsageError, match="--time is '2 h'"):
        minutes_of("2 h")


@pytest.mark.slow
def test_cells_run_as_jobs_of_this_machine_and_each_failure_is_named(toy, engine):
    folder = engine("local", max_jobs=2)
    strange = [{"task": task, "seed": 1} for task in ("raises", "dies")]
    with pytest.raises(CellsFailed) as failed:
        run_cells(ITEM, score, [TASKS[3], *strange], timeout_s=60.0)
    text = str(failed.value)
    assert text.startswith("2 of 3 cells failed (") and "ValueError: no such task" in text and "signal 9" in text
    (result,) = run_cells(ITEM, score, [TASKS[3]])
    assert result.reused and result.values == {"task": "rte", "score": 6.0}
    assert noted(folder) == tidy(folder) == [] and list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    if why := slurm_cluster.missing():
        pytest.skip(f"Slurm is not here: {why}")
    with slurm_cluster.slurm_cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture
def slurm(daemons, monkeypatch):
    """A cluster of the nodes n1 and n2, one cell each; n1 alone is the partition `one`."""
    for name, text in (daemons | {"PYTHONPATH": str(Path(__file__).parent)}).items():
        monkeypatch.setenv(name, text)
    yield lambda *command: subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    subprocess.run(["scancel", f"--user={os.getuid()}"], timeout=30, check=True)


def head(toy: ToyProject, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "workbench.cli", "reproduce", "--profile", "laptop", "--on", "slurm", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    toy.runners.append(subprocess.Popen(command, cwd=toy.root, start_new_session=True, **pipes))
    return toy.runners[-1]


def waiting_cells(toy: ToyProject, folder: Path, number: int) -> None:
    toy.notebook("one", WAITING.format(folder=str(folder), number=number), RECORD)


def pids_of(folder: Path, place: int) -> list[int]:
    return [int(line) for line in wait_for_text(folder / f"ran-{place}").split()]


@pytest.mark.slow
def test_eight_cells_run_on_both_nodes_and_no_more_jobs_wait_than_are_allowed(toy, engine, slurm, monkeypatch):
    folder, submit, counts = engine("slurm", max_jobs=3), Jobs._submit, []
    monkeypatch.setattr(Jobs, "_submit", lambda *args: counts.append(len(noted(folder))) or submit(*args))
    results = run_cells(ITEM, score, TASKS)
    assert [result.values["score"] for result in results] == [seed * 2.0 for seed in range(8)]
    stored = [path.read_text() for path in (toy.root / "results/laptop/toy/cells/score").glob("*.json")]
    assert len(stored) == len(counts) == 8 and max(counts) == 2
    for node in ("n1", "n2"):
        assert sum(f'"partition": "low", "node": "{node}"' in text for text in stored) >= 2


@pytest.mark.slow
def test_an_item_of_no_cells_is_a_job_and_wrong_options_are_refused_in_one_line(toy, slurm):
    runner = head(toy, "--partition", "one", "--time", "5")
    out, _ = runner.communicate(timeout=200)
    assert runner.returncode == 0 and "toy/table-1/counted  recorded in" in out, out
    machine = toy.record()["machine"]["slurm"]
    assert (machine["partition"], machine["node"]) == ("one", "n1")
    assert not list((toy.root / "results/laptop").glob(".partial*"))
    runner = head(toy, "--partition", "none", "--fresh")
    out, _ = runner.communicate(timeout=200)
    assert runner.returncode == 1 and "invalid partition" in out, out


@pytest.mark.slow
def test_a_killed_cell_starts_anew_and_a_preempted_one_is_requeued(toy, slurm, tmp_path):
    waiting_cells(toy, tmp_path, 3)
    runner = head(toy)
    (first,) = pids_of(tmp_path, 1)
    worker = next(parent for parent in psutil.Process(first).parents() if "submitit.core._submit" in parent.cmdline())
    worker.kill()
    (job,) = pids_of(tmp_path, 2) and [job for job in noted(toy.root / "results/laptop/.jobs") if "place 2" in job.name]
    wait_for(lambda: len(pids_of(tmp_path, 1)) == 2, 60.0)
    node = slurm("squeue", "--noheader", f"--jobs={job.id}", "--format=%N").strip()
    slurm("sbatch", "--partition=high", f"--nodelist={node}", "--output=/dev/null", "--wrap=true")
    wait_for(lambda: states_of([job])[job.id] == "PENDING", 60.0)

    def runs_again() -> bool:
        command = ["scontrol", "update", f"JobId={job.id}", "StartTime=now"]  # Slurm itself would wait two minutes
        subprocess.run(command, capture_output=True, timeout=30)
        time.sleep(0.5)
        return len(pids_of(tmp_path, 2)) == 2

    wait_for(runs_again, 90.0)
    for place in (1, 2):
        (tmp_path / f"go-{place}").touch()
    out, _ = runner.communicate(timeout=200)
    assert runner.returncode == 0 and toy.record()["cells"][0]["num_cells"] >= 1, out
    assert len(list((toy.root / "results/laptop/toy/cells/waits").glob("*.json"))) == 3
    assert [len(pids_of(tmp_path, place)) for place in range(3)] == [1, 2, 2]


@pytest.mark.slow
def test_a_job_that_the_queue_refuses_is_submitted_once_the_queue_has_room(toy, slurm, tmp_path):
    waiting_cells(toy, tmp_path, 4)
    runner, folder = head(toy, "--max-jobs", "2"), toy.root / "results/laptop/.jobs"
    pids_of(tmp_path, 2)
    slurm("scontrol", "update", "PartitionName=low", "State=DRAIN")  # it now refuses jobs
    try:
        (tmp_path / "go-1").touch()
        wait_for(lambda: len(list((toy.root / "results/laptop/toy/cells/waits").glob("*.json"))) == 2, 30.0)
        time.sleep(3.0)
        assert not any("place 3" in job.name for job in noted(folder)) and runner.poll() is None
    finally:
        slurm("scontrol", "update", "PartitionName=low", "State=UP")
    pids_of(tmp_path, 3)
    for place in (2, 3):
        (tmp_path / f"go-{place}").touch()
    out, _ = runner.communicate(timeout=200)
    assert runner.returncode == 0 and "toy/table-1/counted  recorded in" in out, out


@pytest.mark.slow
def test_a_dead_head_leaves_jobs_that_the_next_call_takes_and_an_interrupt_cancels_its_own(toy, slurm, tmp_path):
    waiting_cells(toy, tmp_path, 4)  # two run, one waits in the queue
    runner, folder = head(toy), toy.root / "results/laptop/.jobs"
    (first,) = pids_of(tmp_path, 1)
    beside = family(runner.pid)
    runner.kill()
    runner.communicate(timeout=200)
    assert_all_dead_within(beside, 20.0)
    left = {job.id for job in noted(folder)}
    (tmp_path / "go-1").touch()
    second = head(toy)
    pids_of(tmp_path, 2)
    assert left and left >= {job.id for job in noted(folder) if "place 2" in job.name}
    wait_for(lambda: any("place 3" in job.name for job in noted(folder)), 60.0)
    second.send_signal(signal.SIGINT)
    out, _ = second.communicate(timeout=200)
    assert second.returncode == 130 and pids_of(tmp_path, 1) == [first], out
    wait_for(
        lambda: {job.id for job in noted(folder) if states_of([job]).get(job.id) in ("RUNNING", "PENDING")} <= left
    )
    command, pipes = [sys.executable, "-m", "workbench.cli"], {"capture_output": True, "text": True, "timeout": 200}
    refused = subprocess.run([*command, "reproduce", "-p", "laptop"], **pipes)
    assert refused.returncode == 2 and "of an earlier run are under way" in refused.stderr
    listed = subprocess.run([*command, "jobs", "--cancel"], **pipes)
    assert "waits place 2" in listed.stdout and "cancelled" in listed.stdout


@pytest.mark.slow
def test_ranks_run_where_srun_has_started_them(slurm, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import torch.distributed as dist\nfrom workbench.launch import run_on_ranks\n")
    with script.open("a") as file:
        file.write("print(run_on_ranks(dist.get_rank, 2), run_on_ranks(dist.get_world_size, None))\n")
    out = slurm("srun", "--nodes=2", "--ntasks-per-node=1", sys.executable, str(script))
    assert out.splitlines() == ["[0, 1] [2, 2]"] * 2
