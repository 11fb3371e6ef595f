"""Ranks of a process without standard streams, in a deleted folder, and ranks that write where their answers go."""

import contextlib
import os
import subprocess
import sys

import pytest

from workbench.launch import FailureKind, RankFailed, Ranks, tethered
from workbench.launch.environment import own_environment
from workbench.launch.messages import NotAMessage, channel_pair
from workbench.techniques.gemini.control import run_training

pytestmark = pytest.mark.timeout(500)

PROGRAM = """
import os, sys

def speak(context=None):
    import torch
    import torch.distributed as dist
    print("heard")
    print("said", file=sys.stderr)
    total = torch.ones(2, 2) @ torch.ones(2, 2)
    dist.all_reduce(total)
    return total.sum().item(), os.path.exists(".")

if __name__ == "__main__":
    from workbench.launch import run_on_ranks
    from workbench.techniques.gemini.control import run_training
    if len(sys.argv) > 2:  # torch itself cannot be imported in a folder that was deleted
        os.mkdir(sys.argv[2])
        os.chdir(sys.argv[2])
        os.rmdir(sys.argv[2])
    with open(sys.argv[1], "w") as file:
        file.write(f"{run_on_ranks(speak, 2)} {run_training(speak, 2, timeout_s=300).results}")
"""
RIGHT = "[(16.0, True), (16.0, True)] ((16.0, True), (16.0, True))"


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "result")]


@pytest.mark.parametrize(
    ("words", "under_tether", "deleted"),
    [("<&-", False, []), ("<&- >&- 2>&-", False, []), ("<&- >&- 2>&-", True, ["gone"])],
    ids=["no input", "no streams", "no streams of a tether and no folder"],
)
def test_ranks_work_where_standard_streams_are_closed_and_in_a_deleted_folder(
    program, tmp_path, words, under_tether, deleted
):
    command = [*program, *(str(tmp_path / name) for name in deleted)]
    shell = ["sh", "-c", f'exec "$@" {words}', "sh", *(tethered(command, os.getpid()) if under_tether else command)]
    done = subprocess.run(shell, env=own_environment(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "result").read_text() == RIGHT
    assert done.stdout.count("heard") == (4 if words == "<&-" else 0)


def write_to_sockets(words):
    """Write into every descriptor that is a socket, as a program does that has mistaken a number."""
    import torch.distributed as dist

    if dist.get_rank() == 1:
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/dev/fd/{name}").startswith("socket:"):
                    os.write(int(name), words)
    return dist.get_rank()


@pytest.mark.parametrize("words", [b"gar", b"garbage" * 9, b"\x01" + bytes(40)], ids=["short", "long", "zeros"])
def test_a_rank_that_writes_where_its_answers_go_is_named_and_the_pool_can_be_used_again(pools, words):
    with pytest.raises(RankFailed, match="rank 1 sent what cannot be read: b'.*' is no message") as failed:
        pools(2).run(write_to_sockets, words, timeout_s=200)
    assert [failure.kind for failure in failed.value.failures if failure.rank == 1] == [FailureKind.RAISED]
    assert pools(2).run(os.getpid) == list(pools(2).pids)


def test_a_rank_to_which_something_else_is_sent_says_so():
    with Ranks(1, echo=False) as ranks:
        ranks._group._ranks[0].channel._socket.send(b"garbage" * 9)
        with pytest.raises(RankFailed, match="NotAMessage: b'.*' is no message of the workbench"):
            ranks.run(os.getpid)
        assert ranks.run(os.getpid) == list(ranks.pids)


def test_a_training_ends_with_the_name_of_a_rank_that_writes_where_its_answers_go():
    with pytest.raises(RankFailed, match="rank 1 sent what cannot be read: b'.*' is no message"):
        run_training(lambda context: write_to_sockets(b"garbage" * 9), 2, timeout_s=300)


def test_what_is_no_message_is_refused_at_once_and_its_descriptors_are_closed():
    num_open = len(os.listdir("/dev/fd"))
    for words in (b"\n", b"wbm2", b"garbage" * 99, b"wbm1\x01" + bytes(16), b"wbm1\x00" + b"\xff" * 16):
        sender, receiver = channel_pair()
        with contextlib.closing(sender), contextlib.closing(receiver):
            sender._socket.sendmsg([words], [])
            with pytest.raises(NotAMessage, match="no message of the workbench"):
                receiver.receive()
    assert len(os.listdir("/dev/fd")) == num_open
