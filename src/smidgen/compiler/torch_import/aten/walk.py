"""From torch's graph to ours, op by op: constants are folded, writes in place become new values.

Torch's graph may write into views. Here a write gives a new value to all that shares the memory: upwards at once,
sideways when it is next read.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ....errors import Internal, SmidgenError
from ....ir import Batch, Dim, Shape
from . import masked, movement, samples, sorted_rows
from .emit import Emit
from .explained import Inside, explained
from .fourier import COMPLEX_TABLE, any_complex
from .layers import Missing
from .live import SKIPPED, bound, draws, memory_of, name_of, results_read, unread
from .masked import Hits
from .source import module_of
from .writer import COMPLEX, TABLE, Complex, Unsupported, Value, Virtual

VMAP = ("_add_batch_dim", "_remove_batch_dim", "_vmap_increment_nesting")
VMAP_HELP = "broadcast instead: f(a[:, None], b) computes what torch.vmap(f, (0, None)) does for each a"
HALF = frozenset({torch.float16, torch.bfloat16})


class Unsized:
    """A number that is not a multiple of the batch size, or depends on values; reading it is an error."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.by_values = bool(re.search(r"\bz?u\d", text))  # as torch names such numbers


class Walk:
    """Translates torch's graphs. `symbol` is the batch size in torch's expressions; `wrapped`: a loss is around."""

    def __init__(self, emit: Emit, symbol: Any, wrapped: bool) -> None:
        self.t, self.symbol, self.wrapped = emit, symbol, wrapped
        self.env: dict[fx.Node, Any] = {}
        self.owners: dict[int, str] = {}  # memory → the parameter or buffer it belongs to
        self._sharing: dict[int, list[fx.Node]] = {}
        self._stale: set[fx.Node] = set()
        self._dead: set[fx.Node] = set()
        self._outside: dict[fx.Node, fx.Node] = {}  # what a block is given → what that is outside of it
        self._kept: list[fx.GraphModule] = []  # memory addresses identify memory while it is alive
        self._depth = 0
        self._autocasts = 0

    def run(self, module: torch.nn.Module, inputs: Sequence[Any], wanted: Collection[int] | None = None) -> Any:
        """The results of `module`; those that are not `wanted`, if that is given, are None."""
        graph: fx.Graph = module.graph
        dead = unread(module, wanted)
        self._dead |= dead
        given = iter(inputs)
        for node in graph.nodes:
            if node.op == "placeholder":
                self._bind(node, next(given))
            elif node.op == "get_attr":
                self._bind(node, operator.attrgetter(str(node.target))(module))
            elif node.op == "call_function" and node in dead:
                self.t.draw(int(draws(node)))
            elif node.op == "call_function":
                with self._located(node):
                    self._call(node)
            elif node.op == "output":
                if wanted is not None:
                    return [self._output(a) if i in wanted else None for i, a in enumerate(node.args[0])]
                return pytree.tree_map_only(fx.Node, self._output, node.args[0])
        raise Internal("torch's graph has no output")

    def _output(self, node: Any) -> Any:
        if not isinstance(node, fx.Node):
            return node
        with self._located(node):
            return self.read(node)

    def refuse_result(self, node: fx.Node) -> NoReturn:
        """A result of the model that is no value of the graph."""
        with self._located(node):
            raise Unsupported(
                "the model returns rows whose number or order depends on values",
                "return them as they stand in the input, with torch.where(mask, x, 0)",
            )

    # Values.

    def read(self, arg: Any) -> Any:
        """What an argument of torch's graph means."""
        if isinstance(arg, (list, tuple)):
            return [self.read(a) for a in arg]
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            arg = self.number(arg)
        if isinstance(arg, fx.Node):
            if arg in self._stale:
                self._stale.discard(arg)
                self._again(arg)
            arg = self.env[arg]
        if isinstance(arg, Unsized):
            raise Unsupported(
                f"a number is computed from values or is no multiple of the batch size: {arg.text}",
                "use shapes that are multiples of x.shape[0], and torch.where instead of .item()",
            )
        if isinstance(arg, Missing):
            raise Unsupported(f"{arg.what} are used", "use only the values")
        return arg

    def number(self, value: Any) -> Any:
        """int and float as they are; a symbolic size as Batch."""
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        expression = value.node.expr
        if expression.is_number:
            return int(expression) if isinstance(value, torch.SymInt) else float(expression)
        times, rest = expression.as_coeff_Mul()
        if isinstance(value, torch.SymInt) and rest == self.symbol and times.is_Integer and times > 0:
            return Batch(int(times))
        return Unsized(str(expression).replace(str(self.symbol), "batch"))

    def shape(self, fake: torch.Tensor) -> Shape:
        dims: list[Dim] = []
        for dim in fake.shape:
            found = self.number(dim)
            if isinstance(found, Unsized):
                if found.by_values:
                    raise Unsupported("the size of its result depends on values", "torch.where(mask, x, 0)")
                raise ArithmeticError(f"a size of {found.text}")
            dims.append(found)
        if sum(isinstance(d, Batch) for d in dims) > 1:
            raise ArithmeticError(f"a shape of {tuple(dims)}")
        return tuple(dims)

    def _bind(self, node: fx.Node, value: Any) -> None:
        self.env[node] = value
        memory = memory_of(node)
        if memory is not None:
            self._sharing.setdefault(memory, []).append(node)

    # Operators.

    def _call(self, node: fx.Node) -> None:
        target, result = node.target, node.meta.get("val")
        if target is operator.getitem:
            self._bind(node, self.env[node.args[0]][node.args[1]])
        elif isinstance(result, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.env[node] = self.number(result)
        elif name_of(node).startswith(SKIPPED):
            return
        elif target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            enabled, module, *inputs = node.args
            outputs = self._block(node, module, inputs)
            self._bind(node, outputs if enabled else self.t.detach(outputs))
        elif target is torch.ops.higher_order.wrap_with_autocast:
            module, *inputs = node.args[4:]
            self._autocasts += 1
            self._bind(node, self._block(node, module, inputs))
            self._autocasts -= 1
        elif isinstance(target, torch._ops.OpOverload):
            self._translate(node, target)
        elif name_of(node) in VMAP:
            raise Unsupported("torch exports the steps of torch.vmap, not what they compute", VMAP_HELP)
        else:
            raise Unsupported("torch exports it as a block of its own")

    def _block(self, node: fx.Node, module: fx.Node, inputs: Sequence[Any]) -> Any:
        """A part of the user's code that torch exports as a graph of its own."""
        block, given = self.env[module], [n for n in self.env[module].graph.nodes if n.op == "placeholder"]
        self._outside |= {inner: a for inner, a in zip(given, inputs, strict=True) if isinstance(a, fx.Node)}
        with self._outermost():
            return self.run(block, self.read(inputs), results_read(node, self._dead))

    def _see(self, node: fx.Node) -> None:
        results = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
        self.t.node_shapes = [self.shape(v) for v in results]
        self.t.node_dtypes = [v.dtype for v in results]

    def _translate(self, node: fx.Node, op: torch._ops.OpOverload) -> None:
        written = [i for i, a in enumerate(op._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
        if written not in ([], [0]):
            raise Unsupported("it writes into another tensor", "use the form that returns its result")
        if self._sized_by_values(node):
            self._bind(node, self._hits(node, op))
            return
        self._see(node)
        if self._autocasts and (half := HALF.intersection(self.t.node_dtypes)):
            kind = str(*half).removeprefix("torch.")
            raise Unsupported(
                f"autocast makes it compute in {kind}, smidgen trains in float32",
                "leave torch.autocast(…) out, or give it enabled=False",
            )
        args = [self.read(a) for a in bound(op, node)]
        if written:
            self._refuse_write(node.args[0])
        value = self._result(node, op, args)
        self._check(node, value)
        if written and not isinstance(value, torch.Tensor):  # a constant was written to for real
            self._write(node, value)
        else:
            self._bind(node, value)

    def _sized_by_values(self, node: fx.Node) -> bool:
        """Rows that a mask picks, or what is made of them."""
        source: Any = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and isinstance(self.env.get(source), Hits):
            return True
        size = self.number(node.meta["val"].shape[0]) if name_of(node) == "index" and node.meta["val"].dim() else 0
        return isinstance(size, Unsized) and size.by_values

    def _hits(self, node: fx.Node, op: torch._ops.OpOverload) -> Any:
        name, (source, *rest) = name_of(node), bound(op, node)
        if name == "index":
            return masked.hits(self.t, self.read(source), self.read(rest[0]))
        sizes = [self.number(d) for d in node.meta["val"].shape]
        known = [None if isinstance(s, Unsized) else s for s in sizes]
        given = [] if name in movement.RESHAPES else self.read(rest)
        return masked.of_hits(self.t, name, self.env[source], given, known)

    def _result(self, node: fx.Node, op: torch._ops.OpOverload, args: list[Any]) -> Any:
        if is_constant(op, args):
            with torch.no_grad():
                return op(*args[: positional(op)], **keywords(op, args))
        base, overload = op._schema.name.split("::")[1], op._overloadname
        if base.endswith("_") and not base.endswith("__"):
            base = base[:-1]
        rules = COMPLEX_TABLE if any_complex(args) else TABLE
        rule = rules.get(f"{base}.{overload}") or rules.get(base)
        if sorted_rows.involved(args):
            found = sorted_rows.applied(self.t, base, args, rule)
            return self._decomposed(node, op) if found is None else found
        if samples.has_samples(args):
            return samples.counted(self.t, base, args)
        return rule(self.t, *args) if rule else self._decomposed(node, op)

    def _decomposed(self, node: fx.Node, op: torch._ops.OpOverload) -> Any:
        """The op in terms of simpler torch ops, by torch's own definition."""
        flat, spec = pytree.tree_flatten((node.args, node.kwargs))
        values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in flat]
        at = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]

        def run(*tensors: torch.Tensor) -> Any:
            filled = list(values)
            for i, tensor in zip(at, tensors, strict=True):
                filled[i] = tensor
            args, kwargs = pytree.tree_unflatten(filled, spec)
            result = op.decompose(*args, **kwargs)
            if result is NotImplemented and op in decomposition_table:
                result = decomposition_table[op](*args, **kwargs)
            if result is NotImplemented:
                raise NotImplementedError
            return result

        try:
            # Without gradients, else tracing adds nodes that torch would save for its own backward pass.
            with values[at[0]].fake_mode, torch.no_grad():
                module = make_fx(run)(*[values[i] for i in at])
        except Exception as error:
            raise _no_rule(values) from error
        fixed = values[at[0]].fake_mode.shape_env.replace(self.symbol) != self.symbol
        if fixed or any(inner.target is op for inner in module.graph.nodes):
            raise _no_rule(values)
        self._kept.append(module)
        seen = self.t.node_shapes, self.t.node_dtypes
        try:
            result = self.run(module, self.read([flat[i] for i in at]))
        except Unsupported as error:
            why = error.why if self._depth > 1 else f"in one of its steps {error.why}"
            raise Inside(why) from error
        self.t.node_shapes, self.t.node_dtypes = seen
        return result

    def _check(self, node: fx.Node, value: Any) -> None:
        made = value if isinstance(value, (list, tuple)) else [value]
        for got, want in zip(made, self.t.node_shapes, strict=False):
            if not isinstance(got, (Value, torch.Tensor, Virtual)):
                continue
            shape = got.shape if isinstance(got, Virtual) else self.t.shape(got)
            if shape != want:
                raise Internal(f"{node.target} gave the shape {shape} instead of {want}")

    # Writing in place.

    def _refuse_write(self, target: fx.Node) -> None:
        owner = self.owners.get(memory_of(target) or 0)
        if owner is not None:
            raise Unsupported(
                f"the forward pass changes '{owner}'", "keep state out of forward(), or pass it in and return it"
            )

    def _write(self, node: fx.Node, value: Any) -> None:
        target: fx.Node = node.args[0]
        memory = memory_of(target)
        self.env[target] = value
        self._bind(node, value)
        others = [m for m in self._sharing.get(memory or 0, []) if m not in (target, node)]
        if all(user in self.env or user in self._dead for m in others for user in m.users):
            return  # nobody reads them any more
        done = {target, node}
        child, new = target, value
        while (parent := self._parent(child)) is not None:
            new = self._put_back(child, self.read(parent), new)
            self.env[parent] = new
            done.add(parent)
            child = parent
        self._stale |= set(others) - done

    def _parent(self, node: fx.Node) -> fx.Node | None:
        """The node whose memory this one is a view of."""
        if node in self._outside:
            return self._outside[node]
        source: Any = node.args[0] if node.args else None
        if node.target is operator.getitem:
            source = source.args[0]
        same = isinstance(source, fx.Node) and memory_of(source) == memory_of(node)
        return source if same else None

    def _put_back(self, child: fx.Node, old: Any, new: Any) -> Any:
        """`old` with its part that `child` shows replaced by `new`."""
        if child in self._outside:
            return new
        pick, view = 0, child
        if child.target is operator.getitem:
            pick, view = child.args[1], child.args[0]
        self._see(view)
        name = name_of(view)
        args = [self.read(a) for a in bound(view.target, view)][1:]
        if name in movement.RESHAPES:
            return self.t.reshape(new, self.t.shape(old))
        if name in movement.PERMUTES:
            perm = movement.perm_of(name, self.t.rank(old), args)
            return self.t.permute(new, [perm.index(a) for a in range(len(perm))])
        if name in movement.SLICES:
            places = movement.places(self.t, name, old, args, pick)
            if self.t.rank(new) < self.t.rank(old):  # select and unbind drop the axis
                shape = self.t.shape(new)
                new = self.t.reshape(new, (*shape[: places[0]], 1, *shape[places[0] :]))
            return self.t.put(old, new, *places)
        if self.t.shape(new) == self.t.shape(old):  # a result in place, detach, contiguous, …
            return new
        raise Unsupported(f"it writes into the result of {name}", "use the form that returns its result")

    def _again(self, node: fx.Node) -> None:
        """Recompute a view of memory that was written to."""
        seen = self.t.node_shapes, self.t.node_dtypes
        if node in self._outside:
            self.env[node] = self.read(self._outside[node])
        elif node.target is operator.getitem:
            source, pick = node.args
            self._see(source)
            pieces = self._result(source, source.target, [self.read(a) for a in bound(source.target, source)])
            self.env[node] = pieces[pick]
        elif name_of(node).endswith("_"):
            self.env[node] = self.read(node.args[0])
        else:
            self._see(node)
            self.env[node] = self._result(node, node.target, [self.read(a) for a in bound(node.target, node)])
        self.t.node_shapes, self.t.node_dtypes = seen

    # Messages.

    @contextmanager
    def _located(self, node: fx.Node) -> Iterator[None]:
        """Stamp what is added with the user's module; say where a failure is."""
        outer = self.t.b.src
        inside = module_of(node, self.wrapped)
        self.t.b.src = outer if inside is None or self._depth else inside
        self._depth += 1
        try:
            yield
        except Exception as error:
            if self._depth > 1:
                raise
            foreseen = isinstance(error, (Unsupported, ArithmeticError, SmidgenError))
            raise explained(error, node, self.t.b.src) from None if foreseen else error
        finally:
            self._depth -= 1
            self.t.b.src = outer if self._depth else ""

    @contextmanager
    def _outermost(self) -> Iterator[None]:
        """For a block of the user's own code: its ops, not the block, are stamped and named."""
        depth, src, self._depth = self._depth, self.t.b.src, 0
        try:
            yield
        finally:
            self._depth, self.t.b.src = depth, src


def _no_rule(values: Sequence[Any]) -> Unsupported:
    complex_numbers = any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)
    return Unsupported(*COMPLEX) if complex_numbers else Unsupported("smidgen has no rule for it")


def positional(op: torch._ops.OpOverload) -> int:
    return sum(not a.kwarg_only for a in op._schema.arguments)


def keywords(op: torch._ops.OpOverload, args: Sequence[Any]) -> dict[str, Any]:
    return {a.name: v for a, v in zip(op._schema.arguments, args, strict=True) if a.kwarg_only}


def is_constant(op: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Can the op be run right now?"""
    random = torch.Tag.nondeterministic_seeded in op.tags
    return not random and not any(isinstance(a, (Value, Batch, Virtual, Complex)) for a in pytree.tree_leaves(args))
