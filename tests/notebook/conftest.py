"""A real kernel made for two ranks, whose cells are executed into a notebook as papermill does."""

import os
import threading
import time

import nbformat
import pytest
from nbclient import NotebookClient

from workbench.launch.kernels import KernelPlace, install


class Notebook:
    """Executes cells one by one and keeps them with their outputs."""

    def __init__(self):
        self.file = nbformat.v4.new_notebook()
        self.client = NotebookClient(self.file, timeout=90, kernel_name="workbench-2-ranks", allow_errors=True)

    def run(self, source: str) -> tuple[str, str]:
        """Execute a cell; return its texts, and the lines of its error."""
        self.file.cells.append(nbformat.v4.new_code_cell(source))
        self.client.execute_cell(self.file.cells[-1], len(self.file.cells) - 1)
        texts, error = [], ""
        for output in self.file.cells[-1].outputs:
            if output.output_type == "error":
                error = "\n".join(output.traceback)
            else:
                texts.append(output.get("text") or output.data["text/plain"])
        return "\n".join(texts), error

    def interrupt_after(self, seconds: float) -> None:
        """Send the kernel what Kernel > Interrupt sends, when a cell is on its way."""
        threading.Timer(seconds, os.kill, [self.client.km.provisioner.pid, 2]).start()

    def timed(self, source: str) -> tuple[str, str, float]:
        """Execute a cell, and return the seconds it took too."""
        began_s = time.monotonic()
        return (*self.run(source), time.monotonic() - began_s)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("jupyter")))
        install(2, place=KernelPlace.USER)
        notebook = Notebook()
        with notebook.client.setup_kernel():
            assert notebook.run("%load_ext workbench") == ("", "")
            yield notebook
