"""The contract of a key-value store, a store in this process that is its definition, and waiting with a limit.

Source: thesis, section 6.3.2, "distributed key-value store"; the operations are those that etcd and torch's TCPStore
share.
Simplified: values are never empty, because TCPStore reads an empty expected value as "no such key".
Left out: leases and watches of the store's own: whoever reads judges staleness (see `leases`).
"""

import time
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

__all__ = ["KeyValueStore", "MemoryKeyValueStore", "StoreUnavailable", "checked_value", "wait_for_keys"]

POLL_S = 0.01  # seconds between two looks for missing keys


class StoreUnavailable(RuntimeError):
    """The store does not answer now; a later call may find it again, possibly empty."""


@runtime_checkable
class KeyValueStore(Protocol):
    """Keys and values that all machines see; every call returns or raises within a time."""

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none."""

    def set(self, key: str, value: bytes) -> None:
        """Write a value, which must not be empty."""

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if the value is `expected`, in one step."""

    def delete(self, key: str) -> bool:
        """Remove a value; return whether there was one."""

    def close(self) -> None:
        """Let go of the connection; calling it again does nothing."""


class MemoryKeyValueStore:
    """The definition: a dictionary, for one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none."""
        return self.values.get(key)

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        self.values[key] = checked_value("value", value)

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if the value is `expected`; return the value that is there afterwards."""
        checked_value("desired", desired)
        if expected is not None:
            checked_value("expected", expected)
        if self.values.get(key) == expected:
            self.values[key] = desired
        return self.values.get(key)

    def delete(self, key: str) -> bool:
        """Remove a value; return whether there was one."""
        return self.values.pop(key, None) is not None

    def close(self) -> None:
        """Do nothing."""


def checked_value(name: str, value: bytes) -> bytes:
    """Return a value that a store can keep."""
    if not isinstance(value, bytes) or not value:
        raise ValueError(f"{name} is {value!r}; it must be bytes, at least one")
    return value


def wait_for_keys(store: KeyValueStore, keys: Mapping[str, str], timeout_s: float) -> dict[str, bytes]:
    """Wait until several keys have a value."""
    found: dict[str, bytes] = {}
    deadline_s = time.monotonic() + timeout_s
    while True:
        for who in [who for who in keys if who not in found]:
            try:
                value = store.get(keys[who])
            except StoreUnavailable:
                break
            if value is not None:
                found[who] = value
        missing = [who for who in keys if who not in found]
        if not missing:
            return found
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"nothing from {', '.join(missing)} after {timeout_s:g} s")
        time.sleep(POLL_S)
