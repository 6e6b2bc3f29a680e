"""What each op does with operands whose axes lie in another order in memory than written; see layout.py.

A rule either writes the node for the axes as they lie and says how the result is to be seen, or declines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ... import ops
from ...ir import Batch, Node, Shape, batch_axis
from ...ops.traits import LayoutRule
from .layout import Rule, Sweep
from .view import View, inverse


def arrange(s: Sweep, node: Node) -> bool:
    """The rule of the node's op; an op that is the identity here hands on what it reads."""
    record = ops.get(node.op)
    if record.identity is not None and record.identity(node.attrs) and _same(s, node):
        return True
    return record.layout is not None and RULES[record.layout.rule](s, node)


def _each(s: Sweep, node: Node) -> bool:
    """Element by element in the first `operands`. (Which elements drop out depends on their place in memory; any choice
    is as random.)"""
    layout = ops.get(node.op).layout
    count = len(node.ins) if layout is None or layout.operands is None else layout.operands
    shape = s.graph[node.outs[0]].shape
    views = [s.views[i] for i in node.ins[:count]]
    for k, name in enumerate(node.ins[:count]):
        small = s.before_expand.get(name)  # the op broadcasts by itself
        shapes = [small.shape if i == k and small else view.shape for i, view in enumerate(views)]
        if small is not None and _broadcast(shapes) == shape:
            views[k] = small
    rest = [s.copy(s.views[i], i) for i in node.ins[count:]]
    if count == 1 and (not views[0].natural or _same_samples(s.tensors[views[0].name].shape, shape)):
        y = s.emit(node.op, [views[0].name, *rest], node.attrs, s.names(node))[0]
        s.views[node.outs[0]] = View(y, views[0].dims, views[0].groups)
        return True
    found = s.arranged(views, shape)
    if found is None:
        ins = [s.copy(view, name) for view, name in zip(views, node.ins, strict=False)]
        s.results(node, s.emit(node.op, [*ins, *rest], node.attrs, [s.own_name(o) for o in node.outs]))
        return True
    return s.framed(node, found[0], found[1], node.attrs, rest)


def _same_samples(a: Shape, b: Shape) -> bool:
    """Bits of a row are packed sample by sample, and loops take samples from the first axis."""
    return batch_axis(a) in (0, None) and a[: batch_axis(a) is not None] == b[: batch_axis(b) is not None]


def _broadcast(shapes: list[Shape]) -> Shape | None:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    sizes = [{dim for dim in dims if dim != 1} for dims in zip(*padded, strict=True)]
    return tuple(next(iter(found), 1) for found in sizes) if all(len(found) <= 1 for found in sizes) else None


def _reorder(s: Sweep, node: Node) -> bool:
    s.views[node.outs[0]] = s.views[node.ins[0]].permuted(node.attrs["perm"])
    return True


def _regroup(s: Sweep, node: Node) -> bool:
    view = s.views[node.ins[0]].reshaped(s.graph[node.outs[0]].shape)
    if view is not None:
        s.views[node.outs[0]] = view
    return view is not None


def _repeat(s: Sweep, node: Node) -> bool:
    s.before_expand[node.outs[0]] = s.views[node.ins[0]]
    return False


def _same(s: Sweep, node: Node) -> bool:
    """For ops that do nothing when the result has the operand's type."""
    x, y = s.graph[node.ins[0]], s.graph[node.outs[0]]
    if (x.shape, x.dtype) != (y.shape, y.dtype):
        return False
    s.views[y.name] = s.views[x.name]
    return True


def _along(s: Sweep, node: Node) -> bool:
    """The op works along one axis, on one or more operands of the same shape."""
    axis = node.attrs["axis"]
    views = [s.views[i] for i in node.ins]
    found = s.arranged(views, views[0].shape, joined=True)
    if found is None or len(found[0].groups[axis]) != 1:
        return False
    lead, laid = found
    return s.framed(node, lead, laid, {**node.attrs, "axis": s.frame(lead)[1][lead.groups[axis][0]]})


