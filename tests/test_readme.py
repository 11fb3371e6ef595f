"""README and docs: commands exist, short offline ones run, links lead somewhere, and verdicts are today's."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer
from front_page import PICTURE, ROOT, SAYS, papers, recorded_only, score_sentence, with_verdicts
from PIL import Image

from workbench.cli import app, exit_code
from workbench.reproduction import load_catalogue

MOST_LINES = 150  # of the README
PATHS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *map(ROOT.joinpath, ("CONTRIBUTING.md", "CHANGELOG.md"))]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in PATHS}
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", "\n".join(PAGES.values()), re.DOTALL)
LINES = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines() if line.strip()]
COMMANDS = list(dict.fromkeys(LINES))
EXAMPLES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}
PYTHON = [text for language, text in BLOCKS if language == "python" and text not in EXAMPLES.values()]
OFFLINE_AND_SHORT = re.compile(r"workbench (list|show|data list|kernels list|reproduce .*--dry-run)")


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for command in COMMANDS if command.startswith("make ") for word in command.split()[1:]}
    assert named and named <= targets


def test_the_two_commands_are_the_first():
    assert COMMANDS[:2] == ["make reproduce", "make test"]


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= MOST_LINES


def test_verdicts_and_picture_are_those_of_the_recorded_runs(tmp_path):
    text, project = PAGES["README.md"], recorded_only(tmp_path)
    assert with_verdicts(text, papers(project, load_catalogue(project))) == text, "run python tests/front_page.py"
    assert Image.open(PICTURE).text[SAYS] == score_sentence(text), "run python tests/front_page.py"


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("workbench")])
def test_every_workbench_command_parses(command):
    context = click.Context(typer.main.get_command(app))
    words = shlex.split(command)[1:]
    while isinstance(context.command, click.Group):
        name, subcommand, words = context.command.resolve_command(context, words)
        context = click.Context(subcommand, info_name=name, parent=context)
    context.command.parse_args(context, words)


@pytest.mark.parametrize("command", [command for command in COMMANDS if OFFLINE_AND_SHORT.match(command)])
def test_short_offline_commands_run(command, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert exit_code(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("code", PYTHON)
def test_every_python_example_runs(code):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("technique", EXAMPLES)
def test_an_example_stands_whole_in_the_docs_and_the_readme_has_its_line(technique):
    assert ("python", EXAMPLES[technique]) in BLOCKS
    row = next(line for line in PAGES["README.md"].splitlines() if f"](notebooks/{technique}/" in line)
    call = re.search(r"\| `(.+?)\)?` \|", row)[1]
    assert call in EXAMPLES[technique]


@pytest.mark.parametrize("path", PATHS, ids=PAGES)
def test_every_file_and_heading_that_a_page_links_to_is_there(path):
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", PAGES[path.name]):
        target = path.parent / (file or path.name)
        assert target.exists(), file
        assert not anchor or anchor in headings(target), f"{file}#{anchor}"


def headings(page: Path) -> set[str]:
    """Return the anchors that a page's headings get."""
    titles = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_table_begins_with_a_heading():
    for name, page in PAGES.items():
        for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):  # rows behind an empty line are no table
            assert set(table.splitlines()[1]) <= set("|-: "), name
