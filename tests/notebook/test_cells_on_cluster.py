"""Cells on the engines of an ipyparallel cluster: four engines on this machine."""

import queue
import re
import threading

import ipyparallel
import pytest
from IPython.core.interactiveshell import InteractiveShell

from workbench.notebook.cell_ranks import CellFailed, Wish
from workbench.notebook.names import Cell


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        with ipyparallel.Cluster(n=4, profile="four", cluster_id="", log_level=40, engine_timeout=180):
            shell = InteractiveShell()
            shell.run_line_magic("load_ext", "workbench")
            yield shell


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_cells_keep_names_fail_stop_and_end_on_engines_as_on_ranks(shell, capsys):
    def run(cell: str) -> str:
        error = shell.run_cell(cell).error_in_exec
        text, errors = capsys.readouterr()
        return "\n".join(error._render_traceback_()) if isinstance(error, CellFailed) else text + errors

    text = run("%%ranks --cluster four\nimport time, torch.distributed as dist\nx = 2 * rank\nx")
    assert text == "[rank 0] 0\n[rank 1] 2\n[rank 2] 4\n[rank 3] 6\n"
    run("ranks['x'] = [one + 1 for one in ranks['x']]")
    assert run("%%rank 2\nprint(x)") == "[rank 2] [1, 3, 5, 7]\n"

    error = run("%%ranks\nif rank == 2:\n    raise ValueError('too warm')\ndist.barrier()")
    assert error.startswith("rank 2 raised ValueError: too warm\nTraceback"), error
    assert all(re.search(rf"rank {rank} stood in <?cell \d+>?, line 4: dist.barrier\(\)", error) for rank in (0, 1, 3))
    assert "names live on. Their process group is new" in error

    wishes: queue.SimpleQueue[Wish] = queue.SimpleQueue()
    threading.Timer(1.0, wishes.put, [Wish.INTERRUPT]).start()
    cell = Cell(name="<cell 9>", source="\ndist.barrier() if rank == 0 else time.sleep(600)")
    with pytest.raises(CellFailed) as failed:
        shell.user_ns["ranks"].run_cell(cell, wishes=wishes)
    error = "\n".join(failed.value._render_traceback_())
    assert error.startswith("The cell was interrupted."), error
    assert all(f"rank {rank} stood in cell 9, line 2: dist.barrier" in error for rank in range(4)), error
    assert "raised ZeroDivisionError" in run("ranks.run(lambda: 1 / 0)")
    assert run("%%ranks\ndist.barrier()\nx[0]").startswith("[rank 0] 1\n[rank 1] 1\n")

    assert "4 ranks run already" in run("%%ranks 2\nrank")
    assert "without a number" in run("%ranks 2 --restart --cluster four")
    assert run("%ranks --restart") == ""
    assert "rank 0 has no name 'x'" in run("ranks['x']")

    error = run("%%ranks --timeout 1\nimport itertools\nif rank == 1: sum(itertools.repeat(1))")
    assert "rank 1 did not stop, and was ended" in error and "start the engines of the cluster anew" in error, error
    assert "no ranks run" in run("%%rank 0\nrank")
    assert run("%%ranks --cluster four\nnum_ranks").startswith("[rank 0] 3\n")
    assert "the cluster of profile 'nobody'" in run("%ranks --restart --cluster nobody")
