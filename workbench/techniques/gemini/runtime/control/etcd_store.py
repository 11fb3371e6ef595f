"""etcd behind the store's contract, through its HTTP gateway.

Source: etcd's API v3 (transactions with a compare on the version or the value of a key); client: etcd3gw.
Simplified: no authentication, no watches, no leases of etcd's own.
Left out: several endpoints; give the address of a proxy.
"""

import base64
import contextlib
from typing import Any
from urllib.parse import urlsplit

from .store import StoreUnavailable, checked_value

__all__ = ["EtcdKeyValueStore"]


class EtcdKeyValueStore:
    """A client of an etcd server."""

    def __init__(self, url: str, *, prefix: str = "", timeout_s: float = 1.0):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
            raise ValueError(f"url is {url!r}; it must be http://host:port or https://host:port")
        try:
            from etcd3gw.client import Etcd3Client
            from requests import Session
        except ImportError as error:
            raise ImportError('etcd needs its client: pip install "workbench[etcd]"') from error
        session = Session()
        session.trust_env = False  # no proxy between the machines of a cluster
        self._client: Any = Etcd3Client(
            parts.hostname, parts.port, parts.scheme, timeout=timeout_s, api_path="/v3/", session=session
        )
        self._url = url
        self._prefix = prefix

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none."""
        with self._asking():
            values = self._client.get(self._prefix + key)
        return values[0] if values else None

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        checked_value("value", value)
        with self._asking():
            self._client.put(self._prefix + key, value)

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Write `desired` if the value is `expected`; return the value that is there afterwards."""
        checked_value("desired", desired)
        if expected is not None:
            checked_value("expected", expected)
        name = _base64(self._prefix.encode() + key.encode())
        with self._asking():
            answer = self._client.transaction(
                {
                    "compare": [_condition(name, expected)],
                    "success": [{"request_put": {"key": name, "value": _base64(desired)}}],
                    "failure": [{"request_range": {"key": name}}],
                }
            )
        if answer.get("succeeded"):
            return desired
        found = answer["responses"][0]["response_range"].get("kvs", [])
        return base64.b64decode(found[0]["value"]) if found else None

    def delete(self, key: str) -> bool:
        """Remove a value; return whether there was one."""
        with self._asking():
            return bool(self._client.delete(self._prefix + key))

    def keys_with(self, start: str) -> list[str]:
        """Return the keys that begin with some text, without this store's prefix."""
        with self._asking():
            found = self._client.get_prefix(self._prefix + start)
        return [one["key"].decode()[len(self._prefix) :] for _, one in found]

    def delete_all(self) -> None:
        """Remove every key with this store's prefix."""
        if not self._prefix:
            raise ValueError("prefix is empty; delete_all needs one")
        with self._asking():
            self._client.delete_prefix(self._prefix)

    @contextlib.contextmanager
    def _asking(self):
        from etcd3gw.exceptions import Etcd3Exception
        from requests import RequestException

        try:
            yield
        except (Etcd3Exception, RequestException, OSError) as error:
            raise StoreUnavailable(f"the store at {self._url} does not answer: {error}") from error

    def close(self) -> None:
        """Let go of the connection; calling it again does nothing."""
        self._client.session.close()


def _condition(name: str, expected: bytes | None) -> dict[str, Any]:
    if expected is None:
        return {"key": name, "target": "VERSION", "result": "EQUAL", "version": 0}
    return {"key": name, "target": "VALUE", "result": "EQUAL", "value": _base64(expected)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
