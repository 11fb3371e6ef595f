"""A JupyterLab server of the test's own: free port, token, empty home, ended whatever happens."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import psutil

SERVER = (sys.executable, "-m", "jupyterlab")
ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 60
END_TIMEOUT_S = 10

CONFIG = """
c.ServerApp.open_browser = False
c.ServerApp.port_retries = 0
c.ServerApp.allow_root = True
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.collaborative = False
c.ServerApp.port = {port}
c.IdentityProvider.token = "{token}"
"""

SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"}  # every cell is in the page, also those out of sight
}


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A running server."""

    url: str  # without a slash at the end
    token: str  # asked of every request

    def page(self, notebook: str) -> str:
        """Return the address at which a browser finds a notebook."""
        return f"{self.url}/lab/tree/{notebook}?token={self.token}&reset"


@contextmanager
def running_lab(folder: Path, home: Path, command: Sequence[str] = SERVER) -> Iterator[Lab]:
    """Serve a folder of notebooks from an empty home; end the server and its processes on the way out."""
    port, token = _free_port(), secrets.token_hex(16)
    _write_settings(home, port, token)
    log = (home / "server.log").open("wb")
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    server = subprocess.Popen(command, env=_environment(home), cwd=folder, **streams)
    try:
        lab = Lab(url=f"http://127.0.0.1:{port}", token=token)
        _wait_until_up(lab, server, home / "server.log")
        yield lab
    finally:
        _end(server)
        log.close()


def _environment(home: Path) -> dict[str, str]:
    places = {
        "HOME": home,
        "JUPYTER_CONFIG_DIR": home / "config",
        **dict.fromkeys(
            ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"), ROOT / "workbench/explore/jupyter"
        ),  # as `make lab` does
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": home / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        "IPYTHONDIR": home / "ipython",
        "MPLCONFIGDIR": matplotlib.get_cachedir(),
    }
    return dict(os.environ) | {name: str(place) for name, place in places.items()}


def _write_settings(home: Path, port: int, token: str) -> None:
    for name, setting in SETTINGS.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(setting))
    (home / "config").mkdir()
    (home / "config" / "jupyter_lab_config.py").write_text(CONFIG.format(port=port, token=token))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(lab: Lab, server: subprocess.Popen, log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended with code {server.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(f"{lab.url}/api/status?token={lab.token}", timeout=2):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.2)
    raise TimeoutError(f"JupyterLab did not answer within {START_TIMEOUT_S} s:\n{log.read_text()}")


def _end(server: subprocess.Popen) -> None:
    family = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
    server.terminate()
    try:
        server.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=END_TIMEOUT_S)
