"""A project whose records are written by hand, so that what the report says of them is known."""

import io
import json
import shutil
from pathlib import Path

from bs4 import BeautifulSoup
from nbformat.v4 import new_notebook
from PIL import Image
from toy_project import ToyProject

from workbench.reproduction import ItemRun, Project, load_catalogue, verdicts_of
from workbench.reproduction.report import write_report
from workbench.rows import value_row

CATALOGUE = """
from workbench.reproduction import Evidence, Ordering, Reproduction, Within

HEADERS = "headers are not counted"
HALF = {"where": {"method": "A1"}, "source": "table 1", "explanation": "The paper counts in another unit."}
ORDER = {"along": "method", "order": ["A1", "plain"], "because": "the figure's order"}

def item(name, evidence, title, *claims, parameters={"smoke": {}, "laptop": {}}, published="numbers.csv"):
    return Reproduction(technique="toy_sum", item=name, evidence=evidence, title=title, published=published,
                        notebook="notebooks/toy_sum/one.ipynb", parameters=parameters, claims=claims)

CATALOGUE = (
    item("table-1", Evidence.COUNTED, "Bytes of a <message>",
         Within("A1 sends half", quantity="bytes", rel=0.02, because=HEADERS, **HALF),
         Ordering("A1 sends least", quantity="bytes", **ORDER)),
    item("fig-2", Evidence.MEASURED, "Accuracy on real text",
         Ordering("Plain is most accurate", quantity="accuracy", needs_real_data=True, **ORDER), published=None),
    item("table-9", Evidence.SIMULATED, "Sixteen devices",
         Within("Bytes on sixteen", quantity="bytes", rel=0.02, because=HEADERS), parameters={"full": {}}),
)
"""
PUBLISHED = """quantity,method,value,unit,source
bytes,A1,1000000,bytes,"table 1, row 2"
bytes,plain,2000000,bytes,"table 1, row 1"
"""
EMPTY = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
MACHINE = {"host": "here", "cpu": "Two-core processor", "cores": 2, "gpus": []}
BIG_MACHINE = {"host": "there", "cpu": "Large processor", "cores": 64, "gpus": ["Some GPU"]}
RUN = {"seeds": [0], "configuration": {"num_ranks": 4}, "parameters": {}, "environment": {}, "commit": "abc123"}
RUN |= {"versions": {"torch": "2.13.0"}, "started": "2026-01-02T03:04:05+00:00", "seconds": 12.5, "machine": MACHINE}
RUN |= {"data": [], "calibration": None, "not_comparable": {}, "finding": "", "fingerprint": {}}
TWO_METHODS = {"A1": 1010000, "plain": 2000000}  # A1 is 1 % above the published million


def png(width: int, height: int) -> bytes:
    """Return a grey picture."""
    picture = io.BytesIO()
    Image.new("L", (width, height), 128).save(picture, "png")
    return picture.getvalue()


FIGURE = png(720, 360)


class ReportProject:
    """reproductions/toy_sum, its records, and the report written from them."""

    def __init__(self, root: Path):
        self.root, self.toy = root, ToyProject(root, "toy_sum")
        self.project = Project(root)
        self.catalogue = root / "reproductions/toy_sum/catalogue.py"
        self.catalogue.write_text(CATALOGUE)
        self.toy.publish(PUBLISHED)

    def declare(self, old: str, new: str) -> None:
        """Replace a text of the catalogue."""
        assert old in self.catalogue.read_text()
        self.catalogue.write_text(self.catalogue.read_text().replace(old, new))

    def item(self, name: str):
        return next(item for item in load_catalogue(self.project) if item.item == name)

    def folder(self, name: str, profile: str = "laptop") -> Path:
        return ItemRun(self.project, self.item(name), profile).folder

    def record(self, name="table-1", *, values=TWO_METHODS, profile="laptop", figure=FIGURE, notebook=EMPTY, **more):
        """Write a record with a figure, a log and a notebook beside it; a value may be (value, low, high)."""
        quantity, unit = ("accuracy", "") if name == "fig-2" else ("bytes", "bytes")
        rows = []
        for method, value in values.items():
            mean, *ends = value if isinstance(value, tuple) else (value,)
            interval = dict(zip(("low", "high"), ends, strict=False))
            rows.append(value_row(quantity, mean, unit, method=method, **interval))
        recording = RUN | {"values": rows} | more
        verdicts = [verdict.to_json() for verdict in verdicts_of(self.project, self.item(name), recording)]
        contents = {"figure.png": figure, "notebook.ipynb": notebook.encode()}
        self.toy.sealed(name, profile, contents=contents, verdicts=verdicts, **recording)

    def promoted(self, name: str = "table-1", profile: str = "full", figure: bytes | None = None, **options) -> Path:
        """Write a recorded run of another machine, with its figure where one is given, and leave nothing else of it."""
        path = self.root / f"reproductions/toy_sum/recorded/{profile}/{name}/{self.item(name).evidence.value}.json"
        self.record(name, profile=profile, machine=BIG_MACHINE, figure=figure or FIGURE, **options)
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.folder(name, profile) / "record.json").rename(path)
        if figure is not None:
            path.with_suffix(".png").write_bytes(figure)
        shutil.rmtree(self.root / "results" / profile)
        return path

    def fail(self, name: str, traceback: str) -> None:
        folder = self.folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        failure = {"schema": 1, "reason": traceback.splitlines()[-1], "traceback": traceback, "artifacts": {}}
        (folder / "failure.json").write_text(json.dumps(failure | {"started": "2026-01-03T00:00:00+00:00"}))

    def report(self, profile: str = "laptop", **options) -> Path:
        return write_report(self.project, load_catalogue(self.project), profile, **options)


def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def index(held: ReportProject, profile: str = "laptop", **options) -> BeautifulSoup:
    return soup(held.report(profile, **options))


def technique(held: ReportProject, profile: str = "laptop", **options) -> BeautifulSoup:
    return soup(held.report(profile, **options).with_name("toy-sum.html"))


def notebook_page(held: ReportProject, *cells) -> Path:
    """Record with an executed notebook of these cells and return its page."""
    held.record(notebook=json.dumps(new_notebook(cells=list(cells))))
    return held.report(notebooks=True).parent / "notebooks/toy-sum-table-1-counted.html"


def claim(page: BeautifulSoup, name: str):
    return next(section for section in page.select("details.claim") if section.h4.get_text() == name)


def verdict(page: BeautifulSoup, name: str) -> str:
    """Return the words of a claim's own badge, which stands in its head."""
    (badge,) = claim(page, name).select("summary .badge:not(.evidence)")
    return badge.get_text()


def row(page: BeautifulSoup, name: str, where: str) -> dict[str, str]:
    table_row = next(tr for tr in claim(page, name).select("tbody tr") if where in tr.th.get_text())
    return {cell["data-label"]: cell.get_text().strip() for cell in table_row.select("td")}
