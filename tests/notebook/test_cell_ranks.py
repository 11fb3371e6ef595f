"""Cells on ranks without a notebook: what a button in another thread wishes."""

import queue
import threading
import time

import pytest

from workbench.notebook.cell_ranks import CellFailed, CellRanks, Wish
from workbench.notebook.names import Cell


def test_a_wish_to_restart_ends_the_ranks_at_once():
    with CellRanks(2, preload=(), echo=False) as ranks:
        ranks.run_cell(Cell(name="<cell 1>", source="x = rank"))
        before, wishes = ranks.pids, queue.SimpleQueue()
        threading.Timer(0.5, wishes.put, [Wish.RESTART]).start()
        began_s = time.monotonic()
        with pytest.raises(CellFailed) as failed:
            ranks.run_cell(Cell(name="<cell 2>", source="import time\ntime.sleep(600)"), wishes=wishes)
        assert time.monotonic() - began_s < 60
        shown = failed.value._render_traceback_()
        assert shown[0] == "The ranks were restarted." and "starts new ones, without the names" in shown[-1]
        assert ranks.run_cell(Cell(name="<cell 3>", source="rank"))[1].shown == "1" and ranks.pids != before


def test_a_wish_that_comes_when_the_cell_has_ended_does_nothing_to_the_next():
    with CellRanks(2, preload=(), echo=False) as ranks:
        wishes = queue.SimpleQueue()
        ranks.run_cell(Cell(name="<cell 1>", source="x = rank"), wishes=wishes)
        wishes.put(Wish.INTERRUPT)
        assert ranks.run_cell(Cell(name="<cell 2>", source="x"))[1].shown == "1"
