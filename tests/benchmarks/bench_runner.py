"""The runner on a notebook that only records: its cost beside plain papermill, and an unchanged run."""

import tempfile
import time
from pathlib import Path

import nbformat
import papermill

from workbench.reproduction import Project, load_catalogue, run
from workbench.reproduction.report import write_report
from workbench.study.measuring import Benchmark, BenchmarkRow, paired_ratio

ROUNDS = 7  # pairs; each starts two kernels
PATIENCE_S = 5.0  # seconds within which an unchanged run must have said so
REPORT_S = 0.5  # seconds within which a report is written anew; ours
CATALOGUE = """
from workbench.reproduction import Evidence, Reproduction
CATALOGUE = (Reproduction(technique="toy", item="table-1", evidence=Evidence.COUNTED, title="One value",
             notebook="notebooks/toy/one.ipynb", parameters={"laptop": {"size": 4}}),)
"""
CELLS = (
    'item = "toy/table-1/counted"\nsize = 1',
    "from workbench.reproduction import record",
    'record(item, [{"quantity": "elements", "value": size, "unit": "1"}])',
)


def toy_project(root: Path) -> Project:
    (root / "reproductions/toy").mkdir(parents=True)
    (root / "notebooks/toy").mkdir(parents=True)
    (root / "reproductions/toy/catalogue.py").write_text(CATALOGUE)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    notebook.cells[0].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, root / "notebooks/toy/one.ipynb")
    return Project(root)


def overhead() -> list[BenchmarkRow]:
    with tempfile.TemporaryDirectory() as folder:
        project = toy_project(Path(folder, "project"))
        items, output = load_catalogue(project), Path(folder, "out.ipynb")
        # Plain papermill's kernel finds the project only if the environment says where it is.
        cell = f"import os; os.environ['WORKBENCH_ROOT'] = {str(project.root)!r}"
        plain = nbformat.read(project.notebook(items[0]), as_version=4)
        plain.cells.insert(1, nbformat.v4.new_code_cell(cell))
        ratio = paired_ratio(
            lambda: run(project, items, fresh=True),
            lambda: papermill.execute_notebook(plain, output, {"size": 4}, progress_bar=False),
            rounds=ROUNDS,
            warmup=1,
        )
        began = time.perf_counter()
        outcome = run(project, items)
        unchanged_s = time.perf_counter() - began
        write_report(project, items, "laptop")
        began = time.perf_counter()
        write_report(project, items, "laptop")
        report_s = time.perf_counter() - began
    return [
        BenchmarkRow.of("Runner beside plain papermill, one item", ratio),
        BenchmarkRow(name="Runner: seconds added to one item", figure=ratio.a_s - ratio.b_s, unit="s"),
        BenchmarkRow.of_seconds("Runner: an unchanged run", unchanged_s, PATIENCE_S, equal=outcome.did_nothing),
        BenchmarkRow.of_seconds("Report: an update", report_s, REPORT_S),
    ]


BENCHMARKS = [Benchmark(name="runner", asks="What does the runner cost beside plain papermill?", run=overhead)]
