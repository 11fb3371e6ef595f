"""Classes of a script or of a notebook's cell are pickled by name on ranks, and arrive as the script's own."""

import subprocess
import sys

import pytest

from workbench.launch.environment import own_environment

pytestmark = pytest.mark.timeout(500)

SCRIPT = """
import copy, dataclasses, enum, multiprocessing, pickle
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from workbench.launch import Ranks
from workbench.techniques.gemini.control import run_training

class Net(nn.Linear):
    scale = 2

    def forward(self, x):
        return SCALE * self.scale * super().forward(x)

class Kind(enum.Enum):
    SMALL = 1

@dataclasses.dataclass
class Settings:
    kind: Kind
    class Inner:
        pass

class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Settings(Kind.SMALL), index ** 2

def second(batch):
    return [number for _, number in batch], batch[0][0]

def hook(module, args, output):
    return output + 1

SCALE = 1

def save(folder, net):
    rank = torch.distributed.get_rank()
    torch.save(net, f"{folder}/sent-{rank}.pt")
    torch.save(nn.Sequential(Net(2, 2), nn.ReLU()), f"{folder}/made-{rank}.pt")
    hooked = Net(2, 2)
    hooked.register_forward_hook(hook)
    assert pickle.loads(pickle.dumps(hooked))._forward_hooks, "a function of the script, too"
    assert type(pickle.loads(pickle.dumps(Kind.SMALL))) is Kind and type(copy.deepcopy(net)) is Net
    assert type(pickle.loads(pickle.dumps(Settings.Inner()))) is Settings.Inner
    assert type(torch.load(f"{folder}/sent-{rank}.pt", weights_only=False)) is Net
    gathered = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, Settings(Kind.SMALL))
    assert {type(item) for item in gathered} == {Settings}
    for way in ("fork", "spawn") if rank == 0 else ():
        workers = DataLoader(Squares(), 2, collate_fn=second, num_workers=1, multiprocessing_context=way)
        batches = list(workers)
        assert [numbers for numbers, _ in batches] == [[0, 1], [4, 9]] and hasattr(batches[0][1], "kind")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert type(pool.map(copy.copy, [Settings(Kind.SMALL)])[0]) is Settings
    Net.scale = 100  # of this rank's class, not of the caller's
    return net, Settings(Kind.SMALL), Settings.Inner, Kind.SMALL, hook

def train(context, net):
    return pickle.loads(pickle.dumps((net, Net(2, 2), Settings(Kind.SMALL))))

def main(folder):
    global SCALE
    net, forward = Net(2, 2), Net.forward
    with Ranks(2) as ranks:
        for returned in ranks.run(save, folder, net):
            assert isinstance(returned[0], Net) and isinstance(returned[1], Settings) and returned[1].kind is Kind.SMALL
            assert returned[2] is Settings.Inner and returned[3] is Kind.SMALL
        assert Net.forward is forward and Net.scale == 2, "what comes back changes no class of the caller"
        SCALE = 3
        weight, bias = net.weight, net.bias
        assert torch.equal(net(torch.ones(2)), 6 * (weight.sum(1) + bias))
        for name in ("sent-0", "sent-1", "made-1"):
            loaded = torch.load(f"{folder}/{name}.pt", weights_only=False)
            assert type(loaded[0] if name.startswith("made") else loaded) is Net, name

        def unknown():
            pickle.loads(b"c__main__\\nNobody\\n.")
        try:
            ranks.run(unknown)
        except Exception as error:
            assert "which has the classes and functions that calls have brought" in str(error), error
    outcome = run_training(train, 1, args=(Net(2, 2),), timeout_s=200)
    assert [type(item) for item in outcome.results[0]] == [Net, Net, Settings]
    print("all is well")

if __name__ == "__main__":
    import sys
    main(sys.argv[1])
"""


def test_what_a_script_defines_can_be_saved_sent_and_returned_as_under_torchrun(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    done = subprocess.run(command, env=own_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.stdout.endswith("all is well\n"), done.stdout + done.stderr


def test_a_script_that_starts_ranks_unguarded_is_told_so_where_a_process_that_a_rank_spawned_imports_it(tmp_path):
    (tmp_path / "script.py").write_text(
        "import multiprocessing\n"
        "from workbench.launch import run_on_ranks\n"
        "def spawn():\n"
        "    process = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    process.start()\n"
        "    process.join()\n"
        "    return process.exitcode\n"
        "print('exit', run_on_ranks(spawn, 1, preload=()))\n"
    )
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, env=own_environment(), capture_output=True, text=True, timeout=400)
    assert "exit [1]" in done.stdout
    assert 'what starts ranks must be called below `if __name__ == "__main__":`' in done.stderr