def _join(s: Sweep, node: Node) -> bool:
    if len(node.ins) == 1:
        return _same(s, node)
    axis = node.attrs["axis"]
    found = s.arranged([s.views[i] for i in node.ins], (), vary=axis, joined=True)
    if found is None:
        return False
    lead, laid = found
    return s.framed(node, lead, laid, {**node.attrs, "axis": s.frame(lead)[1][lead.groups[axis][0]]})


def _surround(s: Sweep, node: Node) -> bool:
    pads = node.attrs["pads"]
    lead = s.views[node.ins[0]].joined()
    padded = [axis for axis, pair in enumerate(pads) if any(pair)]
    if lead.natural or any(len(lead.groups[axis]) != 1 for axis in padded):
        return False
    shape, places = s.frame(lead)
    laid = [(0, 0)] * len(shape)
    for axis in padded:
        laid[places[lead.groups[axis][0]]] = tuple(pads[axis])
    return s.framed(node, lead, [s.whole(lead)], {**node.attrs, "pads": tuple(laid)})


def _over(s: Sweep, node: Node) -> bool:
    attr = "axes" if "axes" in node.attrs else "axis"
    lead = s.views[node.ins[0]]
    lead = lead.joined() if attr == "axis" else lead
    if lead.natural or set(node.attrs) - {attr, "keepdim"}:
        return False
    shape, places = s.frame(lead)
    axes = node.attrs[attr] if attr == "axes" else (node.attrs[attr],)
    gone = sorted(places[a] for axis in axes for a in lead.groups[axis])
    if not gone or (attr == "axis" and len(gone) != 1):
        return False
    groups = [() if axis in axes else tuple(places[a] for a in g) for axis, g in enumerate(lead.groups)]
    if not node.attrs["keepdim"]:
        left = [p for p in range(len(shape)) if p not in gone]
        groups = [tuple(map(left.index, g)) for axis, g in enumerate(groups) if axis not in axes]
    attrs = {**node.attrs, attr: tuple(gone) if attr == "axes" else gone[0]}
    return s.framed(node, lead, [s.whole(lead)], attrs, groups=groups)


def _last_together(s: Sweep, node: Node, count: int) -> View:
    """The first operand, for an op that works on the last `count` axes whatever the others are.

    If a copy is needed to bring those together at the end of memory, the others lie in a good order too: samples first.
    """
    view = s.views[node.ins[0]]
    rank, m = len(view.groups), len(view.dims)
    last = sorted(a for group in view.groups[rank - count :] for a in group)
    if last == list(range(m - len(last), m)):
        return view
    samples = [any(isinstance(view.dims[a], Batch) for a in group) for group in view.groups]
    order = sorted(range(rank - count), key=lambda i: (not samples[i], view.groups[i]))
    perm = (*order, *range(rank - count, rank))
    if perm == tuple(range(rank)):
        return view
    return s.as_is(s.copy(view.permuted(perm), node.ins[0], laid=True)).permuted(inverse(perm))


def _rows(s: Sweep, node: Node) -> bool:
    """Works on the last axis whatever the others are. If that is a merge of axes that lie in another order, the columns
    of the weight can be brought into that order instead."""
    view, weight = _last_together(s, node, 1), s.views[node.ins[1]]
    last, m = view.groups[-1], len(view.dims)
    start = m - len(last)
    if view.natural or not last or sorted(last) != list(range(start, m)):
        return False
    rows, columns = weight.shape
    if list(last) != sorted(last):
        if node.ins[1] not in s.exclusive or not weight.natural:
            return False
        split = weight.reshaped((rows, *[view.dims[a] for a in last]))
        turned = split and split.permuted((0, *[1 + p for p in inverse(last)])).reshaped((rows, columns))
        if turned is None:
            return False
        weight = turned
        s.relay_weight(node.ins[1])
    x = s.reshape(view.name, (*view.dims[:start], columns), s.new_name(f"{node.ins[0]}.rows"))
    rest = [
        s.copy(weight, node.ins[1], laid=weight is not s.views[node.ins[1]]),
        *[s.copy(s.views[i], i) for i in node.ins[2:]],
    ]
    y = s.emit(node.op, [x, *rest], node.attrs, s.names(node))[0]
    s.views[node.outs[0]] = s.over(y, [*view.groups[:-1], (start,)])
    return True


