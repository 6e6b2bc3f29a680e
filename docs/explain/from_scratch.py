"""smidgen from scratch: the core of this project once more, small enough to read in one sitting. Needs numpy only.

    python docs/explain/from_scratch.py

A network becomes a list of operations; the list is differentiated; every tensor gets an address in one block of
bytes; a verifier that trusts nobody replays the result; and a machine of four lines trains inside that block.
Read it from top to bottom. Every section names the place in `src/smidgen` where the real thing lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray
Shape = tuple[int, int]  # everything on this page is a matrix: a bias is (1, C), a loss is (1, 1)


# ── 1. A program is a list ──────────────────────────────────────────────────────── ir.py, ops/build.py ──
#
# No tree, no pointers: nodes in the order in which they run. Every name is assigned once, so "the value called h" has
# one meaning everywhere, and whatever a later stage wants to know about it is a question about positions in a list.

@dataclass(frozen=True)
class Node:
    op: str
    ins: tuple[str, ...]
    out: str


@dataclass
class Graph:
    state: list[str] = field(default_factory=list)  # lives from step to step: the weights, and the learning rate
    inputs: list[str] = field(default_factory=list)  # written by the caller before each step
    shapes: dict[str, Shape] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def add(self, op: str, *ins: str, name: str = "") -> str:
        """Append a node; the op's own rule says what shape its result has."""
        out = name or f"{op}.{len(self.nodes)}"
        assert out not in self.shapes, f"{out} is assigned twice"
        self.shapes[out] = OPS[op].shape(*(self.shapes[i] for i in ins))
        self.nodes.append(Node(op, ins, out))
        return out

    def copy(self) -> Graph:
        return Graph(self.state, self.inputs, {**self.shapes}, [*self.nodes])

# ── 2. An operation is one record ─────────────────────────────────────────────────────────────────────────── ops/ ──
#
# Shape rule, meaning and gradient stand side by side. A gradient is one rule for each input, and all a rule does is add
# nodes: backward operations are operations like any other, and nothing after this section asks "is this backward?".

Rule = Callable[[Graph, Node, str], str]  # (graph, the node, gradient of its result) → gradient of one input


@dataclass(frozen=True)
class Op:
    shape: Callable[..., Shape]
    meaning: Callable[..., Array]
    grads: tuple[Rule | None, ...] = ()
    updates: int | None = None  # the result is a new version of this input and takes over its memory


OPS: dict[str, Op] = {}


def define(name: str, *record: object, updates: int | None = None) -> None:
    assert name not in OPS, f"{name} is defined twice"
    OPS[name] = Op(*record, updates=updates)  # type: ignore[arg-type]


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


define("linear", lambda x, w: (x[0], w[0]), lambda x, w: x @ w.T, (
    lambda g, n, dy: g.add("linear_dx", dy, n.ins[1]),  # the gradient of the input reads the weight
    lambda g, n, dy: g.add("linear_dw", dy, n.ins[0]),  # that of the weight reads the input, which is kept until then
))  # fmt: skip
define("linear_dx", lambda dy, w: (dy[0], w[1]), lambda dy, w: dy @ w)
define("linear_dw", lambda dy, x: (dy[1], x[1]), lambda dy, x: dy.T @ x)
define("shift", lambda x, b: x, lambda x, b: x + b, (lambda g, n, dy: dy, lambda g, n, dy: g.add("shift_db", dy)))
define("shift_db", lambda dy: (1, dy[1]), lambda dy: dy.sum(0, keepdims=True))
define("add", lambda a, b: a, lambda a, b: a + b, (lambda g, n, dy: dy, lambda g, n, dy: dy))
# y > 0 says as much as x > 0, and the layer after a relu keeps y anyway. Reading x here would keep one more tensor.
define("relu", lambda x: x, lambda x: np.maximum(x, 0), (lambda g, n, dy: g.add("relu_dx", dy, n.out),))
define("relu_dx", lambda dy, y: dy, lambda dy, y: np.where(y > 0, dy, 0))
define("cross_entropy", lambda z, t: (1, 1), lambda z, t: -(t * np.log(softmax(z))).sum().reshape(1, 1) / len(z), (
    lambda g, n, dy: g.add("cross_entropy_dx", dy, *n.ins),
    None,  # labels have no gradient, which is not the same as a rule that is missing
))  # fmt: skip
define("cross_entropy_dx", lambda dy, z, t: z, lambda dy, z, t: dy * (softmax(z) - t) / len(z))
define("one", lambda: (1, 1), lambda: np.ones((1, 1)))
define("sgd", lambda w, g, lr: w, lambda w, g, lr: w - lr * g, updates=0)


