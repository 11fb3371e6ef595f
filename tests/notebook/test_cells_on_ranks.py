"""Cells on ranks in a real kernel: names, failures, hangs, interrupts, and what a saved notebook holds."""

import re

import pytest


@pytest.fixture(scope="module")
def ranks(notebook):
    """Two ranks, whose number is the kernel's; their names live on from test to test."""
    assert notebook.run("%ranks --restart") == ("", "")
    return notebook


def test_names_imports_and_functions_stay_on_the_ranks_and_are_pulled_and_pushed(ranks):
    text, error = ranks.run(
        "%%ranks\nimport math\ndef twice(x):\n    return 2 * x\nx = twice(rank + 1)\nprint('set')\nx"
    )
    assert error == ""
    assert text.startswith("[rank 0] set\n[rank 0] 2\n[rank 1] set\n[rank 1] 4\n2 ranks, ")
    ranks.run("ranks['offset'] = 10")
    text, _ = ranks.run("%%ranks\ntwice(x) + math.floor(offset) + num_ranks")
    assert text.startswith("[rank 0] 16\n[rank 1] 20\n")
    assert ranks.run("ranks['x']")[0] == "[2, 4]"
    assert "rank 0 has no name 'y'" in ranks.run("ranks['y']")[1]
    ranks.run("%%ranks\nlines = (line for line in 'ab')")
    assert "'lines' of rank 0 cannot be sent: TypeError" in ranks.run("ranks['lines']")[1]
    assert ranks.run("%%rank 1\ny = x")[1] == "" and "rank 0 has no name" in ranks.run("ranks['y']")[1]
    assert ranks.run("%%rank 1\ny;")[0].startswith("rank 1 of 2, "), "a semicolon hides the value"


def test_classes_of_cells_on_ranks_and_of_the_notebook_keep_apart_and_are_pickled_by_name(ranks):
    ranks.run("class Net:\n    home = 'notebook'\nclass Other:\n    home = 'notebook'")
    ranks.run("ranks['other'], ranks['net_of_notebook'] = Other(), Net()")
    text, error = ranks.run(
        "%%ranks\nimport pickle\nclass Net:\n    home = 'rank'\npickle.loads(pickle.dumps([Net(), other]))[0].home"
    )
    assert error == "" and text.startswith("[rank 0] 'rank'\n[rank 1] 'rank'\n")
    text, error = ranks.run("%%ranks\n'Other' in globals(), pickle.loads(pickle.dumps(other)).home")
    assert error == "" and text.startswith("[rank 0] (False, 'notebook')\n")
    assert "not the same object as __main__.Net" in ranks.run("%%ranks\npickle.dumps(net_of_notebook)")[1]
    assert ranks.run("type(ranks['net_of_notebook'][0]) is Net, type(ranks['other'][1]) is Other")[0] == "(True, True)"


def test_the_first_rank_that_raises_is_named_with_its_line_and_names_and_collectives_live_on(ranks):
    ranks.run("%%ranks\nimport torch, torch.distributed as dist\nkept = torch.ones(3) * rank")
    before = ranks.run("ranks.pids")[0]
    cell = "%%ranks\nif rank == 1:\n    raise ValueError('too warm')\ndist.barrier()\nkept = None"
    text, error, seconds = ranks.timed(cell)
    assert error.startswith("rank 1 raised ValueError: too warm\nTraceback"), error
    assert "line 3, in <module>\n    raise ValueError('too warm')" in error
    assert re.search(r"rank 0 stood in cell \d+, line 4: dist.barrier\(\)", error)
    assert "names live on. Their process group is new" in error
    assert "[rank 1] ValueError: too warm" in text and seconds < 60
    text, error = ranks.run("%%ranks\ndist.all_reduce(kept, group=dist.new_group([0, 1]))\nkept.tolist()")
    assert text.startswith("[rank 0] [1.0, 1.0, 1.0]\n[rank 1] [1.0, 1.0, 1.0]") and error == ""
    assert ranks.run("ranks.pids")[0] == before


def test_an_error_that_is_the_same_on_all_ranks_leaves_their_process_group_alone(ranks):
    ranks.run("%%ranks\nimport torch.distributed as dist\ngroup = dist.new_group([0, 1])")
    _, error = ranks.run("%%ranks\ndist.barrier(group)\nlos")
    assert "rank 0 raised NameError" in error and "rank 1 raised NameError" in error
    assert error.endswith("The ranks and their names live on.")
    assert ranks.run("%%ranks\ndist.barrier(group)")[1] == ""


