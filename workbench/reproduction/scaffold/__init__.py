"""The first files of a new technique: room, lesson, notebooks, catalogue, published table and a test that passes."""

from __future__ import annotations

import hashlib
import json
import keyword
import re
from pathlib import Path
from typing import Any

import workbench
from workbench.checkout import place_to_write
from workbench.reproduction.errors import UsageError
from workbench.reproduction.files import write_whole

__all__ = ["furniture", "new_technique", "notebook_json"]

NAME_RULE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
CELL_MARK = re.compile(r"^# %%(.*)$", re.MULTILINE)
CELL_ID_LENGTH = 8  # characters; the notebook format allows up to 64
ROOM = ("method", "runtime", "cost", "counted", "simulated", "measured", "plots")
LIBRARY = Path(workbench.__file__).parents[1]
EVIDENCES = ("counted", "simulated", "measured")


def furniture(name: str) -> dict[str, str]:
    """Return the template of each file of a new technique, by path from the project's root."""
    room, notebooks, reproduction = f"workbench/techniques/{name}", f"notebooks/{name}", f"reproductions/{name}"
    return {
        f"{room}/__init__.py": "init.py.j2",
        **{f"{room}/{module}.py": f"{module}.py.j2" for module in ROOM},
        f"{notebooks}/lesson.ipynb": "lesson.nb.j2",
        **{f"{notebooks}/{evidence}.ipynb": f"{evidence}.nb.j2" for evidence in EVIDENCES},
        f"{reproduction}/catalogue.py": "catalogue.py.j2",
        **{f"{reproduction}/{file}": f"{file}.j2" for file in ("items.toml", "claims.csv", "explanations.md")},
        f"{reproduction}/published/table-1.csv": "table-1.csv.j2",
        f"tests/techniques/{name}/test_{name}.py": "test.py.j2",
    }


def new_technique(project: Any, name: str) -> tuple[Path, ...]:
    """Write the first files of a technique; return them in the order in which an author fills them.

    They go to the project's root, or below the current folder if that root is an installed package.
    """
    _check_name(name)
    root = place_to_write(project.root)
    for taken in sorted({str(Path(path).parent) for path in furniture(name)}):
        if (root / taken).exists() or (taken.startswith("workbench/") and (LIBRARY / taken).exists()):
            raise UsageError(f"technique {name!r} exists already: {taken}")
    texts = {root / path: _render(template, name) for path, template in furniture(name).items()}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    return tuple(texts)


def _check_name(name: str) -> None:
    if keyword.iskeyword(name):
        raise UsageError(f"technique name is {name!r}; it must be no keyword of Python, so that it can be imported")
    if not NAME_RULE.fullmatch(name):
        likely = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        hint = f"; did you mean {likely!r}?" if NAME_RULE.fullmatch(likely) and likely != name else ""
        rule = "it must be lower case letters, digits and single underscores, and begin with a letter"
        raise UsageError(f"technique name is {name!r}; {rule}{hint}")


def _render(template: str, name: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(__package__, "templates")
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    names = {"name": name, "slug": name.replace("_", "-"), "spoken": name.replace("_", " ")}
    text = environment.get_template(template).render(names)
    return notebook_json(text) if template.endswith(".nb.j2") else text


def notebook_json(text: str) -> str:
    """Turn cells marked "# %%", "# %% [markdown]" or "# %% [parameters]" into a notebook without outputs."""
    marks = list(CELL_MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    cells = [
        _cell(number, mark.group(1), text[mark.end() : end])
        for number, (mark, end) in enumerate(zip(marks, ends, strict=True))
    ]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return f"{json.dumps(notebook, indent=1, ensure_ascii=False)}\n"


def _cell(number: int, kind: str, body: str) -> dict[str, Any]:
    source = body.strip("\n").splitlines(keepends=True)
    digest = hashlib.sha256(f"{number}{body}".encode()).hexdigest()  # ids depend only on position and content
    common = {"id": digest[:CELL_ID_LENGTH], "source": source}
    if "[markdown]" in kind:
        return {"cell_type": "markdown", "metadata": {}, **common}
    metadata = {"tags": ["parameters"]} if "[parameters]" in kind else {}
    return {"cell_type": "code", "execution_count": None, "metadata": metadata, "outputs": [], **common}