def interpret(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """What a program means: every node by its definition, in whatever precision `values` have (interp.py)."""
    env = dict(values)
    for node in graph.nodes:
        env[node.out] = OPS[node.op].meaning(*(env[i] for i in node.ins))
    return env

# ── 3. Gradients, at compile time ──────────────────────────────────────────────────── compiler/passes/autodiff.py ──
#
# Walk the list backwards and ask each node's rules for the gradients of its inputs, but only towards what learns.
# A value that is read twice gets two gradients, and they ADD. Keeping only one of them is the classic mistake: a plain
# stack of layers never shows it, every residual connection does. `meet` exists so that section 11 can plant it.

def autodiff(
    graph: Graph, loss: str, learn: Sequence[str], meet: Callable[..., str] = lambda g, old, new: g.add("add", old, new)
) -> tuple[Graph, dict[str, str]]:
    """The graph with its backward nodes, and for everything that learns the name of its gradient."""
    depends = {*learn}
    for node in graph.nodes:
        if depends & {*node.ins}:
            depends.add(node.out)
    g = graph.copy()
    grads = {loss: g.add("one")}
    for node in reversed(graph.nodes):
        if node.out in grads:
            for name, rule in zip(node.ins, OPS[node.op].grads, strict=True):
                if name in depends and rule is not None:
                    new = rule(g, node, grads[node.out])
                    grads[name] = meet(g, grads[name], new) if name in grads else new
    return g, {name: grads[name] for name in learn}

# ── 4. Learning ──────────────────────────────────────────────────────────────────────── compiler/passes/update.py ──
#
# An update reads w and yields w', the next version, in the same memory. So it must come after the last reader of w, and
# it should come right there: then it can be ONE operation with the weight's gradient. Written in C, tile by tile, such
# an operation never has the gradient in memory, and gradients as large as the weights are what fills a small device.

SINKS = {"linear_dw": 2, "shift_db": 1}  # → number of inputs; those of the update, w and lr, follow

for sink, k in SINKS.items():
    stepped = lambda *a, k=k, dw=OPS[sink].meaning: OPS["sgd"].meaning(a[k], dw(*a[:k]), a[k + 1])  # noqa: E731
    define(f"{sink}_sgd", lambda *shapes, k=k: shapes[k], stepped, updates=k)


def learning(graph: Graph, grads: Mapping[str, str], fuse: bool = True) -> Graph:
    """The graph with an update of each weight, as early as the inputs of the update and the readers of w allow."""
    g = graph.copy()
    for weight, grad in grads.items():
        update = Node("sgd", (weight, grad, "lr"), f"{weight}'")
        source = next(n for n in g.nodes if n.out == grad)
        if fuse and source.op in SINKS and not any(grad in n.ins for n in g.nodes):
            update = Node(f"{source.op}_sgd", (*source.ins, weight, "lr"), f"{weight}'")
            g.nodes.remove(source)
        g.shapes[update.out] = g.shapes[weight]
        last = max(i for i, n in enumerate(g.nodes) if weight in n.ins or n.out in update.ins)
        g.nodes.insert(last + 1, update)
    return g

# ── 5. What training keeps ──────────────────────────────────────────────────────────────── docs/explain/memory.md ──
#
# The price of training: values of the forward pass that wait for the backward pass. Nobody writes this list. It follows
# from the rules of section 2: what a gradient reads is kept, and nothing else is.

def kept(graph: Graph, loss: str) -> list[str]:
    middle = [n.out for n in graph.nodes].index(loss)
    read = {i for n in graph.nodes[middle + 1 :] for i in n.ins}
    return [name for name in (*graph.inputs, *(n.out for n in graph.nodes[:middle])) if name in read]

# ── 6. An address for every tensor ─────────────────────────────────────────────────────── compiler/place/arena.py ──
#
# A tensor is alive from the node that makes it to its last reader. Two of them may share bytes if they are never alive
# together. The smallest block is NP-hard to find; largest first, into the tightest gap that is free for a whole life,
# comes close. How close? No placement beats the largest sum of bytes that are alive at one moment.

ALIGN = 16
Lives = Mapping[str, tuple[int, int]]  # name → birth and death, as positions in the list


def size(shape: Shape) -> int:
    return -(-4 * shape[0] * shape[1] // ALIGN) * ALIGN


def lives(graph: Graph, result: str) -> Lives:
    """Of all that does not outlive the step: inputs are there before the first node, the result after the last."""
    made = {n.out: i for i, n in enumerate(graph.nodes) if OPS[n.op].updates is None}
    last = {name: i for i, n in enumerate(graph.nodes) for name in n.ins}
    last[result] = len(graph.nodes)
    return {name: (birth, last.get(name, birth)) for name, birth in {**dict.fromkeys(graph.inputs, -1), **made}.items()}


def lower_bound(graph: Graph, alive: Lives) -> int:
    moments = range(-1, len(graph.nodes) + 1)
    return max(sum(size(graph.shapes[n]) for n, (b, d) in alive.items() if b <= m <= d) for m in moments)


def place(graph: Graph, alive: Lives) -> tuple[dict[str, int], int, int]:
    """The address of every tensor, where the state ends, and where all ends."""
    where: dict[str, int] = {}
    end = 0
    for name in graph.state:
        where[name], end = end, end + size(graph.shapes[name])
    start = end
    taken: list[tuple[int, int, int, int]] = []  # address, end, birth, death
    for name in sorted(alive, key=lambda n: -size(graph.shapes[n])):
        (birth, death), need, free, gaps = alive[name], size(graph.shapes[name]), start, []
        for at, to, b, d in sorted(taken):
            if b <= death and birth <= d:  # alive together: its bytes are no choice
                gaps += [(at - free, free)] if at - free >= need else []
                free = max(free, to)
        where[name] = at = min(gaps, default=(0, free))[1]
        taken.append((at, at + need, birth, death))
        end = max(end, at + need)
    for node in graph.nodes:
        if (k := OPS[node.op].updates) is not None:
            where[node.out] = where[node.ins[k]]
    return where, start, end

# ── 7. A program is a table of numbers ────────────────────────────────────────────── program/, runtime/format.h ──
#
# An instruction: number of the op, number of operands, then offset, rows and columns of each, the result first. This is
# all that compiler and machine have in common. It can be sent over the air and burnt into flash, and the device that
# runs it needs no compiler.

NAMES = sorted(OPS)


def encode(graph: Graph, where: Mapping[str, int]) -> Array:
    words: list[int] = []
    for node in graph.nodes:
        words += [NAMES.index(node.op), 1 + len(node.ins)]
        for name in (node.out, *node.ins):
            words += [where[name], *graph.shapes[name]]
    return np.array(words, np.int32)


def decode(table: Array) -> Iterator[tuple[str, Array]]:
    while len(table):
        end = 2 + 3 * table[1]
        yield NAMES[table[0]], table[2:end].reshape(-1, 3)
        table = table[end:]

# ── 8. Proof ────────────────────────────────────────────────────────────────────────────────── compiler/verify.py ──
#
# The planner may be wrong. The verifier shares no code with it and does not ask for its lifetimes: it replays the TABLE
# on a shadow of the block, in which every four bytes carry the name of the value last written there. A reader must find
# the very value that the graph means. Freed early, shared by mistake, updated before the last reader, written over an
# operand, encoded wrongly: it all comes down to "something else is there".

class Unsafe(Exception): ...


def verify(table: Array, graph: Graph, home: Mapping[str, int], result: str, block_bytes: int) -> None:
    """`home` says what the caller relies on: where state and inputs are before a step, and the result after it."""
    shadow = np.full(block_bytes // 4, "nothing", object)

    def cells(offset: int, rows: int, columns: int) -> slice:
        if offset < 0 or offset % 4 or offset + 4 * rows * columns > block_bytes:
            raise Unsafe(f"{rows}x{columns} at {offset} is not inside the block")
        return slice(offset // 4, offset // 4 + rows * columns)

    def expect(name: str, part: slice, who: str) -> None:
        for found in {*shadow[part]} - {name}:
            raise Unsafe(f"{who} wants {name}, but {found} is there")

    for name in (*graph.state, *graph.inputs):
        expect("nothing", cells(home[name], *graph.shapes[name]), name)
        shadow[cells(home[name], *graph.shapes[name])] = name
    for node, (op, operands) in zip(graph.nodes, decode(table), strict=True):
        shapes = [(rows, columns) for _, rows, columns in operands.tolist()]
        if op != node.op or shapes != [graph.shapes[n] for n in (node.out, *node.ins)]:
            raise Unsafe(f"{op} of {shapes} stands where the graph has {node}")
        out, *ins = (cells(*operand) for operand in operands.tolist())
        for i, (part, name) in enumerate(zip(ins, node.ins, strict=True)):
            expect(name, part, node.out)
            if part.start < out.stop and out.start < part.stop and i != OPS[op].updates:
                raise Unsafe(f"{node.out} is written over {name} while that is read")
        shadow[out] = node.out
    newer = {n.ins[k]: n.out for n in graph.nodes if (k := OPS[n.op].updates) is not None}
    for name in (*graph.state, result):
        expect(newer.get(name, name), cells(home[name], *graph.shapes[name]), "the next step")

# ── 9. The machine ────────────────────────────────────────────────────────────────────────────────── runtime/vm.c ──
#
# It sees a table and a block, and nothing else. (numpy makes temporaries behind our back; kernels in C do not.)

def view(block: Array, offset: int, rows: int, columns: int) -> Array:
    return block[offset : offset + 4 * rows * columns].view(np.float32).reshape(rows, columns)


def run(table: Array, block: Array) -> None:
    for op, operands in decode(table):
        out, *ins = (view(block, *operand) for operand in operands.tolist())
        out[:] = OPS[op].meaning(*ins)

# ── 10. A residual network that tells three spirals apart ───────────────────────────────────────────────── api.py ──
#
# `h` is read by a layer AND by an addition: the fan-out that section 3 was careful about.

BATCH, WIDTH, CLASSES = 16, 64, 3
LEARN = [f"{kind}{k}" for k in range(1, 7) for kind in "wb"]
rng = np.random.default_rng(0)
weights: dict[str, Array] = {"lr": np.full((1, 1), 0.05)}
net = Graph(["lr", *LEARN], ["x", "t"], {"lr": (1, 1), "x": (BATCH, 2), "t": (BATCH, CLASSES)})


def layer(x: str, k: int, outputs: int = WIDTH) -> str:
    inputs = net.shapes[x][1]
    weights[f"w{k}"] = rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)
    weights[f"b{k}"] = np.zeros((1, outputs))
    net.shapes |= {name: weights[name].shape for name in (f"w{k}", f"b{k}")}
    return net.add("shift", net.add("linear", x, f"w{k}"), f"b{k}")


h = net.add("relu", layer("x", 1))
for k in (2, 4):
    inside = net.add("relu", layer(h, k))
    h = net.add("relu", net.add("add", h, layer(inside, k + 1)))
z = layer(h, 6, CLASSES)
predict = Graph(net.state, ["x"], {**net.shapes}, [*net.nodes])  # a second program on the same state
loss = net.add("cross_entropy", z, "t", name="loss")


def spirals(seed: int) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    label, radius = draw.integers(0, CLASSES, BATCH), draw.uniform(0.1, 1, (BATCH, 1))
    angle = 4 * radius + label[:, None] * 2 * np.pi / CLASSES + 0.1 * draw.standard_normal((BATCH, 1))
    return {"x": 2 * radius * np.hstack([np.cos(angle), np.sin(angle)]), "t": np.eye(CLASSES)[label]}


def compiled(graph: Graph, result: str) -> tuple[Array, dict[str, int], int, int]:
    """The table, all addresses, and where state and arena end; proven."""
    where, arena, end = place(graph, lives(graph, result))
    table = encode(graph, where)
    verify(table, graph, where, result, end)
    return table, where, arena, end

# ── 11. Believe nothing ─────────────────────────────────────────────────────────────────── tests/, smidgen verify ──
#
# Gradients against finite differences, in float64; then faults, planted one by one. A check that has never failed has
# not shown that it can.

def gradient_error(graph: Graph, grads: Mapping[str, str]) -> float:
    values = weights | spirals(seed=0)
    env, worst = interpret(graph, values), 0.0
    for name in LEARN:
        way = rng.standard_normal(values[name].shape)
        up, down = (interpret(net, values | {name: values[name] + d * way})[loss].item() for d in (1e-6, -1e-6))
        slope, claimed = (up - down) / 2e-6, float((env[grads[name]] * way).sum())
        worst = max(worst, abs(slope - claimed) / max(abs(slope), 1e-3))
    return worst


def refused(table: Array, graph: Graph, where: Mapping[str, int], end: int) -> str:
    try:
        verify(table, graph, where, loss, end)
    except Unsafe as error:
        return str(error)
    raise AssertionError("a planted fault was not found")


both = autodiff(net, loss, LEARN)
train = learning(*both)
table, where, arena, end = compiled(train, loss)
sound, lost = gradient_error(*both), gradient_error(*autodiff(net, loss, LEARN, meet=lambda g, old, new: new))
assert sound < 1e-5 < 0.1 < lost
print(f"gradients = finite differences: {len(LEARN)} tensors, worst difference {sound:.0e}")
print(f"planted: a gradient lost at fan-out    → differs from finite differences by {lost:.0%}")

hasty = {name: (birth, max(birth, death - 1)) for name, (birth, death) in lives(train, loss).items()}
early, _, early_end = place(train, hasty)
print(f"planted: memory freed one step early   → {refused(encode(train, early), train, early, early_end)}")

reader = next(n for n in train.nodes if n.op == "linear_dx" and "w6" in n.ins)
others = [n for n in train.nodes if n is not reader]
others.insert([n.out for n in others].index("w6'") + 1, reader)
swapped = Graph(train.state, train.inputs, train.shapes, others)
print(f"planted: update before the last reader → {refused(encode(swapped, where), swapped, where, end)}")

addresses = [operand for _, operands in decode(table) for operand in operands]  # views: changing one changes the table
for operand in addresses:
    operand[0] += ALIGN
    refused(table, train, where, end)
    operand[0] -= ALIGN
print(f"planted: a wrong address in the table  → found for each of {len(addresses)} addresses")

# ── 12. Where the bytes go ────────────────────────────────────────────────────────────────────────── smidgen plan ──

alive, plain = lives(train, loss), learning(*both, fuse=False)
arenas = {
    "every tensor at a place of its own": sum(size(plain.shapes[n]) for n in lives(plain, loss)),
    "places shared by lifetime": compiled(plain, loss)[3] - arena,
    "weight gradient and update in one": end - arena,
    "only the last layer learns": compiled(learning(*autodiff(net, loss, ["w6", "b6"])), loss)[3] - arena,
    "nothing learns: prediction": compiled(predict, z)[3] - arena,
}
assert [*arenas.values()] == sorted(arenas.values(), reverse=True)
print(f"\nstate {arena:,} bytes, and the arena for {BATCH} samples:")
for what, count in arenas.items():
    print(f"  {what:<36}{count:>8,} bytes")
print(f"lower bound {lower_bound(train, alive):,} bytes; kept for backward: {', '.join(kept(train, loss))}")

print("\nthe arena: time goes right, addresses go down, a letter is a tensor, and the loss is at the bar")
letters = dict(zip(alive, "xtabcdefghijklmnopqrsuvwyzABCDEFGHIJKLMNOPQRSTUVWXYZ" * 2, strict=False))
for row in range(16):
    address, line = arena + (2 * row + 1) * (end - arena) // 32, ""
    for moment, node in enumerate(train.nodes):
        here = [n for n, (b, d) in alive.items() if b <= moment <= d]
        line += next((letters[n] for n in here if where[n] <= address < where[n] + size(train.shapes[n])), "·")
        line += "│" if node.out == loss else ""
    print(f"  {line}")

# ── 13. Train, inside the block ───────────────────────────────────────────────────────────────────── train/job.py ──

guess, guess_where, _, guess_end = compiled(predict, z)
block, truth = np.zeros(max(end, guess_end), np.uint8), dict(weights)
for name, value in weights.items():
    view(block, where[name], *net.shapes[name])[:] = value


def accuracy() -> float:
    right = 0
    for data in map(spirals, range(10_000, 10_010)):
        view(block, guess_where["x"], BATCH, 2)[:] = data["x"]
        run(guess, block)
        right += (view(block, guess_where[z], BATCH, CLASSES).argmax(1) == data["t"].argmax(1)).sum()
    return right / (10 * BATCH)


print(f"\nbefore     accuracy {accuracy():.0%}")
for step in range(1, 301):
    data = spirals(seed=step)
    for name in train.inputs:
        view(block, where[name], *net.shapes[name])[:] = data[name]
    run(table, block)
    if step <= 10:  # the machine, in float32 and in shared memory, does what the list means in float64
        env = interpret(train, truth | data)
        truth = {name: env.get(f"{name}'", env[name]) for name in truth}
        assert all(np.allclose(view(block, where[n], *net.shapes[n]), truth[n], atol=1e-5) for n in truth)
    if step % 100 == 0:
        print(f"step {step:<6}accuracy {accuracy():.0%}, loss {view(block, where[loss], 1, 1).item():.3f}")
assert accuracy() > 0.9
print(f"everything happened inside one block of {len(block):,} bytes")

# What the real thing adds: convolutions, norms and 200 more operations, each with a kernel in C; operating in place;
# one bit instead of a number where a bit is all that a gradient reads; frozen layers that run sample by sample; micro-
# batches; momentum and Adam; any batch size with one table; the same bits from every compiler. The shape stays this.
