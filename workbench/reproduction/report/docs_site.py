"""The pages of docs/ as a site with a search, by MkDocs Material; lessons become links to their executed pages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.reproduction.errors import UsageError

__all__ = ["lesson_page", "repository_of", "run_module", "write_docs"]

LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")  # to a file of the project
LESSON = re.compile(r"notebooks/\w+/lesson\w*\.ipynb")
GITHUB = re.compile(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?\s*$")
COURSE = "docs/course.md"  # beside each lesson it has links that open it elsewhere
PAGES: dict[str, str | dict[str, str]] = {
    "Start": "README.md",
    "Your own model": "docs/own-models.md",
    "What works with what": "docs/works-with.md",
    "Results": "docs/results.md",
    "Ranks in a notebook": "docs/notebooks.md",
    "Clusters and containers": "docs/cluster.md",
    "Teaching": {"In class and in the cloud": "docs/teaching.md", "The course": COURSE},
    "Contributing": {
        "How to contribute": "CONTRIBUTING.md",
        "Architecture": "docs/architecture.md",
        "Glossary": "GLOSSARY.md",
        "Changes": "CHANGELOG.md",
    },
}
SETTINGS = {
    "site_name": "workbench",
    "use_directory_urls": False,  # pages open without a server
    "theme": {
        "name": "material",
        "font": False,  # fonts of the reader's machine: nothing is fetched
        "features": ["content.code.copy", "navigation.top", "search.highlight", "search.suggest"],
        "palette": [
            {"media": f"(prefers-color-scheme: {scheme})", "scheme": name, "primary": "blue grey"}
            for scheme, name in (("light", "default"), ("dark", "slate"))
        ],
    },
    "plugins": ["search"],
    "markdown_extensions": [{"toc": {"permalink": True}}, "tables", "pymdownx.highlight", "pymdownx.superfences"],
}


def write_docs(source: Path, target: Path, links: Mapping[str, Any], repository: str = "") -> None:
    """Write the docs of a checkout.

    Args:
        source: the checkout.
        target: the folder of the site, made where it is missing.
        links: what else the site has: title and place, or title and such entries.
        repository: OWNER/NAME on GitHub, for the links that open a lesson in Colab or Binder; without, there are none.
    """
    import material  # noqa: F401  # named by the error where it is missing
    import yaml

    if not (source / COURSE).is_file():
        raise UsageError(f"{source} has no docs/: a site is written from a checkout")
    with tempfile.TemporaryDirectory() as scratch:
        staged, built, config = (Path(scratch, name) for name in ("docs", "site", "mkdocs.yml"))
        for entry in PAGES.values():
            for page in [entry] if isinstance(entry, str) else entry.values():
                _stage(source, page, staged, repository)
        code = {"Source": f"https://github.com/{repository}"} if repository else {}
        nav = _nav({**PAGES, **links, **code})
        settings = SETTINGS | {"nav": nav, "docs_dir": str(staged), "site_dir": str(built)}
        config.write_text(yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")
        run_module("the docs", "mkdocs", "build", "--quiet", "--config-file", str(config))
        shutil.copytree(built, target, dirs_exist_ok=True)


def lesson_page(path: Path) -> str:
    """Return where the site has a lesson, such as lessons/zen-lesson.html."""
    return f"lessons/{path.parent.name}-{path.stem}.html"


def repository_of(source: Path) -> str:
    """Return OWNER/NAME of a checkout on GitHub, by the workflow that runs or by its remote; "" without either."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return name
    asked = subprocess.run(
        ["git", "-C", str(source), "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    )
    match = GITHUB.search(asked.stdout)
    return match[1] if match else ""


def run_module(what: str, module: str, *arguments: str, cwd: Path | None = None) -> None:
    """Run a Python module; `what` could not be written where it fails."""
    ended = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, cwd=cwd)
    if ended.returncode:
        raise UsageError(f"{what} could not be written: {(ended.stderr.strip().splitlines() or ['no reason'])[-1]}")


def _nav(entries: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{title: place if isinstance(place, str) else _nav(place)} for title, place in entries.items()]


def _stage(source: Path, page: str, staged: Path, repository: str) -> None:
    """Copy a page and the files that it links to; links to lessons lead to their pages."""

    def place(link: re.Match) -> str:
        file = os.path.normpath(Path(page).parent / link[1])
        if LESSON.fullmatch(file):
            return os.path.relpath(lesson_page(Path(file)), Path(page).parent)
        if (source / file).is_file() and not (staged / file).exists():
            (staged / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / file, staged / file)
        return link[1]

    text = (source / page).read_text(encoding="utf-8")
    if page == COURSE and repository:
        text = re.sub(rf"\]\(\.\./({LESSON.pattern})\)", rf"\g<0> {_launch(repository)}", text)
    (staged / page).parent.mkdir(parents=True, exist_ok=True)
    (staged / page).write_text(LINK.sub(place, text), encoding="utf-8")


def _launch(repository: str) -> str:
    """Return badges that open a lesson, whose path is the first group of a replacement."""
    binder = f"https://mybinder.org/v2/gh/{repository}/main?labpath=\\1"
    colab = f"https://colab.research.google.com/github/{repository}/blob/main/\\1"
    return (
        f"[![Open in Binder](https://mybinder.org/badge_logo.svg)]({binder}) "
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab})"
    )
