"""Reads from the store what a run did to its workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.environment.states.state_graph import state_graph
from store.records import RunRecord, StepRecord
from store.state_records import CheckpointRecord, StateEdgeRecord, StateRecord

if TYPE_CHECKING:
    import networkx as nx

    from store.session import Store
    from store.unit_of_work import Transaction


@dataclass(frozen=True, slots=True)
class PastStates:
    """A run, the states that its rows name, and what led from one to another."""

    run: RunRecord
    states: Sequence[StateRecord] = ()
    edges: Sequence[StateEdgeRecord] = ()
    checkpoints: Sequence[CheckpointRecord] = ()
    steps: Sequence[StepRecord] = ()

    def graph(self) -> nx.MultiDiGraph[str]:
        """See `state_graph`."""
        return state_graph(self.edges, self.checkpoints, self.states, self.steps)


async def read_past_states(tx: Transaction, run: RunRecord) -> PastStates:
    """What a run did to its workspaces, so far if it is running."""
    return PastStates(
        run,
        states=await tx.states.of_run(run.id),
        edges=await tx.states.edges_of_run(run.id),
        checkpoints=await tx.states.checkpoints_of_run(run.id),
        steps=await tx.journal.of_run(run.id),
    )


async def load_state_graph(store: Store, run_id: str) -> nx.MultiDiGraph[str]:
    """The state graph of a run; without nodes if it has no workspace.

    Args:
        run_id: the run's id, or the beginning of it.
    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        StoreError: the store cannot be read.
    """
    async with store.reading() as tx:
        past = await read_past_states(tx, await tx.runs.find(run_id))
    return past.graph()
