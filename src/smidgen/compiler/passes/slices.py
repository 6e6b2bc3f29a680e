"""Parameters of which only a slice learns: the slice is state, the rest is constant, and layers read both.

`with_slices` comes before the gradients: W becomes put(W:frozen, W, index), where W is only the slice from here on. Its
layout ends with a step "take", from which everybody else knows the slice. `slice_gradients` comes after them: the
gradient of all of W, of which the slice is taken, becomes the gradient for taken inputs, so that nothing larger than
the slice is computed, and no more of an activation is kept than that needs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ... import ops
from ...errors import CannotUpdate
from ...ir import DType, Graph, Node, Role, Step, Tensor, unnamed_removed
from ...methods import Update
from ...ops.build import typed
from ...ops.gather import with_axis
from ...ops.traits import Taken
from ...program.arrays import FROZEN, laid

INDEX = ":index"


def with_slices(
    graphs: Mapping[str, Graph], updates: Sequence[Update], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Graph]:
    """The forward graphs with slices as parameters; `shapes` are those of the user's layout."""
    found = dict(graphs)
    for update in updates:
        if not update.is_whole:
            check_slice(update, shapes[update.param])
            found = {name: _sliced(graph, update, shapes[update.param]) for name, graph in found.items()}
    return found


def all_is_whole(updates: Sequence[Update], shapes: Mapping[str, tuple[int, ...]]) -> tuple[Update, ...]:
    """A slice with every index of its axis is the parameter itself: nothing of it is constant, and nothing to take."""

    def is_all(update: Update) -> bool:
        shape, axis = shapes[update.param], update.axis
        return axis is not None and axis < len(shape) and update.indices == tuple(range(shape[axis]))

    return tuple(Update(update.param) if is_all(update) else update for update in updates)


def check_slice(update: Update, shape: tuple[int, ...]) -> None:
    assert update.axis is not None
    assert update.indices is not None
    text = "×".join(map(str, shape))
    if update.axis >= len(shape):
        raise CannotUpdate(
            f"'{update.param}' has no axis {update.axis}", why=f"its shape is {text or 'a single number'}",
            help=f"axis=0 to {len(shape) - 1}" if shape else f"Update('{update.param}') trains it",
        )  # fmt: skip
    beyond = [i for i in update.indices if i >= shape[update.axis]]
    if beyond:
        raise CannotUpdate(
            f"'{update.param}' has no index {beyond[0]} along axis {update.axis}", why=f"its shape is {text}",
            help=f"indices from 0 to {shape[update.axis] - 1}",
        )  # fmt: skip


def _sliced(graph: Graph, update: Update, shape: tuple[int, ...]) -> Graph:
    param = graph.tensors.get(update.param)
    if param is None or param.role is not Role.PARAM:
        return graph
    axis, indices = stored_slice(update, shape, graph.layouts.get(update.param, ()))
    whole = graph.data[update.param]
    frozen, index, merged = (_free(graph.tensors, f"{update.param}{end}") for end in (FROZEN, INDEX, ":whole"))
    part = np.take(whole, indices, axis)
    tensors = {
        **graph.tensors, update.param: replace(param, shape=part.shape), merged: Tensor(merged, param.shape),
        frozen: replace(param, name=frozen, role=Role.CONST),
        index: Tensor(index, (len(indices),), DType.I32, Role.CONST),
    }  # fmt: skip
    data = {**graph.data, update.param: part, frozen: whole, index: np.array(indices, np.int32)}
    steps: tuple[Step, ...] = (*graph.layouts.get(update.param, ()), ("take", (axis, *indices)))
    joined = Node("put", (frozen, update.param, index), (merged,), {"axis": axis}, "forward", "")
    readers = (n.with_(ins=tuple(merged if i == update.param else i for i in n.ins)) for n in graph.nodes)
    layouts = {**graph.layouts, update.param: steps}
    return graph.with_(nodes=(joined, *readers), tensors=tensors, data=data, layouts=layouts)


def _free(tensors: Container[str], name: str) -> str:
    while name in tensors:
        name += "'"
    return name


