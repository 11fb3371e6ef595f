"""Leases: who is alive, judged by a counter that grows and by the watcher's own clock.

Source: thesis, section 6.3.2: a failure is detected when "health status has not been updated for a predefined time".
Simplified: no clocks are compared, so none need agree; a machine is lost when the watcher has seen the same count for
longer than the lease.
"""

from collections.abc import Sequence

__all__ = ["LeaseBook", "is_expired_by_definition"]


def is_expired_by_definition(seen: Sequence[tuple[float, int | None]], lease_s: float, now_s: float) -> bool:
    """Tell from all that a watcher has seen of a machine whether its lease has expired."""
    first_seen_s: dict[int, float] = {}
    for time_s, count in seen:
        if count is not None:
            first_seen_s.setdefault(count, time_s)
    renewed_s = max([seen[0][0], *first_seen_s.values()])
    return now_s - renewed_s > lease_s


class LeaseBook:
    """The counts that a watcher has seen, and when; a count may stay the same for `lease_s`."""

    def __init__(self, lease_s: float, start_s: float | None = None):
        self.lease_s = lease_s
        self.start_s = lease_s if start_s is None else start_s
        for name in ("lease_s", "start_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be above 0")
        self._seen: dict[str, tuple[int | None, float]] = {}  # count, when it was first seen

    def look(self, name: str, count: int | None, now_s: float) -> None:
        """Note what was read of a machine; the first look, also at nothing, starts its lease."""
        last, _ = self._seen.get(name, (None, now_s))
        if name not in self._seen or (count is not None and count != last):
            self._seen[name] = count, now_s

    def is_expired(self, name: str, now_s: float, *, leases: float = 1.0) -> bool:
        """Return whether a machine that was looked for is lost."""
        if name not in self._seen:
            return False
        count, renewed_s = self._seen[name]
        return now_s - renewed_s > leases * (self.start_s if count is None else self.lease_s)

    def pardon(self, now_s: float) -> None:
        """Give everybody a fresh lease, because the watcher itself could not look for a while."""
        self._seen = {name: (count, now_s) for name, (count, _) in self._seen.items()}

    def taken_over(self, start_s: float) -> "LeaseBook":
        """Return a book of the same lease that knows what this one knows."""
        book = LeaseBook(self.lease_s, start_s)
        book._seen.update(self._seen)
        return book
