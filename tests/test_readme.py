"""The README's commands exist, and those that are offline and short run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from workbench.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines() if line.strip()]
EXAMPLES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}
PYTHON = [text for language, text in BLOCKS if language == "python" and text not in EXAMPLES.values()]
OFFLINE_AND_SHORT = re.compile(r"workbench (list|show|data list|kernels list|reproduce .*--dry-run)")


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for command in COMMANDS if command.startswith("make ") for word in command.split()[1:]}
    assert named and named <= targets


def test_the_two_commands_are_the_first():
    assert COMMANDS[:2] == ["make reproduce", "make test"]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("workbench")])
def test_every_workbench_command_parses(command):
    context = click.Context(typer.main.get_command(app))
    words = shlex.split(command)[1:]
    while isinstance(context.command, click.Group):
        name, found, words = context.command.resolve_command(context, words)
        context = click.Context(found, info_name=name, parent=context)
    context.command.parse_args(context, words)


@pytest.mark.parametrize("command", [command for command in COMMANDS if OFFLINE_AND_SHORT.match(command)])
def test_short_offline_commands_run(command):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(shlex.split(command), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("code", PYTHON)
def test_every_python_example_runs(code):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("technique", EXAMPLES)
def test_an_example_stands_whole_in_the_readme(technique):
    assert ("python", EXAMPLES[technique]) in BLOCKS


def test_every_file_the_readme_shows_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links and not [link for link in links if not (ROOT / link).exists()]


def test_every_table_begins_with_a_heading():
    tables = re.findall(r"(?:^\|.*\n)+", README, re.MULTILINE)  # rows behind an empty line would be a table without one
    assert tables and all(set(table.splitlines()[1]) <= set("|- ") for table in tables)