def stored_slice(update: Update, shape: tuple[int, ...], steps: Sequence[Step]) -> tuple[int, tuple[int, ...]]:
    """The axis and the indices of the slice in the stored layout, ascending."""
    assert update.axis is not None
    assert update.indices is not None
    place = np.zeros(shape[update.axis], bool)
    place[list(update.indices)] = True
    wide = tuple(-1 if i == update.axis else 1 for i in range(len(shape)))
    stored = laid(np.broadcast_to(place.reshape(wide), shape), steps)
    for axis, length in enumerate(stored.shape):
        lines = np.moveaxis(stored, axis, 0).reshape(length, -1)
        if (lines == lines[:, :1]).all() and np.count_nonzero(lines[:, 0]) == len(update.indices):
            return axis, tuple(int(i) for i in np.flatnonzero(lines[:, 0]))
    raise CannotUpdate(
        f"'{update.param}' cannot learn in slices of axis {update.axis}",
        why="the network uses it in a shape in which this axis is no axis any more",
        help=f"another axis, or Update('{update.param}')",
    )


def axis_of_user(shape: tuple[int, ...], steps: Sequence[Step], stored: int) -> int | None:
    """The axis of the user's layout that is the stored one; None: there is none."""
    for axis, length in enumerate(shape):
        place = np.arange(length).reshape(tuple(-1 if i == axis else 1 for i in range(len(shape))))
        lines = np.moveaxis(laid(np.broadcast_to(place, shape), steps), stored, 0)
        lines = lines.reshape(len(lines), -1)
        if len(lines) == length and (lines == np.arange(length)[:, None]).all():
            return axis
    return None


# -- gradients -------------------------------------------------------------------------------------------------------


def slice_gradients(graph: Graph) -> Graph:
    """Takes move up from the result of an op to its inputs, where the op knows how; a whole weight is put together for
    each of its readers anew, so that it does not wait from the forward to the backward pass."""
    alone = _Moving(graph)  # every reader of an activation for itself: then it is known who needs all of it
    alone.run()
    moving = _Moving(graph, alone.partly())
    moving.run()
    return _joined_late(moving.graph())


