"""Errors of wrong use: each is one clear line, and nothing was run or written."""

__all__ = ["CatalogueError", "ClaimError", "RecordError", "UsageError"]


class UsageError(Exception):
    """Wrong use, such as an unknown id, profile or kernel; the command line shows the text and exits with code 2."""


class CatalogueError(UsageError):
    """A catalogue that cannot be used, with its file and the field that is wrong."""


class RecordError(UsageError):
    """A record that cannot be trusted: unreadable, of an unknown schema, changed, or of another item or profile."""


class ClaimError(ValueError):
    """A claim that cannot be judged as it is written: an unknown column, units that differ, rows that are ambiguous."""
