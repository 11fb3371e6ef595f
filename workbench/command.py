"""The installed command `workbench`: Ctrl-C while the command line is imported is one line, too."""

import sys

__all__ = ["main"]

INTERRUPTED = 130  # exit code, as after SIGINT in a shell


def main() -> None:
    """Run one command with the process's arguments, and leave with its exit code."""
    try:
        from workbench.cli import main as run
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    run()
