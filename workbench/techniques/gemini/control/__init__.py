"""A training that outlives the loss of ranks, machines, the root and the store: it is started again with its numbers.

Each machine is an agent process and its ranks. Agents show by heartbeats in a key-value store that they live; one of
them, the elected root, has lost machines replaced and orders the next generation of ranks. What a rank goes on from is
the business of its function, which finds the memory of its machine as it left it.

    outcome = run_training(train, 4, args=(1000,))      # train(context, 1000) on four machines of one rank

On several hosts `run_under_torchrun` does the same, one machine on each.
"""

from .agent import ControlAgent, LeaseBook, Timing
from .hosts_of_torchrun import run_under_torchrun
from .service import Event, EventName, Fault, RankContext, Victim
from .store import EtcdKeyValueStore, StoreUnavailable, TcpKeyValueStore
from .training import Training, TrainingOutcome, run_training

__all__ = ["ControlAgent", "EtcdKeyValueStore", "Event", "EventName", "Fault", "LeaseBook", "RankContext"]
__all__ += ["StoreUnavailable", "TcpKeyValueStore", "Timing", "Training", "TrainingOutcome", "Victim", "run_training"]
__all__ += ["run_under_torchrun"]
