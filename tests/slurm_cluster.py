"""A Slurm cluster of two nodes on this machine, in a folder of its own: its daemons end with the block."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel")
START_PATIENCE_S = 30.0  # seconds until both nodes must be idle
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge}/socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=300
KillWait=2
InactiveLimit=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=4000
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=60 State=UP PriorityTier=1
PartitionName=one Nodes=n1 MaxTime=60 State=UP PriorityTier=1
PartitionName=high Nodes=n1,n2 MaxTime=60 State=UP PriorityTier=2 PreemptMode=off
"""


def missing() -> str:
    """Say which programs this machine lacks; "" for none."""
    lacks = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return (
        f"Slurm is not installed ({', '.join(lacks)} missing): apt-get install slurmctld slurmd munge" if lacks else ""
    )


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons and yield the environment in which Slurm's commands find them."""
    folder.chmod(0o755)
    munge = folder / "munge"
    for path in (munge, folder / "state", folder / "spool-n1", folder / "spool-n2"):
        path.mkdir(mode=0o755)
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o600)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(3)]
        for endpoint in sockets:
            endpoint.bind(("127.0.0.1", 0))
        ports = [endpoint.getsockname()[1] for endpoint in sockets]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(folder=folder, munge=munge, user=user, host=socket.gethostname(), ports=ports))
    environment = {"SLURM_CONF": str(conf), "PATH": _path()}
    files = {name: munge / name for name in ("socket", "pid-file", "log-file", "seed-file", "key-file")}
    files["key-file"] = munge / "key"
    commands = [
        ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())],
        ["slurmctld", "-D", "-i"],
        ["slurmd", "-D", "-N", "n1"],
        ["slurmd", "-D", "-N", "n2"],
    ]
    daemons: list[subprocess.Popen] = []
    with (folder / "daemons.log").open("w") as log:
        try:
            for command in commands:
                options = {"stdout": log, "stderr": log, "env": os.environ | environment}
                daemons.append(subprocess.Popen(command, start_new_session=True, **options))
                if command[0] == "munged":
                    _wait(lambda: (munge / "socket").exists(), folder)
            _wait(lambda: _num_idle(environment) == 2, folder)
            yield environment
        finally:
            subprocess.run(["scancel", "--me"], env=os.environ | environment, timeout=20, check=False, stderr=log)
            give_up = time.monotonic() + 10
            while time.monotonic() < give_up and _squeue(environment, "%i"):
                time.sleep(0.2)
            for daemon in reversed(daemons):
                daemon.send_signal(signal.SIGTERM)
            for daemon in daemons:
                try:
                    daemon.wait(60)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait(60)


def _squeue(environment: dict[str, str], form: str) -> str:
    command = ["squeue", "--noheader", f"--format={form}"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=200)
    return done.stdout.strip()


def _num_idle(environment: dict[str, str]) -> int:
    command = ["sinfo", "--noheader", "--Node", "--partition=low", "--states=idle", "--format=%N"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=200)
    return len(done.stdout.split())


def _wait(holds, folder: Path) -> None:
    give_up = time.monotonic() + START_PATIENCE_S
    while not holds():
        if time.monotonic() > give_up:
            logs = "\n".join(f"{path}:\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.log")))
            raise TimeoutError(f"the cluster did not start within {START_PATIENCE_S:g} s\n{logs}")
        time.sleep(0.1)
