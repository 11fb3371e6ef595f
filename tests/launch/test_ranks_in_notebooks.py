"""Ranks started from cells of an installed kernel, under its tether: output, functions, tracebacks, interruption."""

import os
import re
import time

import pytest
from jupyter_client.manager import start_new_kernel
from processes_seen import assert_all_dead_within, family, wait_for

from workbench.launch.fork_server import WARM_VARIABLE
from workbench.launch.kernels import KernelPlace, install


class Notebook:
    """Runs cells in a real kernel and collects what each one shows."""

    def __init__(self):
        install(2, place=KernelPlace.USER)
        self.manager, self.client = start_new_kernel(kernel_name="workbench-2-ranks")

    def send(self, code: str) -> str:
        return self.client.execute(code, allow_stdin=False)

    def outcome(self, cell: str) -> tuple[str, str]:
        """Standard output of a cell and its error, once it is idle."""
        shown, error = "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=200)
            content = message["content"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "stream":
                shown += content["text"]
            elif message["msg_type"] == "error":
                error = "\n".join(content["traceback"])
            elif content.get("execution_state") == "idle":
                return shown, error

    def run(self, code: str) -> tuple[str, str]:
        return self.outcome(self.send(code))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("jupyter")))
        patch.delenv(WARM_VARIABLE, raising=False)  # all processes of its ranks are below the kernel
        notebook = Notebook()
    shown, error = notebook.run(
        "import time\nimport torch.distributed as dist\nfrom workbench.launch import Ranks\nranks = Ranks()"
    )
    assert (shown, error) == ("", "")
    yield notebook
    notebook.close()


def test_a_function_of_a_cell_runs_and_its_output_lands_in_the_cell_that_runs_it(notebook):
    notebook.run("offset = 5\ndef own(): \n    print('hello')\n    return dist.get_rank() + offset")
    shown, error = notebook.run("print(ranks.run(own))")
    assert error == ""
    assert sorted(shown.splitlines()) == ["[5, 6]", "[rank 0] hello", "[rank 1] hello"]


def test_a_run_streams_while_it_is_awaited(notebook):
    cell = notebook.send(
        "def slow():\n    print('first', flush=True)\n    time.sleep(1.0)\n    print('second')\n"
        "run = ranks.start(slow)\nprint(await run)"
    )
    first_seen = wait_for(lambda: seen(notebook, "first"))
    shown, error = notebook.outcome(cell)
    assert error == "" and "second" in shown
    assert time.monotonic() - first_seen > 0.5


def seen(notebook: Notebook, word: str) -> float | None:
    content = notebook.client.get_iopub_msg(timeout=200)["content"]
    return time.monotonic() if word in content.get("text", "") else None


def test_a_started_run_writes_into_the_cell_that_started_it(notebook):
    cell = notebook.send("run = ranks.start(lambda: print('late', flush=True))\ntime.sleep(0.7)")
    shown, _ = notebook.outcome(cell)
    assert shown.count("late") == 2
    assert notebook.run("print(run.result())")[0] == "[None, None]\n"


def test_a_failure_shows_the_line_of_the_cell(notebook):
    notebook.run("def wrong():\n    weights = {}\n    return weights['missing']  # here")
    _, error = notebook.run("ranks.run(wrong)")
    assert "rank 0 raised KeyError: 'missing'" in error
    assert "return weights['missing']  # here" in error


@pytest.mark.parametrize(
    ("wait", "errors", "after"),
    [
        ("ranks.run(time.sleep, 600)", "KeyboardInterrupt", ""),
        ("run = ranks.start(time.sleep, 600)\nawait run", "KeyboardInterrupt|CancelledError", "run.stop()\n"),
    ],
    ids=["called", "awaited"],
)
def test_interrupting_a_cell_stops_the_ranks_and_keeps_the_kernel(notebook, wait, errors, after):
    cell = notebook.send(f"print('going', flush=True)\n{wait}")
    wait_for(lambda: seen(notebook, "going"))
    time.sleep(0.2)
    notebook.manager.interrupt_kernel()
    _, error = notebook.outcome(cell)
    assert re.search(errors, error)
    assert notebook.run(f"{after}print(ranks.run(dist.get_rank))")[0] == "[0, 1]\n"


def test_a_class_of_a_cell_is_pickled_by_its_name_on_the_ranks_and_the_newest_definition_counts(notebook):
    shown, error = notebook.run(
        "import pickle, torch\n"
        "class Net(torch.nn.Linear):\n    note = 'first'\n"
        "def save(net, path):\n"
        "    torch.save([net, Net(2, 2)], path + str(dist.get_rank()))\n"
        "    return net, pickle.loads(pickle.dumps(net)).note\n"
        "import tempfile\n"
        "path, forward = tempfile.mkdtemp() + '/net', Net.forward\n"
        "back = ranks.run(save, Net(2, 2), path)\n"
        "loaded = torch.load(path + '1', weights_only=False)\n"
        "print([note for _, note in back], isinstance(back[1][0], Net), type(loaded[1]) is Net)"
    )
    assert (shown, error) == ("['first', 'first'] True True\n", "")
    shown, error = notebook.run(
        "former = Net(2, 2)\nclass Net(torch.nn.Linear):\n    note = 'second'\n"
        "print([note for _, note in ranks.run(save, Net(2, 2), path)])"
    )
    assert (shown, error) == ("['second', 'second']\n", "")
    _, error = notebook.run("ranks.run(save, former, path)")
    assert "not the same object as __main__.Net" in error
    assert notebook.run("print(ranks.run(dist.get_rank))")[0] == "[0, 1]\n"


def test_no_process_is_left_when_the_kernel_is_killed(notebook):
    # Tether, its guard, kernel, the guard of the ranks, fork server, two ranks, which may be starting.
    everyone = wait_for(lambda: len(pids := family(notebook.manager.provisioner.pid)) == 7 and pids)
    os.kill(everyone[2], 9)
    assert_all_dead_within(everyone, 20.0)
