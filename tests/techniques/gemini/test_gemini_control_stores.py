"""One contract for every key-value store: the dictionary, torch's TCPStore, and etcd."""

import contextlib
import multiprocessing
import os
import time
import warnings

import pytest
from stores import MemoryKeyValueStore, free_port, running_etcd

from workbench.techniques.gemini.runtime import EtcdKeyValueStore, StoreUnavailable, TcpKeyValueStore
from workbench.techniques.gemini.runtime.control.store import KeyValueStore, listening_socket, serve_tcp_store

pytestmark = pytest.mark.timeout(60)


def serve(listening):
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    server = serve_tcp_store(listening)
    while server:
        time.sleep(1.0)


@contextlib.contextmanager
def tcp_server(port=0):
    """Run a TCPStore server in a process of its own, and give its port."""
    listening = listening_socket("127.0.0.1", port)
    process = multiprocessing.get_context("fork").Process(target=serve, args=[listening], daemon=True)
    with warnings.catch_warnings():  # about forking a process with threads, which this server does not mind
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    port = listening.getsockname()[1]
    listening.close()
    yield port
    process.kill()
    process.join()


@pytest.fixture(scope="module")
def etcd_url(tmp_path_factory):
    with running_etcd(tmp_path_factory.mktemp("etcd")) as url:
        yield url


@pytest.fixture(params=["dictionary", "tcp", "etcd"])
def store(request):
    if request.param == "dictionary":
        yield MemoryKeyValueStore()
    elif request.param == "tcp":
        with tcp_server() as port, contextlib.closing(TcpKeyValueStore("127.0.0.1", port)) as client:
            yield client
    else:
        client = EtcdKeyValueStore(request.getfixturevalue("etcd_url"), prefix=f"test-{time.monotonic_ns()}/")
        yield client
        client.delete_all()
        client.close()


def test_a_value_is_there_after_it_was_set_and_compare_set_writes_only_over_the_expected_one(store):
    assert isinstance(store, KeyValueStore)
    assert store.get("b") is None
    store.set("b", b"\x00\xff binary")
    assert store.get("b") == b"\x00\xff binary"
    assert store.compare_set("a", b"old", b"1") is None  # no value, and one was expected
    assert store.get("a") is None
    assert store.compare_set("a", None, b"1") == b"1"
    assert store.compare_set("a", None, b"2") == b"1"
    assert store.compare_set("a", b"0", b"2") == b"1"
    assert store.compare_set("a", b"1", b"2") == b"2"
    assert store.get("a") == b"2"
    assert store.compare_set("a", b"2", b"2") == b"2"


@pytest.mark.parametrize("empty", [b"", "text"])
def test_empty_values_and_text_are_refused(store, empty):
    with pytest.raises(ValueError, match="value is .*; it must be bytes, at least one"):
        store.set("a", empty)
    with pytest.raises(ValueError, match="desired is .*; it must be bytes, at least one"):
        store.compare_set("a", None, empty)
    with pytest.raises(ValueError, match="expected is .*; it must be bytes, at least one"):
        store.compare_set("a", empty, b"1")
    assert store.get("a") is None


def test_of_many_clients_one_wins_and_finds_a_store_that_was_killed_and_started_again_empty():
    with tcp_server() as port:
        clients = [TcpKeyValueStore("127.0.0.1", port, timeout_s=0.5) for _ in range(4)]
        answers = [client.compare_set("a", None, b"%d" % number) for number, client in enumerate(clients)]
        assert answers == [b"0"] * 4
    client = clients[0]
    with pytest.raises(StoreUnavailable, match=f"the store at 127.0.0.1:{port} does not answer"):
        client.get("a")
    with pytest.raises(StoreUnavailable):  # nobody listens
        client.set("a", b"2")
    with tcp_server(port):
        assert client.get("a") is None
        client.set("a", b"3")
        assert client.get("a") == b"3"


@pytest.mark.parametrize("url", ["127.0.0.1:2379", "http://127.0.0.1", "ftp://host:1"])
def test_an_etcd_url_needs_scheme_host_and_port(url):
    with pytest.raises(ValueError, match="url is .*; it must be http://host:port or https://host:port"):
        EtcdKeyValueStore(url)


def test_an_etcd_server_that_is_not_there_is_unavailable():
    pytest.importorskip("etcd3gw")
    store = EtcdKeyValueStore(f"http://127.0.0.1:{free_port()}", timeout_s=0.5)
    with pytest.raises(StoreUnavailable):
        store.get("a")
    with pytest.raises(ValueError, match="prefix is empty"):
        store.delete_all()
