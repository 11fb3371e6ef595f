"""Everything below a process is found without looking at the other processes of the machine."""

import subprocess
import sys

import psutil
import pytest
from processes_seen import assert_all_dead_within

from workbench.launch.processes import descendants

pytestmark = pytest.mark.timeout(60)

# A program that starts another in a session of its own; both end after a minute at the latest.
PARENT = """
import subprocess, sys
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(child.pid, flush=True)
sys.exit(child.wait())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_descendants_are_found_from_their_parents_alone(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("walked through all processes")

    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    with parent:
        child_pid = int(parent.stdout.readline())
        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, "children", refuse)
            assert {parent.pid, child_pid} <= set(descendants())
        psutil.Process(child_pid).kill()
    assert_all_dead_within([parent.pid, child_pid], 1.0)


def test_nothing_is_killed_where_nothing_is_below():
    script = (
        "from workbench.launch.processes import descendants, kill_descendants; kill_descendants(); print(descendants())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=40)
    assert done.stdout == "[]\n"
