"""The furniture of a new technique: its room, lesson, catalogue, published table and test, which pass and run as they are.

Source: the workbench's own conventions: each technique has the same files, named alike, with the same order of cells.
Simplified: the example in it is the mean over ranks, whose bytes have a closed form; the author replaces it.
Left out: the paper.
"""

from __future__ import annotations

import hashlib
import json
import keyword
import re
from pathlib import Path
from typing import Any

from workbench.reproduction.errors import UsageError
from workbench.reproduction.records import write_whole

__all__ = ["furniture", "new_technique", "notebook_json"]

NAME_RULE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
CELL_MARK = re.compile(r"^# %%(.*)$", re.MULTILINE)
CELL_ID_LENGTH = 8  # characters; the notebook format allows up to 64


def furniture(name: str) -> dict[str, str]:
    """Return the files of a new technique, by path from the project's root, mapped to the template of each."""
    room = f"workbench/techniques/{name}"
    return {
        f"{room}/__init__.py": "init.py.j2",
        f"{room}/method.py": "method.py.j2",
        f"{room}/runtime.py": "runtime.py.j2",
        f"{room}/cost.py": "cost.py.j2",
        f"notebooks/{name}/lesson.ipynb": "lesson.nb.j2",
        f"notebooks/{name}/bytes.ipynb": "bytes.nb.j2",
        f"reproductions/{name}/catalogue.py": "catalogue.py.j2",
        f"reproductions/{name}/published/table-1.csv": "table-1.csv.j2",
        f"tests/techniques/{name}/test_{name}.py": "test.py.j2",
    }


def new_technique(project: Any, name: str) -> tuple[Path, ...]:
    """Write the furniture of a technique into a project.

    Args:
        project: where the folders are.
        name: the technique's name: lower case, digits and single underscores.

    Returns:
        The files written, in the order in which an author fills them.

    Raises:
        UsageError: where the name is not one, or any of its files or folders exists already.
    """
    _check_name(name)
    root = Path(project.root)
    for taken in sorted({str(Path(path).parent) for path in furniture(name)}):
        if root.joinpath(taken).exists():
            raise UsageError(f"technique {name!r} exists already: {taken}")
    texts = {path: _render(template, name) for path, template in furniture(name).items()}
    return tuple(_write(root / path, text) for path, text in texts.items())


def _check_name(name: str) -> None:
    if keyword.iskeyword(name):
        raise UsageError(f"technique name {name!r} is a keyword of Python, so it cannot be imported; choose another")
    if not NAME_RULE.fullmatch(name):
        likely = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        hint = f"; did you mean {likely!r}?" if NAME_RULE.fullmatch(likely) and likely != name else ""
        rule = "it must be lower case letters, digits and single underscores, and begin with a letter"
        raise UsageError(f"technique name is {name!r}; {rule}{hint}")


def _render(template: str, name: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, "templates"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    text = environment.get_template(template).render(
        name=name, slug=name.replace("_", "-"), spoken=name.replace("_", " ")
    )
    return notebook_json(text) if template.endswith(".nb.j2") else text


def notebook_json(text: str) -> str:
    """Turn cells marked "# %%", "# %% [markdown]" or "# %% [parameters]" into a notebook without outputs.

    Args:
        text: the cells, in the percent format that editors know.

    Returns:
        The notebook as JSON, format 4.5; the cells' ids depend on place and content alone.
    """
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
    return (
        json.dumps(
            {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1, ensure_ascii=False
        )
        + "\n"
    )


def _cell(number: int, kind: str, body: str) -> dict[str, Any]:
    source = body.strip("\n").splitlines(keepends=True)
    common = {"id": hashlib.sha256(f"{number}{body}".encode()).hexdigest()[:CELL_ID_LENGTH], "source": source}
    if "[markdown]" in kind:
        return {"cell_type": "markdown", "metadata": {}, **common}
    metadata = {"tags": ["parameters"]} if "[parameters]" in kind else {}
    return {"cell_type": "code", "execution_count": None, "metadata": metadata, "outputs": [], **common}


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return path