STANDSTILLS = {
    "in Python": "import time\ntime.sleep(600)",
    "in a collective": "import time, torch.distributed as dist\ndist.barrier() if rank == 0 else time.sleep(600)",
    "in a receive": "import torch, torch.distributed as dist\ndist.recv(torch.ones(1), 1 - rank)",
}


@pytest.mark.parametrize(
    ("how", "where"), [*(("timeout", where) for where in STANDSTILLS), ("interrupt", "in a collective")]
)
def test_a_hang_ends_within_seconds_says_where_each_rank_stood_and_names_live_on(ranks, how, where):
    body = STANDSTILLS[where]
    ranks.run("%%ranks\nx = rank")
    if how == "interrupt":
        ranks.interrupt_after(2.0)
    _, error, seconds = ranks.timed(f"%%ranks {'--timeout 2' if how == 'timeout' else ''}\n{body}")
    first = {"timeout": "The cell was stopped after its time limit of 2 s.", "interrupt": "The cell was interrupted."}
    assert error.startswith(first[how]), error
    last = body.splitlines()[-1]
    assert all(re.search(rf"rank {rank} stood in cell \d+, line 3: {re.escape(last)}", error) for rank in (0, 1)), error
    assert seconds < 60
    assert ranks.run("ranks['x']")[0] == "[0, 1]"
    assert ranks.run("%%ranks\nimport torch.distributed as dist\ndist.barrier()")[1] == ""


def test_a_rank_that_does_not_stop_or_dies_costs_the_names_which_is_said(ranks):
    ranks.run("%%ranks\nx = rank")
    stuck = "%%ranks --timeout 1.5\nimport itertools\nif rank == 1: sum(itertools.repeat(1))"
    _, error, seconds = ranks.timed(stuck)
    assert re.search(r"rank 1 did not stop, it stood in cell \d+, line 3: if rank == 1: sum", error), error
    assert "starts new ones, without the names" in error and seconds < 60
    assert "has no name 'x'" in ranks.run("ranks['x']")[1]
    _, error = ranks.run("%%ranks\nimport os\nif rank == 1: os.kill(os.getpid(), 9)")
    assert error.startswith("rank 1 was killed by signal 9") and "starts new ones" in error
    assert ranks.run("%%ranks\nrank")[0].startswith("[rank 0] 0\n[rank 1] 1\n")


def test_a_saved_notebook_holds_text_and_html_of_each_rank_and_no_widget(ranks):
    ranks.run("%%ranks\nprint(f'<{rank}>')\nprint('10 %', end='\\r')\nprint('20 %')")
    (output,) = ranks.file.cells[-1].outputs
    assert set(output.data) == {"text/html", "text/plain"}
    assert output.data["text/plain"].startswith("[rank 0] <0>\n[rank 0] 20 %\n[rank 1] <1>\n")
    assert "&lt;1&gt;\n20 %" in output.data["text/html"] and "<script" not in output.data["text/html"]


def test_the_number_is_the_cell_s_else_that_of_the_ranks_that_run_else_the_kernel_s(ranks):
    assert ranks.run("ranks.num_ranks")[0] == "2"
    assert "2 ranks run already; --restart ends them" in ranks.run("%%ranks 3\nrank")[0]
    text, _ = ranks.run("%%ranks 3 --restart\nnum_ranks")
    assert text.startswith("3 ranks, as the cell says; this kernel's own number, 2, is for cells without one.")
    assert "[rank 2] 3" in text
    assert "[rank 2] 3" in ranks.run("%%ranks\nnum_ranks")[0]
    ranks.run("ranks.close()")
    assert "no ranks run; begin with %%ranks" in ranks.run("%%rank 0\nrank")[0]
    assert ranks.run("%%ranks\nnum_ranks")[0].startswith("[rank 0] 2\n[rank 1] 2\n")


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        ("%%ranks 0 --restart\nrank", "num_ranks is 0; it must be an integer of at least 1"),
        ("%%ranks --timeout 0\nrank", "timeout is 0; it must be above 0"),
        ("%%ranks --restart --hosts nobody\nrank", "hosts is 'nobody'; it must be a variable that holds ShapedHosts"),
        ("%%rank 2\nrank", "rank is 2; it must be from 0 to 1"),
        ("%%ranks\nx = = 1", "invalid syntax"),
    ],
)
def test_wrong_use_is_one_line_and_costs_nothing(ranks, cell, rule):
    ranks.run("%%ranks\nx = rank")
    text, error = ranks.run(cell)
    assert rule in text + error
    if "--restart" not in cell:
        assert ranks.run("ranks['x']")[0] == "[0, 1]"
