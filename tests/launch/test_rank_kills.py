"""Whatever kills the owner of ranks, no process is left a second later; Ctrl-C is clean."""

import os
import signal
import subprocess

import psutil
import pytest
from processes_seen import assert_all_dead_within, family, wait_for

OWNER = """
from workbench.launch import Ranks
def stuck():
    if os.environ["RANK"] == "1":
        start_sleep()
        say()
    hang()
ranks = Ranks(2)
"""
# What an owner does once its ranks run.
SITUATIONS = {
    "holding the interpreter lock": "say(); hang()",
    "with a thread that waits for a rank in a long C call": "run = ranks.start(stuck); time.sleep(600)",
    "beside a forked child with the same descriptors": "child = os.fork() or hang(); say(child); hang()",
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_process_is_left_a_second_after_the_owner_was_killed(situation, start_owner):
    owner, words = start_owner(OWNER + SITUATIONS[situation])
    everyone = family(owner.pid)
    assert len(everyone) >= 5  # owner, guard, fork server, two ranks
    forked = [int(word) for word in words]
    owner.kill()
    assert_all_dead_within(set(everyone) - set(forked), 20.0)  # the owner is still unreaped
    for pid in forked:
        os.kill(pid, signal.SIGKILL)


def fork_server_of(owner: subprocess.Popen) -> int:
    [guard] = psutil.Process(owner.pid).children()
    [fork_server] = guard.children()
    return fork_server.pid


# A rank starts one program in its own group, one in a session of its own, and one that lost its parent.
STARTERS = """
def start():
    pids = [os.getpid()]
    pids += [subprocess.Popen(["sleep", "60"], start_new_session=new).pid for new in (False, True)]
    twice = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=2, start_new_session=True).pid)"
    pids.append(int(subprocess.run([sys.executable, "-c", twice], stdout=subprocess.PIPE).stdout))
    return pids
say(*sum(ranks.run(start), []))
time.sleep(60)
"""


@pytest.mark.parametrize("killed", ["fork server", "guard", "owner"])
def test_programs_of_ranks_end_with_the_fork_server_its_guard_or_the_owner(killed, start_owner):
    owner, words = start_owner(OWNER + STARTERS)
    assert len(words) == 2 * 4  # of each of two ranks: itself and three programs
    fork_server = fork_server_of(owner)
    processes = {"fork server": fork_server, "guard": psutil.Process(fork_server).ppid(), "owner": owner.pid}
    os.kill(processes[killed], signal.SIGKILL)
    assert_all_dead_within([*map(int, words), fork_server, processes["guard"]], 20.0)


def test_no_process_is_left_when_the_owner_is_killed_while_ranks_start(start_owner):
    owner, _ = start_owner(f"say()\n{OWNER}")
    wait_for(lambda: len(family(owner.pid)) == 3)  # the fork server is there, importing torch, and its guard
    with pytest.raises(subprocess.TimeoutExpired):
        owner.wait(0.2)
    everyone = family(owner.pid)
    owner.kill()
    assert_all_dead_within(everyone, 20.0)


def test_an_owner_that_ends_without_closing_leaves_nothing(start_owner):
    owner, words = start_owner(f"{OWNER}say(os.getpid(), *ranks.pids)")
    assert owner.wait(60) == 0
    assert_all_dead_within(map(int, words), 20.0)


INTERRUPTED = """
try:
    ranks.run(stuck)
except KeyboardInterrupt:
    print("interrupted", len(ranks.pids), flush=True)
print(ranks.run(lambda: 5), flush=True)
"""


def test_ctrl_c_stops_the_ranks_and_the_next_run_works(start_owner):
    owner, _ = start_owner(OWNER + INTERRUPTED, stdout=subprocess.PIPE, text=True, start_new_session=True)
    below = family(fork_server_of(owner))[1:]
    assert len(below) == 3  # two ranks and the program one of them started
    os.killpg(owner.pid, signal.SIGINT)
    assert owner.stdout.readline() == "interrupted 0\n"
    assert_all_dead_within(below, 20.0)
    assert owner.stdout.readline() == "[5, 5]\n"
    assert owner.wait(60) == 0
