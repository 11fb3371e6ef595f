"""What can go wrong before anything runs, each as one clear line.

`UsageError` is wrong use (a wrong id, profile, kernel, parameter, folder): the command line shows its text and exits
with code 2.
Source: none, this is the workbench's own convention.
Simplified: one class of wrong use; its text, not its type, says what to do.
Left out: failures of an item while it runs; those are recorded, see `workbench.reproduction.runner`.
"""

__all__ = ["CatalogueError", "ClaimError", "RecordError", "UsageError"]


class UsageError(Exception):
    """Wrong use, told in one line that names the thing; nothing was run and nothing was written."""


class CatalogueError(UsageError):
    """A catalogue that cannot be used, with its file and the field that is wrong."""


class RecordError(UsageError):
    """A record that cannot be trusted: unreadable, of an unknown schema, changed, or of another item or profile."""


class ClaimError(ValueError):
    """A claim that cannot be judged as it is written: an unknown column, units that differ, rows that are ambiguous."""
