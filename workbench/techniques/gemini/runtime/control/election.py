"""The election of the root: one key, written by compare-and-set, and the staleness of who is named there.

Source: thesis, section 6.3.2, "the leader election method in the distributed key-value store".
Simplified: who reads that the root is lost tries to write its own name under a higher term; the store lets one win.

The term goes with every order, and agents refuse an order of an older term than they have seen. So a root that was
succeeded while it slept cannot act any more.
"""

from .records import RootRecord

__all__ = ["election_step"]


def election_step(
    *, me: str, record: RootRecord | None, known: RootRecord | None, root_is_lost: bool, seen_term: int
) -> RootRecord | None:
    """Return the record that this machine should try to write in place of the one it has read."""
    candidate = RootRecord(term=seen_term + 1, name=me)
    if record is None:
        if known is not None and known.name == me and known.term == seen_term:
            return known  # the store has forgotten me
        return candidate if root_is_lost else None
    if record.name == me:
        return candidate if seen_term > record.term else None
    return candidate if root_is_lost else None
