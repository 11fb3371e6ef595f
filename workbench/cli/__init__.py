"""The command line: every command calls one function of the library, and imports it when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Option

from . import advise, author, claims, course, house, look, reproduce, start
from .common import INTERRUPTED

__all__ = ["app", "main"]

FAILED, WRONG_USE = 1, 2  # exit codes
HELP_OPTIONS = ["-h", "--help"]
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}  # modules named otherwise on the index

OVERVIEW = """Reproduce published results on real ranks, and check each claim against its paper.

\b
[bold]Start here[/bold]
  workbench list                              what can be reproduced
  workbench reproduce                         run it all, then read the report
  workbench reproduce 'activation-*/table-*'  run what a pattern names
  workbench report --open                     open the report of the last run
  workbench advise "GPT-2 medium"             which technique pays for your own training
  workbench doctor                            what this machine can do
"""


def _print_version(asked: bool) -> None:
    if asked:
        from workbench.reproduction.machine import own_version

        print(f"workbench {own_version()}")
        raise typer.Exit


def _any_command(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def _build() -> typer.Typer:
    app = typer.Typer(
        name="workbench",
        help=OVERVIEW,
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": HELP_OPTIONS},
        pretty_exceptions_enable=False,
    )
    app.callback()(_any_command)
    for module in (look, advise, reproduce, start, claims, author, course, house):
        module.register(app)
    return app


app = _build()


def command() -> Any:
    """Return the command with those below it; in its help flags and arguments have no type."""
    whole = typer.main.get_command(app)
    waiting: list[Any] = [whole]
    while waiting:
        node = waiting.pop()
        waiting += getattr(node, "commands", {}).values()
        helped = node.get_help_option(node.context_class(node, help_option_names=HELP_OPTIONS))
        for parameter in (*node.params, helped):
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: ""
            elif parameter.is_flag:
                parameter.metavar = ""
    return whole


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command, by default that of the process's arguments, and leave with its exit code."""
    # papermill and nbformat import jsonschema, which would compile 39 grammars of web addresses, in more than a second.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    sys.exit(exit_code(sys.argv[1:] if arguments is None else list(arguments)))


def exit_code(arguments: Sequence[str]) -> int:
    """Run one command; wrong use is one line on stderr and exit code 2; `| head` is no error."""
    from typer.exceptions import Abort, TyperException

    from workbench.reproduction import UsageError

    try:
        code = int(command()(args=list(arguments), prog_name="workbench", standalone_mode=False) or 0)
        sys.stdout.flush()  # here, where an error can still be reported
        return code
    except TyperException as error:
        return _refuse(error.format_message(), error.exit_code)
    except UsageError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "workbench").split(".")[0]
        if package == "workbench":
            raise
        return _refuse(f"the package {package} is missing: pip install {DISTRIBUTIONS.get(package, package)}", FAILED)
    except (Abort, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as left:  # as typer leaves `workbench list | head`: the reader has what it wanted
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        _drop_output()
        return 0
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        why = error.strerror or str(error)
        return _refuse(why, FAILED) if error.filename is None else _refuse(f"{error.filename}: {why}")


def _drop_output() -> None:
    """Point stdout at nothing where it cannot be written, so that it does not fail once more as the process ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(message: str, code: int = WRONG_USE) -> int:
    line = " ".join(message.split())
    if line:  # a group called without a command has shown its help instead
        print(f"workbench: {line}", file=sys.stderr)
    return code
