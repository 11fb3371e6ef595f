"""The tether ends its command with its owner, and everything below, whatever is killed."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from processes_seen import PROGRAM, assert_all_dead_within, family, run_python

from workbench.launch import tethered

HOLDS_THE_LOCK = "start_sleep(); say(); hang()"
# An owner that starts a tethered command and holds the lock as well.
OWNER = """
from workbench.launch import tethered
subprocess.Popen(tethered([sys.executable, "-c", sys.argv[2], path], os.getpid()))
hang()
"""
# Counts a signal for 0.3 s after its first arrival.
COUNTS_SIGNALS = """
import signal
count = []
signal.signal(int(sys.argv[2]), lambda *_: count.append(1))
say()
while not count: time.sleep(0.01)
end = time.monotonic() + 0.3
while time.monotonic() < end: time.sleep(0.05)
print(len(count))
"""
# Starts a program in a session of its own, and kills all that is below it without looking at the machine's processes.
KILLER = """
import subprocess, psutil
from workbench.launch.processes import kill_descendants
def refuse(*args, **kwargs):
    raise AssertionError("walked through all processes")
psutil.Process.children = refuse
kill_descendants()
below = subprocess.Popen(["sh", "-c", "setsid sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
sleep = int(below.stdout.readline())
kill_descendants()
print(below.pid, sleep)
"""


def start(*command: str, **options) -> subprocess.Popen:
    return subprocess.Popen(tethered(command, os.getpid()), **options)


def test_killing_the_owner_kills_a_command_that_holds_the_interpreter_lock(start_owner):
    owner, _ = start_owner(OWNER, PROGRAM + HOLDS_THE_LOCK)
    everyone = family(owner.pid)
    assert len(everyone) == 5  # owner, tether, guard, command, its child
    owner.kill()
    assert_all_dead_within(everyone, 20.0)  # the owner is a zombie


@pytest.mark.parametrize("killed", [0, 1], ids=["tether", "guard"])
def test_killing_the_tether_or_its_guard_kills_command_and_grandchildren(killed, start_owner):
    tether, _ = start_owner(HOLDS_THE_LOCK, under_tether=True)
    everyone = family(tether.pid)
    assert len(everyone) == 4  # tether, guard, command, its child
    psutil.Process(everyone[killed]).kill()
    assert_all_dead_within(everyone, 20.0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_everything_below_a_process_is_found_from_its_parents_alone():
    done = run_python("-c", KILLER)
    assert_all_dead_within(map(int, done.stdout.split()), 20.0)
    assert len(done.stdout.split()) == 2, done.stderr


def test_a_grandchild_ends_with_a_command_that_ends_by_itself(start_owner):
    tether, words = start_owner("say(start_sleep())", under_tether=True)
    assert tether.wait(60) == 0
    assert_all_dead_within(map(int, words), 20.0)


def test_the_status_of_the_command_is_that_of_the_tether():
    assert start("sh", "-c", "exit 7").wait(60) == 7
    assert start("sh", "-c", "kill -SEGV $$").wait(60) == -signal.SIGSEGV


def test_a_command_that_does_not_exist_is_named(capfd):
    assert start("no-such-program").wait(60) == 127
    assert capfd.readouterr().err == "tether: cannot start no-such-program: No such file or directory\n"


def test_nothing_is_started_for_an_owner_that_is_gone(tmp_path):
    owner = subprocess.Popen(["true"])
    owner.wait()
    mark = tmp_path / "mark"
    subprocess.Popen(tethered(["touch", str(mark)], owner.pid)).wait(20)
    assert not mark.exists()


def test_wrong_use_is_reported_in_one_line():
    done = run_python(*tethered([], os.getpid())[1:])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("usage:")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_group_of_the_tether_arrives_once(number, start_owner):
    options = {"under_tether": True, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    tether, _ = start_owner(COUNTS_SIGNALS, str(number.value), **options)
    os.killpg(tether.pid, number)
    assert tether.wait(60) == 0
    assert tether.stdout.read() == "1\n"
