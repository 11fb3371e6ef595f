"""Training on the hosts of a torchrun job: hosts are network namespaces, one is killed, and the standby takes over."""

import ast
import subprocess
import sys
import time

import pytest

from workbench.cluster import Link
from workbench.launch import ShapedHosts
from workbench.launch.environment import own_environment
from workbench.launch.machines import Machines, MachineSaid
from workbench.launch.namespaces import why_unavailable
from workbench.techniques.gemini.control.hosts_of_torchrun import run_under_torchrun

pytestmark = pytest.mark.timeout(600)
NUM_HOSTS, ITERATIONS = 3, 12
SECRET = "a secret that is the same on all hosts"

PROGRAM = """
import sys, time, torch
from workbench.techniques.gemini.control import Timing
from workbench.techniques.gemini.control.hosts_of_torchrun import run_under_torchrun
from workbench.techniques.gemini import InMemoryCheckpoints
from workbench.techniques.gemini.measured.training import shard

def train(context, iterations):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    shard(*model, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    checkpoints = InMemoryCheckpoints(context, model, optimizer)
    for iteration in checkpoints.iterations(iterations):
        torch.manual_seed(iteration)
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"iteration {iteration} on {context.machine_name}", flush=True)
        time.sleep(0.15)
    weights = [weight.to_local().double().sum().item() for weight in model.parameters()]
    return context.machine_name, checkpoints.plan.iteration, weights

if __name__ == "__main__":
    timing = Timing(heartbeat_s=0.1, lease_s=3.0)
    outcome = run_under_torchrun(train, standbys=1, args=(ITERATIONS,), timing=timing, timeout_s=240)
    if outcome is not None:
        print("OUTCOME", outcome.num_generations, outcome.results, flush=True)
"""


def be_a_host(machine, program: str, address: str) -> None:
    """Run torchrun on this host; tell the owner each line that it prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NUM_HOSTS), "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:29511", "--rdzv-id", "test"]
    # A namespace does not know itself by its name, so each is told its address and who serves the rendezvous.
    is_server = int(machine.address == address)
    command += ["--local-addr", machine.address, "--rdzv-conf", f"is_host={is_server}", program]
    environment = own_environment() | {"GLOO_SOCKET_IFNAME": machine.interface, "OMP_NUM_THREADS": "1"}
    environment["WORKBENCH_SECRET"] = SECRET
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        for line in running.stdout:
            machine.tell(line.strip())
    machine.tell(f"EXIT {running.returncode}")


def line_with(words: str, machines: Machines, limit_s: float = 250.0) -> tuple[str, str]:
    """Wait until a host prints a line with these words; return the host and the line."""
    deadline_s, said = time.monotonic() + limit_s, []
    while time.monotonic() < deadline_s:
        for event in machines.wait(0.5):
            if isinstance(event, MachineSaid):
                said.append((event.machine, str(event.message)))
                if words in said[-1][1]:
                    return said[-1]
    raise AssertionError(f"no host said {words!r} within {limit_s:g} s: {said}")


def train_on_hosts(program: str, kills: bool) -> str:
    """Train on three hosts, one of which stands by; kill the one with machine 1 if asked for; return the outcome."""
    with Machines(hosts=ShapedHosts(NUM_HOSTS, link=Link.gigabit()), echo=False) as machines:
        for host in range(NUM_HOSTS):
            machines.start(f"host {host}", be_a_host, program, "10.77.0.1", host=host)
        if kills:
            host, _ = line_with("iteration 5 on machine-1", machines)
            machines.kill(host)  # torchrun, agent, ranks and memory
        return line_with("OUTCOME", machines)[1]


@pytest.mark.slow
def test_a_killed_host_is_replaced_by_the_one_that_stands_by_and_the_bits_are_the_same(tmp_path):
    if reason := why_unavailable():
        pytest.skip(reason)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("ITERATIONS", str(ITERATIONS)))
    undisturbed, disturbed = (train_on_hosts(str(program), kills).split(maxsplit=2) for kills in (False, True))
    (_, _, plain), (_, _, restarted) = undisturbed, disturbed
    plain, restarted = ast.literal_eval(plain), ast.literal_eval(restarted)
    assert (undisturbed[1], disturbed[1]) == ("1", "2"), "generations"
    assert [name for name, _, _ in plain] == ["machine-0", "machine-1"]
    assert [name for name, _, _ in restarted] == ["machine-0", "standby-0"]
    assert [weights for _, _, weights in restarted] == [weights for _, _, weights in plain]
    assert all(resumed >= 3 for _, resumed, _ in restarted), "from a peer's memory, two iterations back at most"


def test_a_process_that_torchrun_did_not_start_is_refused_and_so_is_a_job_without_a_secret(monkeypatch, tmp_path):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(RuntimeError, match="must be called in a process of torchrun --nproc-per-node 1"):
        run_under_torchrun(print)
    job = {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2", "HOME": str(tmp_path)}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WORKBENCH_SECRET", raising=False)
    with pytest.raises(RuntimeError, match="WORKBENCH_SECRET is not set"):
        run_under_torchrun(print)
