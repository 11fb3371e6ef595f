"""The report for others: all pages in one file, or a site with docs, notebooks, lessons, planners and API pages."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import workbench
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.errors import RecordError, UsageError
from workbench.reproduction.files import figure_misfit, misfits, write_whole
from workbench.reproduction.project import RECORD_FILE, ItemRun, Project
from workbench.reproduction.schema import FAILED_ARTIFACTS, inside, read_bytes

from .claims import trusted_record
from .docs_site import lesson_page, repository_of, run_module, write_docs

__all__ = ["single_file", "write_planners", "write_site"]

BODY = re.compile(r"<body>(.*)</body>", re.S)
FILTER = re.compile(r'<form class="filter.*?</form>', re.S)  # it works on one page's own items
CHARTS = re.compile(
    r'<details class="chart".*?</details>|<script type="module">.*?</script>', re.S
)  # no scripts in one file
FILES = re.compile(r'<nav class="files".*?</nav>', re.S)  # files beside the report, which do not travel with it
LEFT_OUT = ("claims.html",)  # its script has a page to itself
LESSON_TIMEOUT_S = 600
SOURCE = Path(workbench.__file__).parents[1]
API = ("workbench", "!workbench.cli")  # modules with API pages
PLANNERS = SOURCE / "notebooks" / "planners.ipynb"
LITE = {  # JupyterLite's settings; this extension asks for a server
    "jupyter-lite-schema-version": 0,
    "jupyter-config-data": {"disabledExtensions": ["ipyparallel-labextension"]},
}


def single_file(first: Path, target: Path) -> None:
    """Put the pages of a report, of which `first` is the first, into one file that needs no other."""
    others = sorted(path for path in first.parent.glob("*.html") if path.name not in (first.name, *LEFT_OUT))
    pages = {path.name: path.read_text(encoding="utf-8") for path in (first, *others)}
    body = "\n".join(_sheet(name, page, pages) for name, page in pages.items())
    head = pages[first.name].partition("<body>")[0]
    write_whole(target, f"{head}<body>\n{body}\n</body>\n</html>\n")


def _sheet(name: str, page: str, pages: dict[str, str]) -> str:
    """Return a page's body with its identifiers made unique, and its links turned to places of the same file."""
    key = name.removesuffix(".html")
    body = BODY.search(page)
    assert body is not None  # our own page
    text = CHARTS.sub("", FILES.sub("", FILTER.sub("", body[1])))
    text = re.sub(r'\b(id|aria-labelledby)="([^"]+)"', rf'\1="{key}--\2"', text)
    text = re.sub(r'href="([^"]*)"', lambda link: f'href="{_place(link[1], key, pages)}"', text)
    text = re.sub(r"<(/?)h([1-5])\b", lambda tag: f"<{tag[1]}h{int(tag[2]) + (key != 'index')}", text)
    return f'<div class="sheet" id="sheet-{key}">{text}</div>'


def _place(link: str, key: str, pages: dict[str, str]) -> str:
    file, _, anchor = link.partition("#")
    if file and file not in pages:
        return link if "://" in link else f"#sheet-{key}"
    page = file.removesuffix(".html") or key
    return f"#{page}--{anchor}" if anchor else f"#sheet-{page}"