def _channels(s: Sweep, node: Node) -> bool:
    """Works on the last axis whatever the others are, if that is one axis of memory too: a flattened image is not."""
    lead = _last_together(s, node, 1).joined()
    if lead.natural or len(lead.groups[-1]) != 1:
        return False
    shape, places = s.frame(lead)
    if places[lead.groups[-1][0]] != len(shape) - 1:
        return False
    rest = [s.copy(s.views[i], i) for i in node.ins[1:]]
    whole = s.graph[node.outs[0]].shape == s.graph[node.ins[0]].shape
    groups = None if whole else [(0,)]  # one value for each channel
    return s.framed(node, lead, [s.whole(lead)], node.attrs, rest, groups)


def _trailing(s: Sweep, node: Node) -> bool:
    """Any order of the normalised axes will do if gamma and beta have it too."""
    count = node.attrs["axes"]
    view = _last_together(s, node, count)
    last = tuple(a for group in view.groups[-count:] for a in group)
    start = len(view.dims) - len(last)
    if view.natural or not last or sorted(last) != list(range(start, len(view.dims))):
        return False
    sizes = [view.dims[a] for a in last]
    split = [s.views[i].reshaped(sizes) for i in node.ins[1:]]
    if any(v is None or not s.views[i].natural for v, i in zip(split, node.ins[1:], strict=True)):
        return False
    rest = [s.copy(v.permuted(inverse(last)), i, laid=True) for v, i in zip(split, node.ins[1:], strict=True) if v]
    x = s.reshape(view.name, view.dims, s.new_name(f"{node.ins[0]}.laid"))
    y = s.emit(node.op, [x, *rest], {**node.attrs, "axes": len(last)}, s.names(node))[0]
    s.views[node.outs[0]] = s.over(y, view.groups)
    return True


def _product(s: Sweep, node: Node) -> bool:
    """A transposed operand is read transposed."""
    ins, flags = [], {}
    for name, flag in zip(node.ins, ("ta", "tb"), strict=True):
        view = s.views[name]
        rank = len(view.groups)
        swapped = view.permuted((*range(rank - 2), rank - 1, rank - 2))
        turn = s.price(swapped) < s.price(view)
        ins.append(s.copy(swapped if turn else view, name, laid=turn))
        flags[flag] = node.attrs[flag] != turn
    s.results(node, s.emit(node.op, ins, {**node.attrs, **flags}, [s.own_name(o) for o in node.outs]))
    return True


def _enter(s: Sweep, node: Node) -> bool:
    """The copy from the caller's buffer permutes for free."""
    out = node.outs[0]
    perm = s.choice.feeds.get(out)
    if perm is None or out in s.keep:
        return False
    attrs = {**node.attrs, "perm": tuple(node.attrs["perm"][p] for p in perm)}
    name = s.emit(node.op, node.ins, attrs, [s.own_name(out)])[0]
    s.views[out] = s.as_is(name).permuted(inverse(perm))
    return True


def _leave(s: Sweep, node: Node) -> bool:
    """The copy to the caller's buffer permutes for free."""
    view, out = s.views[node.ins[0]], s.graph[node.outs[0]]
    perm = s.plain(view.permuted(node.attrs["perm"]))
    source = view.name
    if perm is None:
        source, perm = s.copy(view, node.ins[0]), node.attrs["perm"]
    s.tensors[out.name] = out
    s.append(node.with_(ins=(source,), attrs={**node.attrs, "perm": perm}))
    return True


RULES: Final[Mapping[LayoutRule, Rule]] = {
    "each": _each, "along": _along, "over": _over, "reorder": _reorder, "regroup": _regroup, "repeat": _repeat,
    "surround": _surround, "join": _join, "rows": _rows, "channels": _channels, "trailing": _trailing,
    "product": _product, "enter": _enter, "leave": _leave,
}  # fmt: skip
"""Ops without a rule (convolutions, pooling, losses, …) see their operands as written."""
