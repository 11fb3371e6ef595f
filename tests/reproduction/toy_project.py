"""A small project in a temporary folder, and a runner of it in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil

HEADER = """
from workbench.reproduction import Crossover, Evidence, Ordering, Reproduction, Trend, Within
ITEM = dict(technique="toy", evidence=Evidence.COUNTED, title="A toy", published="numbers.csv")
PARAMETERS = {"smoke": {"size": 2}, "laptop": {"size": 4}}
WITHIN = Within("twice the size", quantity="bytes", where={"method": "A1"}, rel=0.0, because="it is counted")
"""
PUBLISHED = "quantity,method,value,unit,source\nbytes,A1,8,bytes,table 1\n"
RECORD = 'from workbench.reproduction import record\nrecord(item, [{"quantity": "bytes", "method": "A1", "value": 2 * size, "unit": "bytes"}])'
PARAMETERS_CELL = 'item = "toy/table-1/counted"  # id\nsize = 1  # elements'
DRIVER = """
import dataclasses, json, sys
from workbench.reproduction import Project, UsageError, load_catalogue, run, select

options = json.loads(sys.argv[1])
project = Project()
def tell(event):
    if type(event).__name__ == "ItemStarted":
        print("started", event.id, flush=True)
try:
    outcome = run(project, select(load_catalogue(project), options.pop("patterns", [])), on_event=tell, **options)
except UsageError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
except KeyboardInterrupt:
    sys.exit(130)
heavy = [name for name in ("torch", "papermill", "pandas", "nbformat") if name in sys.modules]
print(json.dumps({"items": [dataclasses.asdict(item) for item in outcome.items], "seconds": outcome.seconds, "heavy": heavy}))
sys.exit(outcome.exit_code)
"""


class ToyProject:
    """reproductions/toy and notebooks/toy below a root."""

    def __init__(self, root: Path):
        self.root = root
        (root / "reproductions/toy/published").mkdir(parents=True)
        (root / "notebooks/toy").mkdir(parents=True)
        self.publish(PUBLISHED)
        self.declare(
            'Reproduction(item="table-1", notebook="notebooks/toy/one.ipynb", parameters=PARAMETERS, claims=(WITHIN,), **ITEM)'
        )
        self.notebook("one", RECORD)

    def publish(self, text: str) -> None:
        (self.root / "reproductions/toy/published/numbers.csv").write_text(text)

    def declare(self, *items: str) -> None:
        (self.root / "reproductions/toy/catalogue.py").write_text(
            f"{HEADER}\nCATALOGUE = (\n" + ",\n".join(items) + ",\n)\n"
        )

    def declare_each(self, **cells: str) -> None:
        """One item a keyword, named like it, whose notebook runs the given cell and then records."""
        self.declare(
            *(
                f'Reproduction(item="{name}", notebook="notebooks/toy/{name}.ipynb", parameters=PARAMETERS, claims=(WITHIN,), **ITEM)'
                for name in cells
            )
        )
        for name, cell in cells.items():
            self.notebook(name, textwrap.dedent(cell), RECORD)

    def notebook(self, name: str, *cells: str, parameters: str = PARAMETERS_CELL) -> None:
        sources = [(parameters, ["parameters"]), *((cell, []) for cell in cells)]
        held = {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell-{position}",
                    "metadata": {"tags": tags},
                    "outputs": [],
                    "execution_count": None,
                    "source": source,
                }
                for position, (source, tags) in enumerate(sources)
            ],
        }
        (self.root / f"notebooks/toy/{name}.ipynb").write_text(json.dumps(held))

    def folder(self, item: str = "table-1", profile: str = "laptop") -> Path:
        return self.root / "results" / profile / "toy" / item / "counted"

    def record(self, item: str = "table-1", profile: str = "laptop") -> dict:
        return json.loads((self.folder(item, profile) / "record.json").read_text())

    def failure(self, item: str, profile: str = "laptop") -> dict:
        return json.loads((self.folder(item, profile) / "failure.json").read_text())

    def start(self, **options) -> subprocess.Popen:
        """Start a runner in a process of its own."""
        environment = {**os.environ, "WORKBENCH_ROOT": str(self.root), "PYTHONWARNINGS": "default"}
        environment.pop("WORKBENCH_DATA", None)
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(options)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, **options) -> tuple[int, dict, str]:
        """Run to the end; return exit code, outcome and standard error."""
        runner = self.start(**options)
        out, err = runner.communicate(timeout=60)
        last = out.strip().splitlines()[-1] if out.strip() else ""
        return runner.returncode, json.loads(last) if last.startswith("{") else {}, err


def wait_for(condition, seconds: float = 20.0):
    """Return what the condition gives once it is true."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


def alive(pid: int) -> bool:
    """Say whether a process runs; one that is dead but not yet reaped does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def processes_below(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
