"""Machines are killed one by one for real; the memory they keep outlives their ranks and dies with them."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from processes_seen import assert_all_dead_within, family, living, wait_for

from workbench.launch.machine import MachineMemory
from workbench.launch.machines import MachineEnded, Machines, MachineSaid, RankEnded, RankExit, RankSaid


def agent(machine):
    """Start the ranks of the owner's messages (rank, function), or stop them all on None."""
    while True:
        for event in machine.wait(60.0):
            match event:
                case (rank, function):
                    machine.start_rank(rank, function, label="life")
                case None:
                    machine.stop_ranks()
                    machine.tell(machine.ranks)


def count(link):
    """Add one to a counter that the machine keeps, and return it."""
    memory = link.mapped("counter", 8)
    memory[0] += 1
    return memory[0]


def sleep(link):
    subprocess.Popen(["sleep", "600"], start_new_session=True)  # a helper that no group and no signal reaches
    link.tell("asleep")
    time.sleep(600)


@pytest.fixture(scope="module")
def fleet():
    with Machines(echo=False) as machines:
        yield machines


@pytest.fixture
def machines(fleet):
    yield fleet
    fleet.kill_all()


def until(machines, kind, **fields):
    """Return the next event of a kind with these fields."""
    end_s = time.monotonic() + 100
    while time.monotonic() < end_s:
        machines._unread = machines.wait(end_s - time.monotonic())  # looked at one by one; the rest is kept
        while machines._unread:
            event = machines._unread.pop(0)
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items()):
                return event
    raise AssertionError(f"no {kind.__name__} with {fields}")


def put_to_sleep(machines, name, *ranks):
    """Let ranks of a machine sleep; return the process ids of its agent, its ranks and their programs."""
    if name not in machines.names:
        machines.start(name, agent)
    for rank in ranks:
        machines.tell(name, (rank, sleep))
        until(machines, RankSaid, machine=name, rank=rank, message="asleep")
    return family(machines.pids[name]["agent"])


def run(machines, name, function):
    """What a function returned on rank 0 of a machine, once the rank has ended."""
    machines.tell(name, (0, function))
    reply = until(machines, RankSaid, machine=name, rank=0).message
    assert reply.failure is None, reply.traceback
    assert until(machines, RankEnded, machine=name).exit is RankExit.RETURNED
    return reply.value


def test_memory_outlives_a_rank_that_is_killed_with_its_programs_and_dies_with_the_machine(machines):
    machines.start("a", agent)
    counts = [run(machines, "a", count) for _ in range(2)]
    children = put_to_sleep(machines, "a", 0)[1:]
    machines.kill_rank("a", 0)
    assert until(machines, RankEnded, machine="a").exit is RankExit.KILLED
    assert_all_dead_within(children, 20.0)
    counts.append(run(machines, "a", count))
    machines.kill("a")
    machines.start("a", agent)
    assert [*counts, run(machines, "a", count)] == [1, 2, 3, 1]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_killed_machine_takes_its_ranks_and_what_they_started_and_leaves_the_others(machines, is_stopped):
    doomed, spared = put_to_sleep(machines, "a", 0), put_to_sleep(machines, "b", 0)
    assert len(doomed) == len(spared) == 3  # agent, rank, sleep
    if is_stopped:
        os.kill(doomed[0], signal.SIGSTOP)
        wait_for(lambda: psutil.Process(doomed[0]).status() == psutil.STATUS_STOPPED)
    machines.kill("a")
    assert not living(doomed)
    assert living(spared) == spared
    assert machines.names == ("b",)


def test_stopped_ranks_are_gone_before_the_agent_goes_on(machines):
    children = put_to_sleep(machines, "a", 3, 5)[1:]
    machines.tell("a", None)
    assert until(machines, MachineSaid).message == ()
    assert not living(children)


def fail(link):
    raise KeyError("no such layer")


def test_a_rank_that_raises_reports_where_and_its_agent_learns_only_how_it_ended(machines):
    machines.start("a", agent)
    machines.tell("a", (0, fail))
    reply = until(machines, RankSaid).message
    assert reply.message == "raised KeyError: 'no such layer'"
    assert "in fail" in reply.traceback
    assert until(machines, RankEnded).exit is RankExit.RAISED


def ask_twice(link):
    link.memory("replica", 4096)
    with pytest.raises(ValueError) as refused:
        link.memory("replica", 8192)
    with pytest.raises(ValueError) as too_much:
        link.memory("another", 1)
    return str(refused.value), str(too_much.value), link.names()


def test_memory_keeps_its_size_and_stays_within_the_machines_limit(machines):
    machines.start("a", agent, memory_limit_bytes=4096)
    size, limit, names = run(machines, "a", ask_twice)
    assert size == "num_bytes of 'replica' is 8192; it must be 4096 as before"
    assert limit == "num_bytes of 'another' is 1; with the 4096 kept already it must stay within 4096"
    assert names == {"replica": 4096}


def broken(machine):
    raise RuntimeError("no network card")


def test_an_agent_whose_function_raises_reports_why_and_ends(machines):
    machines.start("a", broken)
    assert until(machines, MachineSaid).message.message == "RuntimeError: no network card"
    assert os.waitstatus_to_exitcode(until(machines, MachineEnded).status) == 1


def test_two_machines_of_one_name_are_refused_before_anything_starts(machines):
    machines.start("a", agent)
    with pytest.raises(ValueError, match="name is 'a'; no other machine may have it"):
        machines.start("a", agent)
    with pytest.raises(ValueError, match="host is 0; it must be given if and only if there are shaped hosts"):
        machines.start("b", agent, host=0)
    assert machines.names == ("a",)


@pytest.mark.parametrize("num_bytes", [0, -1, 1.5, True])
def test_a_memory_needs_a_positive_whole_number_of_bytes(num_bytes):
    with pytest.raises(ValueError, match="num_bytes of 'x' is .*; it must be an integer of at least 1"):
        MachineMemory().allocate("x", num_bytes)


OWNER = """
sys.path[:0] = sys.argv[2:]
from test_machines import Machines, put_to_sleep
machines = Machines()
for name in ("a", "b"):
    put_to_sleep(machines, name, 0)
say()
time.sleep(600)
"""


def test_no_process_is_left_two_seconds_after_the_owner_was_killed(start_owner):
    owner, _ = start_owner(OWNER, *map(str, Path(__file__).parents[:2]))
    everyone = family(owner.pid)
    assert len(everyone) == 9  # owner, guard, fork server, and twice agent, rank, sleep
    owner.kill()
    assert_all_dead_within(everyone, 20.0)
