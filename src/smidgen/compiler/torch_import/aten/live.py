"""Which nodes of torch's graph nobody needs: their value is not read, and they write nothing that is read.

Models of libraries compute much that their configuration then ignores. What no rule can translate must not stop an
import if nothing depends on it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

SKIPPED = ("_assert_scalar", "_assert_async", "_assert_tensor_metadata", "sym_constrain_range", "_functional_assert")
"""Checks, and what torch knows of sizes: they compute nothing."""


def name_of(node: fx.Node) -> str:
    target = node.target
    if target is operator.getitem:
        return name_of(node.args[0])
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name.split("::")[1])
    return str(getattr(target, "__name__", target))


def memory_of(node: fx.Node) -> int | None:
    """An identity of the memory behind a node; views have that of what they show."""
    value = node.meta.get("val")
    try:
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
    except NotImplementedError:  # within torch.vmap
        return None


def bound(op: torch._ops.OpOverload, node: fx.Node) -> list[Any]:
    """All arguments in the order of the op's schema."""
    schema = op._schema.arguments
    named = {a.name: a.default_value for a in schema}
    named |= dict(zip(named, node.args, strict=False)) | dict(node.kwargs)
    return list(named.values())


def unread(module: torch.nn.Module, wanted: Collection[int] | None = None) -> set[fx.Node]:
    """Calls of `module.graph` without which its results are the same; of its results only `wanted` count, if given."""
    graph: fx.Graph = module.graph
    live: set[fx.Node] = set()
    shown: set[int | None] = {None}  # memory that is read; what belongs to the caller always is
    writes: list[tuple[fx.Node, list[int | None]]] = []
    pending: list[fx.Node] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            shown.add(memory_of(node))
        elif node.op == "output":
            pending += _results(node, wanted)
        elif _has_block_that_writes(node, module):
            pending.append(node)
        elif written := _written(node):
            writes.append((node, written))
    while True:
        pending += [node for node, memory in writes if node not in live and not shown.isdisjoint(memory)]
        if not pending:
            break
        while pending:
            node = pending.pop()
            if node not in live:
                live.add(node)
                shown.add(memory_of(node))
                pending += node.all_input_nodes
    return {node for node in graph.nodes if node.op == "call_function" and node not in live}


def results_read(node: fx.Node, dead: Collection[fx.Node]) -> set[int] | None:
    """Which results of a call somebody picks; None: all."""
    users = [user for user in node.users if user not in dead]
    if any(user.target is not operator.getitem for user in users):
        return None
    return {int(user.args[1]) for user in users}


def draws(node: fx.Node) -> bool:
    """Would its rule draw random numbers? Each draw has a number of its own, also where its result is not read."""
    name = name_of(node)
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    args = bound(node.target, node)
    if name in ("dropout", "native_dropout", "feature_dropout"):
        return bool(args[2] is not False and 0 < args[1] < 1)
    if name == "scaled_dot_product_attention":
        return bool(args[4])
    return name == "bernoulli" and len(args) > 1 and isinstance(args[1], float) and 0 < args[1] < 1


def _results(output: fx.Node, wanted: Collection[int] | None) -> Iterator[fx.Node]:
    found: Any = output.args[0]
    if wanted is not None and isinstance(found, (list, tuple)):
        found = [found[i] for i in wanted]
    return (leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, fx.Node))


def _written(node: fx.Node) -> list[int | None]:
    """The memory that a call writes into; None is memory that cannot be told apart."""
    if not isinstance(node.target, torch._ops.OpOverload) or name_of(node).startswith(SKIPPED):
        return []
    args = zip(node.target._schema.arguments, bound(node.target, node), strict=True)
    into = [value for a, value in args if a.alias_info is not None and a.alias_info.is_write]
    leaves = [leaf for leaf in pytree.tree_leaves(into) if isinstance(leaf, fx.Node)]
    return [memory_of(leaf) for leaf in leaves]


def _has_block_that_writes(node: fx.Node, module: torch.nn.Module) -> bool:
    """A block of the user's code, such as `with torch.no_grad():`, may write into what it is given."""
    blocks = [n for n in node.all_input_nodes if n.op == "get_attr"] if node.op == "call_function" else []
    for block in blocks:
        inside = operator.attrgetter(str(block.target))(module)
        if isinstance(inside, fx.GraphModule):
            nodes = inside.graph.nodes
            if any(_written(n) or _has_block_that_writes(n, inside) for n in nodes):
                return True
    return False
