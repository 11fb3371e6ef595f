"""The tether ends its command with its owner, and everything below, whatever is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processes_seen import assert_all_dead_within, family, wait_for_text

from workbench.launch import tethered

pytestmark = pytest.mark.timeout(60)

# Starts a grandchild, writes its id, then sleeps in C with the interpreter lock held.
HOLDS_THE_LOCK = """
import ctypes, os, subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}\\n")
ctypes.PyDLL(None).sleep(600)
"""
# Counts a signal for 0.3 s after its first arrival.
COUNTS_SIGNALS = """
import signal, sys, time
number, path = int(sys.argv[1]), sys.argv[2]
count = []
signal.signal(number, lambda *_: count.append(1))
print("ready", flush=True)
while not count: time.sleep(0.01)
end = time.monotonic() + 0.3
while time.monotonic() < end: time.sleep(0.05)
open(path, "w").write(f"{len(count)}\\n")
"""
# An owner that starts a tethered command and holds the lock as well.
OWNER = """
import ctypes, os, subprocess, sys
from workbench.launch.tether import tethered
subprocess.Popen(tethered([sys.executable, "-c", sys.argv[1], sys.argv[2]], os.getpid()))
ctypes.PyDLL(None).sleep(600)
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


@pytest.fixture
def stuck(tmp_path: Path):
    """A tether around a command with a grandchild; the command holds its interpreter lock."""
    pids = tmp_path / "pids"
    tether = start(sys.executable, "-c", HOLDS_THE_LOCK, str(pids))
    wait_for_text(pids)
    yield tether
    tether.kill()
    tether.wait()


def test_killing_the_owner_kills_a_command_that_holds_the_interpreter_lock(tmp_path):
    pids = tmp_path / "pids"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, HOLDS_THE_LOCK, str(pids)])
    wait_for_text(pids)
    everyone = family(owner.pid)
    assert len(everyone) == 5  # owner, tether, guard, command, its child
    owner.kill()
    assert_all_dead_within(everyone, 1.0)  # the owner is a zombie until the next line
    owner.wait()


@pytest.mark.parametrize("killed", [0, 1], ids=["tether", "guard"])
def test_killing_the_tether_or_its_guard_kills_command_and_grandchildren(killed, stuck):
    everyone = family(stuck.pid)
    assert len(everyone) == 4  # tether, guard, command, its child
    psutil.Process(everyone[killed]).kill()
    assert_all_dead_within(everyone, 1.0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_everything_below_a_process_is_found_from_its_parents_alone():
    done = subprocess.run([sys.executable, "-c", KILLER], capture_output=True, text=True, timeout=40)
    assert_all_dead_within(map(int, done.stdout.split()), 0.1)
    assert len(done.stdout.split()) == 2, done.stderr


def test_a_grandchild_ends_with_a_command_that_ends_by_itself(tmp_path):
    pids = tmp_path / "pids"
    script = 'sleep 600 & echo $! > "$0"; exit 0'
    tether = start("sh", "-c", script, str(pids))
    assert tether.wait(20) == 0
    assert_all_dead_within([int(wait_for_text(pids))], 1.0)


def test_the_status_of_the_command_is_that_of_the_tether():
    assert start("sh", "-c", "exit 7").wait(20) == 7
    assert start("sh", "-c", "kill -SEGV $$").wait(20) == -signal.SIGSEGV


def test_a_command_that_does_not_exist_is_named(capfd):
    assert start("no-such-program").wait(20) == 127
    assert capfd.readouterr().err == "tether: cannot start no-such-program: No such file or directory\n"


def test_nothing_is_started_for_an_owner_that_is_gone(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    mark = tmp_path / "mark"
    subprocess.Popen(tethered(["touch", str(mark)], gone.pid)).wait(20)
    assert not mark.exists()


def test_wrong_use_is_reported_in_one_line():
    done = subprocess.run([*tethered([], os.getpid())], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("usage:")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_group_of_the_tether_arrives_once(number, tmp_path):
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", COUNTS_SIGNALS, str(number.value), str(seen)]
    tether = start(*command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert tether.stdout.readline() == "ready\n"
    os.killpg(tether.pid, number)
    assert tether.wait(20) == 0
    tether.stdout.close()
    assert seen.read_text() == "1\n"