def write_site(
    project: Project,
    catalogue: Sequence[Reproduction],
    profile: str,
    first: Path,
    target: Path,
    save_evidence: Callable[[Path], None],
) -> tuple[str, ...]:
    """Write a static site: docs with a search, the report with executed notebooks, the lessons executed, planners to
    move in a browser, and API pages from docstrings.

    Folders lie in it as in the project, so that links between the report and its files hold. Of results and recorded
    runs only what records name and seal is published; return a line for each link, and for each file that is left out.
    `save_evidence`: as for `write_planners`.
    """
    if not (SOURCE / "pyproject.toml").is_file() or project.results != project.root / "results":
        raise UsageError("a site is written from a checkout of this project's source, with its results in results/")
    import jupyterlite_core  # noqa: F401  # named by the error, before lessons run, where one is missing
    import jupyterlite_pyodide_kernel  # noqa: F401
    import material  # noqa: F401
    import pdoc  # noqa: F401

    if target.exists() and any(target.iterdir()):
        raise UsageError(f"{target} is not empty; name another place")
    lessons = sorted(project.notebooks.glob("*/lesson*.ipynb"))
    write_docs(SOURCE, target, _links(first.relative_to(project.root).as_posix(), lessons), repository_of(SOURCE))
    runs = {project.results: _published(project, catalogue, profile)}
    runs[project.reproductions] = _promoted(project, catalogue)
    left_out = []
    for folder, paths in runs.items():
        held = (Path(place, name) for place, folders, names in os.walk(folder) for name in (*folders, *names))
        links = sorted(path for path in held if path.is_symlink())
        left_out += [f"{path}: not published, it is a symbolic link" for path in links]
        for path in paths:
            try:
                inside(folder, *path.relative_to(folder).parts)
                _write(target / path.relative_to(project.root), read_bytes(path, single=True))
            except FileNotFoundError:
                continue
            except RecordError as error:
                left_out.append(str(error))
    for page in (*first.parent.glob("*.html"), *first.parent.glob("notebooks/*.html")):
        _write(target / page.relative_to(project.root), page.read_bytes())
    for path in lessons:
        _write_lesson(inside(project.notebooks, *path.parts[-2:]), target)
    run_module("the API pages", "pdoc", "-o", str(target / "api"), *API)
    write_planners(target / "planners", save_evidence)
    return tuple(left_out)


def _links(report: str, lessons: Sequence[Path]) -> dict[str, str | dict[str, str]]:
    """Return title and place of what the site has beside its docs."""
    cards = ["".join(json.loads(path.read_bytes())["cells"][0]["source"]) for path in lessons]
    pages = {card.splitlines()[0].strip("# "): lesson_page(path) for card, path in zip(cards, lessons, strict=True)}
    return {
        "Report": report,
        **({"Lessons": pages} if pages else {}),
        "Planners and puzzles": f"planners/lab/index.html?path={PLANNERS.name}",
        "Library": "api/workbench.html",
    }


def _published(project: Project, catalogue: Sequence[Reproduction], profile: str) -> Iterator[Path]:
    """Return the files of this machine's runs: records with what they seal, and what is left of failed runs."""
    for item in catalogue:
        run = ItemRun(project, item, profile)
        folder = run.folder
        record, _ = trusted_record(run)
        if record is not None:
            wrong = misfits(folder, record)
            names = [name for kind, name in record["artifacts"].items() if name and kind not in wrong]
            yield from (folder / name for name in (RECORD_FILE, *names))
        yield from (folder / name for name in FAILED_ARTIFACTS.values())


def _promoted(project: Project, catalogue: Sequence[Reproduction]) -> Iterator[Path]:
    """Return the recorded runs that can be trusted, and the figures that they seal."""
    for run in (run for item in catalogue for run in ItemRun(project, item, Profile.LAPTOP).recorded):
        figure = run.promoted_figure
        record, _ = trusted_record(run, promoted=True)
        if record is not None:
            yield run.promoted
            if not figure_misfit(figure, record):
                yield figure


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def _write_lesson(path: Path, target: Path) -> None:
    """Execute a lesson and write it as a page."""
    page = target / lesson_page(path)
    page.parent.mkdir(parents=True, exist_ok=True)
    run_module(
        f"{path}",
        *("jupyter", "nbconvert", "--to", "html", "--execute", f"--ExecutePreprocessor.timeout={LESSON_TIMEOUT_S}"),
        *("--output-dir", str(page.parent), "--output", page.name, str(path)),
    )


def write_planners(folder: Path, save_evidence: Callable[[Path], None]) -> None:
    """Write JupyterLite with the notebook of planners and a wheel of this library, which it installs in the browser.

    `save_evidence` is `advisor.evidence.save`: it writes what the records say into the library's copy.
    """
    what = "the notebook in a browser"
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"  # a copy, since building leaves files beside it
        shutil.copytree(SOURCE / "workbench", source / "workbench", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(SOURCE / name, source)
        save_evidence(source / "workbench" / "advisor")
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch)
        run_module(what, "pip", "wheel", *options, str(source))
        (wheel,) = Path(scratch).glob("*.whl")
        (source / "jupyter-lite.json").write_text(json.dumps(LITE))
        places = {"--lite-dir": source, "--contents": PLANNERS, "--output-dir": folder.resolve()}
        chosen = [f"{option}={value}" for option, value in (places | {"--piplite-wheels": wheel}).items()]
        run_module(what, "jupyter", "lite", "build", "--apps=lab", "--no-sourcemaps", *chosen, cwd=source)
