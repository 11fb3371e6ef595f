"""A small project in a temporary folder, and a runner of it in a process of its own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import MappingProxyType

from workbench.reproduction import ItemRun, Project, load_catalogue
from workbench.reproduction.files import checksums, write_record
from workbench.reproduction.fingerprint import Fingerprinter
from workbench.reproduction.records import SCHEMA
from workbench.reproduction.scaffold import notebook_json

HEADER = """
from workbench.reproduction import Crossover, Evidence, Ordering, Reproduction, Trend, Within
PARAMETERS = {"smoke": {"size": 2}, "laptop": {"size": 4}}
WITHIN = Within("twice the size", quantity="bytes", where={"method": "A1"}, rel=0.0, because="it is counted")

def item(name, notebook="one", **options):
    fields = {"technique": "toy", "evidence": Evidence.COUNTED, "title": f"Bytes of {name}", "published": "numbers.csv"}
    fields |= {"parameters": PARAMETERS, "claims": (WITHIN,), "notebook": f"notebooks/toy/{notebook}.ipynb"}
    fields |= {"expected_s": {"laptop": 3}}
    return Reproduction(item=name, **(fields | options))
"""
PUBLISHED = "quantity,method,value,unit,source\nbytes,A1,8,bytes,table 1\n"
VALUE = '{"quantity": "bytes", "method": "A1", "value": 2 * size, "unit": "bytes"}'
RECORD = f"from workbench.reproduction import record\nrecord(item, [{VALUE}])"
PARAMETERS_CELL = 'item = "toy/table-1/counted"  # id\nsize = 1  # elements'
DRIVER = """
import dataclasses, json, sys
sys.modules["rfc3987_syntax"] = None  # as in workbench.cli.main
from workbench.launch import kernel_server
from workbench.reproduction import Project, UsageError, load_catalogue, run

kernel_server.OF_KERNELS, kernel_server.OF_RANKS = sys.argv[2].split(), ()  # no notebook here needs more
project = Project()
try:
    outcome = run(project, load_catalogue(project), **json.loads(sys.argv[1]))
except UsageError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
except KeyboardInterrupt:
    sys.exit(130)
heavy = [name for name in ("torch", "papermill", "pandas", "nbformat") if name in sys.modules]
items = [dataclasses.asdict(item) for item in outcome.items]
print(json.dumps({"items": items, "seconds": outcome.seconds, "heavy": heavy}))
sys.exit(outcome.exit_code)
"""
NONE = MappingProxyType({})
FILES = {"notebook": "notebook.ipynb", "figure": "figure.png", "log": "log.txt", "trace": None}


BARE = {"schema": SCHEMA, "seconds": 1.0, "calibration": None}  # every field that a record must have, as good as empty
BARE |= dict.fromkeys(("id", "technique", "item", "evidence", "title", "profile", "notebook", "kernel"), "")
BARE |= dict.fromkeys(("commit", "started"), "") | dict.fromkeys(("values", "verdicts", "seeds", "data"), ())
BARE |= dict.fromkeys(("configuration", "machine", "versions", "environment", "parameters", "fingerprint"), {})
BARE |= dict.fromkeys(("not_comparable", "artifacts", "artifact_sha256"), {})


class ToyProject:
    """The catalogue and the notebooks of one technique below a root."""

    def __init__(self, root: Path, technique: str = "toy"):
        self.root, self.technique, self.runners = root, technique, []
        self.forked_with = "ipykernel.kernelapp"  # what forked kernels have imported beside the library
        (root / f"reproductions/{technique}/published").mkdir(parents=True)
        (root / f"notebooks/{technique}").mkdir(parents=True)
        self.publish(PUBLISHED)
        self.declare('item("table-1")')
        self.notebook("one", RECORD)

    def publish(self, text: str) -> None:
        (self.root / f"reproductions/{self.technique}/published/numbers.csv").write_text(text)

    def declare(self, *items: str) -> None:
        path = self.root / "reproductions" / self.technique / "catalogue.py"
        path.write_text(f"{HEADER}\nCATALOGUE = (\n" + ",\n".join(items) + ",\n)\n")

    def declare_each(self, **cells: str) -> None:
        """Declare one item a keyword, named like it, whose notebook runs the given cell and then records."""
        self.declare(*(f'item("{name}", "{name}")' for name in cells))
        for name, cell in cells.items():
            self.notebook(name, textwrap.dedent(cell), RECORD)

    def notebook(self, name: str, *cells: str, parameters: str = PARAMETERS_CELL) -> None:
        text = "\n# %%\n".join((f"# %% [parameters]\n{parameters}", *cells))
        (self.root / f"notebooks/{self.technique}/{name}.ipynb").write_text(notebook_json(text))

    def folder(self, item: str = "table-1", profile: str = "laptop") -> Path:
        return self.root / "results" / profile / "toy" / item / "counted"

    def record(self, item: str = "table-1", profile: str = "laptop") -> dict:
        return json.loads((self.folder(item, profile) / "record.json").read_text())

    def failure(self, item: str, profile: str = "laptop") -> dict:
        return json.loads((self.folder(item, profile) / "failure.json").read_text())

    def sealed(self, item="table-1", profile="laptop", *, value=8.0, files=FILES, contents=NONE, folder=None, **more):
        """Write and return a record, with the fingerprint of now where none is given, and its files beside it."""
        project = Project(self.root)
        declared = next(declared for declared in load_catalogue(project) if declared.item == item)
        folder = folder or ItemRun(project, declared, profile).folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in filter(None, files.values()):
            (folder / name).write_bytes(contents.get(name, f"content of {name}".encode()))
        if "fingerprint" not in more:
            more["fingerprint"] = Fingerprinter(project)(declared, profile)
        about = {"id": declared.id, "technique": declared.technique, "item": item, "profile": profile}
        verdict = {"claim": "twice the size", "kind": "Within", "verdict": "agrees", "reason": "", "rows": [{}, {}]}
        content = {
            "schema": SCHEMA,
            "evidence": declared.evidence.value,
            "values": [{"quantity": "bytes", "method": "A1", "value": value, "unit": "bytes"}],
            "verdicts": [verdict],
            "started": "2026-01-01T00:00:00+00:00",
            "seconds": 2.0,
            "commit": "abc",
            "artifacts": files,
            "artifact_sha256": checksums(folder, files),
        }
        return write_record(folder / "record.json", BARE | about | content | more)

    def start(self, **options) -> subprocess.Popen:
        """Start a runner in a process of its own."""
        environment = {**os.environ, "WORKBENCH_ROOT": str(self.root)}
        environment.pop("WORKBENCH_DATA", None)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # Not PYTHONWARNINGS, with which the ranks of its kernels could not be forked from the tests' warm process.
        command = [sys.executable, "-W", "default", "-c", DRIVER, json.dumps(options), self.forked_with]
        self.runners.append(subprocess.Popen(command, env=environment, start_new_session=True, **pipes))
        return self.runners[-1]

    def run(self, **options) -> tuple[int, dict, str]:
        """Run to the end; return exit code, outcome and standard error."""
        runner = self.start(**options)
        out, err = runner.communicate(timeout=200)
        last = out.strip().splitlines()[-1] if out.strip() else ""
        return runner.returncode, json.loads(last) if last.startswith("{") else {}, err
