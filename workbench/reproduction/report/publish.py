"""The report for others: all pages in one file, or a static site with notebooks, lessons, planners and API pages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import workbench
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.errors import RecordError, UsageError
from workbench.reproduction.files import misfits, write_whole
from workbench.reproduction.project import Project
from workbench.reproduction.records import RECORD_FILE, promoted_figure, promoted_path
from workbench.reproduction.schema import FAILED_ARTIFACTS, inside, read_bytes

from .claims import trusted_record

__all__ = ["single_file", "write_planners", "write_site"]

BODY = re.compile(r"<body>(.*)</body>", re.S)
FILTER = re.compile(r'<form class="filter.*?</form>', re.S)  # it works on one page's own items
FILES = re.compile(r'<nav class="files".*?</nav>', re.S)  # files beside the report, which do not travel with it
LEFT_OUT = ("claims.html",)  # its script has a page to itself
LESSON_TIMEOUT_S = 600
SOURCE = Path(workbench.__file__).parents[1]
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
    text = FILES.sub("", FILTER.sub("", BODY.search(page)[1]))
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
    project: Project, catalogue: Sequence[Reproduction], profile: str, first: Path, target: Path
) -> tuple[str, ...]:
    """Write a static site: the report with executed notebooks, the lessons executed, planners to move
    in a browser, and API pages from docstrings.

    Folders lie in it as in the project, so that links between the report and its files hold. Of results and recorded
    runs only what records name and seal is published; return a line for each link, and for each file that is left out.
    """
    import jupyterlite_core  # noqa: F401  # named by the error, before lessons run, where one is missing
    import jupyterlite_pyodide_kernel  # noqa: F401
    import pdoc  # noqa: F401

    if target.exists() and any(target.iterdir()):
        raise UsageError(f"{target} is not empty; name another place")
    runs = {project.results: _published(project, catalogue, profile)}
    runs[project.reproductions] = _promoted(project, catalogue)
    left_out = []
    for folder, paths in runs.items():
        left_out += [f"{path}: not published, it is a symbolic link" for path in _links(folder)]
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
    paths = sorted(project.notebooks.glob("*/lesson*.ipynb"))
    lessons = [_write_lesson(inside(project.notebooks, *path.parts[-2:]), target) for path in paths]
    _write_api(target / "api")
    write_planners(target / "planners")
    report = first.relative_to(project.root).as_posix()
    links = {report: "Report", **{f"lessons/{name}": f"Lesson: {name[:-5]}" for name in lessons}}
    links[f"planners/lab/index.html?path={PLANNERS.name}"] = "Planners and puzzles to move, in your browser"
    links["api/workbench.html"] = "Library: every public name"
    items = "".join(f'<li><a href="{place}">{words}</a></li>\n' for place, words in links.items())
    head = first.read_text(encoding="utf-8").partition("<body>")[0]
    body = f'<main id="content"><h1>workbench</h1>\n<ul>\n{items}</ul></main>'
    write_whole(target / "index.html", f"{head}<body>{body}</body>\n</html>\n")
    return tuple(left_out)


def _published(project: Project, catalogue: Sequence[Reproduction], profile: str) -> Iterator[Path]:
    """Return the files of this machine's runs: records with what they seal, and what is left of failed runs."""
    for item in catalogue:
        folder = project.folder(item, profile)
        record, _ = trusted_record(folder / RECORD_FILE, item, profile)
        if record is not None:
            wrong = misfits(folder, record)
            names = [name for kind, name in record["artifacts"].items() if name and kind not in wrong]
            yield from (folder / name for name in (RECORD_FILE, *names))
        yield from (folder / name for name in FAILED_ARTIFACTS.values())


def _promoted(project: Project, catalogue: Sequence[Reproduction]) -> Iterator[Path]:
    """Return the recorded runs that can be trusted, and the figures that they seal."""
    for item, profile in product(catalogue, Profile):
        path, figure = promoted_path(project, item, profile), promoted_figure(project, item, profile)
        record, _ = trusted_record(path, item, profile)
        if record is not None:
            yield path
            if "figure" not in misfits(figure.parent, record | {"artifacts": {"figure": figure.name}}):
                yield figure


def _links(folder: Path) -> list[Path]:
    """Return the symbolic links below a folder, which are not followed."""
    paths = [Path(place, name) for place, folders, names in os.walk(folder) for name in (*folders, *names)]
    return sorted(path for path in paths if path.is_symlink())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


def _write_lesson(path: Path, target: Path) -> str:
    """Execute a lesson and write it as a page; return the page's name."""
    name = f"{path.parent.name}-{path.stem}.html"
    folder = target / "lessons"
    folder.mkdir(parents=True, exist_ok=True)
    _run(
        f"{path}",
        *("jupyter", "nbconvert", "--to", "html", "--execute", f"--ExecutePreprocessor.timeout={LESSON_TIMEOUT_S}"),
        *("--output-dir", str(folder), "--output", name, str(path)),
    )
    return name


def _write_api(folder: Path) -> None:
    _run("the API pages", "pdoc", "-o", str(folder), "workbench", "!workbench.cli")


def write_planners(folder: Path) -> None:
    """Write JupyterLite with the notebook of planners and a wheel of this library, which it installs in the browser."""
    what = "the notebook in a browser"
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"  # a copy, since building leaves files beside it
        shutil.copytree(SOURCE / "workbench", source / "workbench", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(SOURCE / name, source)
        _run(what, "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, str(source))
        (wheel,) = Path(scratch).glob("*.whl")
        (source / "jupyter-lite.json").write_text(json.dumps(LITE))
        places = {"--lite-dir": source, "--contents": PLANNERS, "--output-dir": folder.resolve()}
        chosen = [f"{option}={value}" for option, value in (places | {"--piplite-wheels": wheel}).items()]
        _run(what, "jupyter", "lite", "build", "--apps=lab", "--no-sourcemaps", *chosen, cwd=source)


def _run(what: str, module: str, *arguments: str, cwd: Path | None = None) -> None:
    ended = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, cwd=cwd)
    if ended.returncode:
        raise UsageError(f"{what} could not be written: {(ended.stderr.strip().splitlines() or ['no reason'])[-1]}")
