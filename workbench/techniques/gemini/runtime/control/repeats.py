"""When to give a training up: the same error again and again, and no progress between.

Source: ours; a cluster's restart policies count restarts alike.
Simplified: errors are the same where their tracebacks are.
Left out: errors that take turns.
"""

__all__ = ["MOST_REPEATS", "Repeats"]

MOST_REPEATS = 3  # generations in a row that end with the same error before training is given up


class Repeats:
    """Counts generations in a row that ended with the same error and without progress."""

    def __init__(self) -> None:
        self._signature, self._generation, self._progress, self._times = "", 0, 0, 0

    def is_hopeless(self, signature: str, generation: int, progress: int) -> bool:
        """Count an error; only the first of a generation does."""
        if generation == self._generation:
            return False
        before = self._signature, self._generation, self._progress
        self._times = self._times + 1 if (signature, generation - 1, progress) == before else 1
        self._signature, self._generation, self._progress = signature, generation, progress
        return self._times == MOST_REPEATS
