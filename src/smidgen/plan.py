"""What a program costs and why: bytes by region, multiply-accumulates by layer, and the decisions with their price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import ops
from .build import typed
from .ir import Graph, at

JsonDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice that made the program smaller: `saves_bytes` of arena at the peak, `adds_s` seconds a step."""

    what: str
    why: str
    saves_bytes: int
    adds_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Multiply-accumulates of one full batch, in all and by layer of the user's model, per entry point."""

    macs: Mapping[str, int]
    layers: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Plan:
    """RAM is exact: state + arena + context + stack, the maximum over all entry points."""

    state_bytes: int
    arena_bytes: int
    context_bytes: int
    stack_bytes: int
    flash_bytes: int
    lower_bound_bytes: int  # of the arena, for this order of nodes
    arena_by_entry: Mapping[str, int]
    cost: Cost
    decisions: tuple[Decision, ...]
    method: str
    learns: tuple[str, ...]
    batch: int

    @property
    def ram_bytes(self) -> int:
        return self.state_bytes + self.arena_bytes + self.context_bytes + self.stack_bytes

    def to_json(self) -> JsonDict:
        return {**asdict(self), "ram_bytes": self.ram_bytes}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        facts = {k: v for k, v in data.items() if k != "ram_bytes"}
        facts["cost"] = Cost(**facts["cost"])
        facts["decisions"] = tuple(Decision(**d) for d in facts["decisions"])
        facts["learns"] = tuple(facts["learns"])
        return Plan(**facts)


def cost_of(graphs: Mapping[str, Graph], batch: int) -> Cost:
    totals: dict[str, int] = {}
    layers: dict[str, dict[str, int]] = {}
    for entry, graph in graphs.items():
        rows: dict[str, int] = {}
        inside = 0
        for node in graph.nodes:
            if node.op == "loop":
                inside = node.attrs["body"] + 1
            once = int(at(ops.get(node.op).macs(typed(graph, node)), batch))
            macs = once * batch if inside else once
            inside = max(0, inside - 1)
            if macs:
                rows[node.src or node.op] = rows.get(node.src or node.op, 0) + macs
        totals[entry] = sum(rows.values())
        layers[entry] = rows
    return Cost(totals, layers)
