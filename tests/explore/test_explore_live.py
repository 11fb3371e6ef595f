"""The bar of a long call, in a real kernel: what a reader sees while it runs, and when it is cancelled."""

import re
import time

import pytest
from jupyter_client.manager import start_new_kernel

SETUP = """
import time
from workbench.explore import Explorer
from workbench.launch import Ranks
from workbench.rows.progress import say_progress

def train(num_steps, step_s):
    for step in range(num_steps):
        time.sleep(step_s)
        say_progress(step + 1, num_steps, "steps", loss=1 / (step + 1))

ranks = Ranks(2)
"""


class Notebook:
    """Runs cells and keeps the texts of what is displayed."""

    def __init__(self):
        self.manager, self.client = start_new_kernel()

    def send(self, code):
        return self.client.execute(code, allow_stdin=False)

    def outcome(self, cell, *, until=None):
        """Texts displayed and the error of a cell, once it is idle or a text fits."""
        texts, error = [], ""
        while True:
            message = self.client.get_iopub_msg(timeout=200)
            content = message["content"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] in ("display_data", "update_display_data"):
                texts.append(content["data"].get("text/plain", ""))
            elif message["msg_type"] == "comm_msg":
                texts.append(str(content["data"].get("state", {}).get("value", "")))
            elif message["msg_type"] == "error":
                error = content["ename"]
            elif content.get("execution_state") == "idle":
                return texts, error
            if until and texts and re.search(until, texts[-1]):
                return texts, error


@pytest.fixture(scope="module")
def notebook():
    notebook = Notebook()
    assert notebook.outcome(notebook.send(SETUP)) == ([], "")
    yield notebook
    notebook.client.stop_channels()
    notebook.manager.shutdown_kernel(now=True)


def test_a_long_call_shows_its_steps_and_its_loss_and_leaves_a_line_of_text(notebook):
    texts, error = notebook.outcome(notebook.send("ranks.run(train, 4, 0.6)"))
    assert error == ""
    assert any(re.search(r"[123] of 4 steps, loss 0\.\d+ · \d+ s", text) for text in texts)
    assert re.fullmatch(r"Done: 4 of 4 steps, loss 0\.25 after \d+\.\d s\.", texts[-1])


def test_a_cell_that_says_nothing_shows_nothing(notebook):
    assert notebook.outcome(notebook.send("time.sleep(0.5)")) == ([], "")


def test_an_interrupt_ends_the_call_and_its_ranks_at_once_and_says_so(notebook):
    cell = notebook.send("pids = ranks.pids\nranks.run(train, 1000, 0.2)")
    notebook.outcome(cell, until="of 1000 steps")
    began_s = time.monotonic()
    notebook.manager.interrupt_kernel()
    texts, error = notebook.outcome(cell)
    assert time.monotonic() - began_s < 60
    assert error == "KeyboardInterrupt"
    assert re.match(
        r"Cancelled at \d+ of 1000 steps, loss .* s\. The call has ended, and its ranks with it\.", texts[-1]
    )
    _, error = notebook.outcome(notebook.send("import psutil\nassert not any(map(psutil.pid_exists, pids))"))
    assert error == ""