class _Moving:
    """Takes at their new places: an op whose result was taken of computes only that."""

    def __init__(self, graph: Graph, partly: Container[tuple[int, str]] = ()) -> None:
        """`partly`: nodes, and what they will read only parts of."""
        self._graph, self._partly = graph, partly
        self._readers = graph.readers()
        self._made_at = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
        self._tensors = dict(graph.tensors)
        self._instead: dict[int, Node | None] = {}
        self._before: dict[int, list[Node]] = {}
        self._after: dict[int, list[Node]] = {}
        self._known: dict[tuple[str, str, int], str] = {}
        self._first: dict[str, int] = {}  # what is taken right before a node → the first one that reads it
        self._of: dict[str, set[int]] = {}  # tensor → nodes that read parts of it
        self._lists: dict[bytes, str] = {}

    def run(self) -> None:
        for i, node in enumerate(self._graph.nodes):
            if ops.get(node.op).slices == "take" and self._graph[node.ins[1]].role is Role.CONST:
                name, index = node.ins
                if self._without_rest(name, index, node.attrs["axis"], node.outs[0]):
                    self._instead[i] = None

    def _without_rest(self, name: str, index: str, axis: int, out: str) -> bool:
        """Compute `out`, some indices of `name`, and not `name` itself; False if nobody knows how."""
        position = self._made_at.get(name)
        if position is None or len(self._readers.get(name, ())) != 1:
            return False
        node = self._graph.nodes[position]
        how = self._how(node, index, axis)
        if how is None:
            return False
        ins = list(node.ins)
        for i, own in how.inputs:
            ins[i] = self._taken(node.ins[i], index, own, position)
        self._instead[position] = node.with_(ins=tuple(ins), outs=(out,), attrs={**node.attrs, **how.attrs})
        return True

    def _how(self, node: Node, index: str, axis: int) -> Taken | None:
        record, call = ops.get(node.op), typed(self._graph, node)
        if record.taken is not None:
            return record.taken(call, int(self._graph[index].shape[0])).get(axis)  # type: ignore[arg-type]
        if record.pointwise and len(node.outs) == 1 and all(t.shape == call.outs[0].shape for t in call.ins):
            return Taken(tuple((i, axis) for i in range(len(call.ins))))
        return None

    def partly(self) -> set[tuple[int, str]]:
        """Nodes, and what they read parts of: where these together are no more than all of it."""
        share: dict[str, float] = {}
        for name, index, axis in self._known:
            share[name] = share.get(name, 0) + int(self._graph[index].shape[0]) / int(self._graph[name].shape[axis])  # type: ignore[arg-type]
        return {(i, name) for name, readers in self._of.items() for i in readers if share[name] <= 1}

    def _taken(self, name: str, index: str, axis: int, reader: int) -> str:
        """Some indices of `name`, for the node at `reader`."""
        index = self._lists.setdefault(np.asarray(self._graph.data[index]).tobytes(), index)  # one for equal lists
        self._of.setdefault(name, set()).add(reader)
        key = name, index, axis
        if key in self._known:
            self._taken_before(self._known[key], reader)
            return self._known[key]
        tensor, count = self._graph[name], self._graph[index].shape[0]
        out = _free(self._tensors, f"{name}:{axis}:{index}")
        self._tensors[out] = Tensor(out, with_axis(tensor.shape, axis, count), tensor.dtype)
        self._known[key] = out
        if not self._without_rest(name, index, axis, out):
            nodes, stage = self._graph.nodes, self._graph.nodes[reader].stage
            node = Node("take", (name, index), (out,), {"axis": axis}, stage, nodes[reader].src)
            early = [i for i in self._readers[name] if nodes[i].stage != stage]
            others = [i for i in self._readers[name] if i not in (*early, reader) and (i, name) not in self._partly]
            if early and not any(self._keeps(nodes[i], name) for i in others):
                self._after.setdefault(max(early), []).append(node.with_(stage=nodes[max(early)].stage))
            else:  # all of it is there anyway
                self._before.setdefault(reader, []).append(node)
                self._first[out] = reader
        return out

    def _taken_before(self, out: str, reader: int) -> None:
        """The nodes that read it are not looked at in their order."""
        at = self._first.get(out, -1)
        if at <= reader:
            return
        node = next(node for node in self._before[at] if node.outs == (out,))
        self._before[at].remove(node)
        self._before.setdefault(reader, []).append(node.with_(stage=self._graph.nodes[reader].stage))
        self._first[out] = reader

    @staticmethod
    def _keeps(node: Node, name: str) -> bool:
        """Will this reader need all of it? Not if a bit an element will do, see save_bits.py."""
        bits = ops.get(node.op).bits
        return bits is None or any(i == name for k, i in enumerate(node.ins) if k != bits(node.attrs).input)

    def graph(self) -> Graph:
        nodes: list[Node] = []
        for i, node in enumerate(self._graph.nodes):
            now = self._instead.get(i, node)
            nodes += [*self._before.get(i, ()), *([now] if now else []), *self._after.get(i, ())]
        return unnamed_removed(self._graph.with_(nodes=tuple(nodes), tensors=self._tensors))


def _joined_late(graph: Graph) -> Graph:
    """Every reader of a weight that is put together has one of its own, right before it."""
    joined = {
        node.outs[0]: node
        for node in graph.nodes
        if ops.get(node.op).slices == "put" and graph[node.ins[0]].role is Role.CONST
    }
    tensors, nodes = dict(graph.tensors), []
    used: set[str] = set()
    for node in graph.nodes:
        if node.outs and node.outs[0] in joined:
            continue
        ins = list(node.ins)
        for name in dict.fromkeys(i for i in node.ins if i in joined):
            own = name if name not in used else _free(tensors, name)
            tensors[own] = replace(graph[name], name=own)
            nodes.append(joined[name].with_(outs=(own,), stage=node.stage, src=node.src))
            ins = [own if i == name else i for i in ins]
            used.add(name)
        nodes.append(node.with_(ins=tuple(ins)))
    return graph.with_(nodes=tuple(nodes), tensors=tensors)
