"""A plan as text and as JSON: the answer first, then layers, decisions and the arena. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from ..program.plan import Plan, Traffic
from ..program.rungs import Rung, rungs_of
from ..terminal import bytes_text, count_text, paint, seconds_text
from .arena_picture import arena_picture, cut, printable, wrapped
from .by_layer import Layer, grouped, layers_of

BAR: Final = 8  # characters
LEAST_WIDTH: Final = 80
LEAST_SAID: Final = 5e-4  # of a step's cost
OP_ROOM: Final = 10  # fewer are not worth a column


# -- text ---------------------------------------------------------------------------------------------------------


def plan_text(
    plan: Plan, *, title: str = "", seconds_per_step: float | None = None, seconds_per_inference: float | None = None,
    all_layers: bool = False, colour: bool = False, width: int = 100,
) -> str:  # fmt: skip
    """Everything about a plan that a terminal can show."""
    width = max(LEAST_WIDTH, width)
    parts = [answer(plan, title=title, seconds_per_step=seconds_per_step, seconds_per_inference=seconds_per_inference,
                    colour=colour, width=width)]  # fmt: skip
    layers = [row for row in layers_of(plan) if row.counts]
    if layers:
        parts.append(_layers(layers if all_layers else grouped(layers), plan, len(layers), colour, width))
    parts.append(_decisions(plan, colour, width))
    entry = largest_entry(plan)
    if entry:
        timeline, size = plan.facts.entries[entry], plan.arena_by_entry[entry]
        text = f"arena  {printable(entry)}: {size:,} bytes{_gap(size, timeline.peak()[1])}"
        first, *rest = wrapped(text, width, " " * 7)
        lines = [paint("arena", "bold", colour=colour) + first.removeprefix("arena"), *rest]
        sizes = {e: bytes_text(plan.arena_by_entry[e]) for e in ordered(plan.arena_by_entry) if e != entry}
        others = ", ".join(f"{printable(e)} {size}" for e, size in sizes.items())
        lines += wrapped(f"       in the same place: {others}", width, " " * 9) if others else []
        parts.append("\n".join([*lines, "", arena_picture(timeline, size, width=width, colour=colour)]))
    else:
        parts.append("this program does not carry the facts for tables and pictures: compile it again")
    return "\n\n".join(parts)


def largest_entry(plan: Plan) -> str:
    """The entry point that decides the size of the arena; empty without facts."""
    return max(plan.facts.entries, key=lambda e: (plan.arena_by_entry[e], e == "train"), default="")


def ordered(entries: Iterable[str]) -> list[str]:
    """Entry points as people think of them: training first."""
    usual = ["train", "learn", "judge", "grad", "apply", "zero", "features", "infer", "evaluate", "score"]
    return sorted(entries, key=lambda e: (usual.index(e) if e in usual else len(usual), e))


def _gap(size: int, bound: int) -> str:
    if size == bound:
        return ", the least that these steps can do with"
    return f", {size / bound - 1:.1%} above the least that these steps can do with" if bound else ""


def answer(
    plan: Plan, *, title: str = "", seconds_per_step: float | None = None, seconds_per_inference: float | None = None,
    colour: bool = False, width: int = 100,
) -> str:  # fmt: skip
    """RAM, flash, arithmetic, time, and what learns: one line each."""
    layers, seconds = layers_of(plan), seconds_per_step
    forward, backward = sum(r.forward_macs for r in layers), sum(r.backward_macs for r in layers)
    parts = ", ".join(f"{name} {bytes_text(count)}" for name, count in state_parts(plan).items())
    rows = [
        ("RAM", bytes_text(plan.ram_bytes), f"{plan.ram_bytes:,} bytes = state {plan.state_bytes:,} + arena "
         f"{plan.arena_bytes:,} + context {plan.context_bytes:,} + stack {plan.stack_bytes:,}"
         + (f" + work memory of fast kernels {plan.work_bytes:,}; exact kernels take {plan.exact_ram_bytes:,}"
            if plan.work_bytes else ", with exact kernels")),
        ("state", bytes_text(plan.state_bytes), parts),
        ("flash", bytes_text(plan.flash_bytes + 2 * plan.slot_bytes),
         f"{plan.flash_bytes:,} bytes: program, constants, initial state"
         + (f"; two slots of {plan.slot_bytes:,} for saved state" if plan.slot_bytes else "")),
        ("MACs", count_text(plan.cost.macs.get("train", 0)),
         f"{_step(plan)}" + (f": {count_text(forward)} forward, {count_text(backward)} backward"
                                                if layers else "")),
    ]  # fmt: skip
    fits = [("fits", limit_text(plan), fits_text(plan))] if plan.objective else []
    rows = [*fits, rows[0], *_limit_rows(plan), *rows[1:]]
    if plan.replay_bytes:
        rows.append(("replay", bytes_text(plan.replay_bytes), _replay_text(plan)))
    if plan.page_bytes:
        step = plan.paged.get("train", Traffic(0, 0))
        moved = f"a step brings {bytes_text(step.in_bytes)} in and puts {bytes_text(step.out_bytes)} out"
        rows.append(("pages", bytes_text(plan.page_bytes), f"{plan.page_bytes:,} bytes in PAGE; {moved}"))
    if plan.step_seconds:
        rows.append(("step", seconds_text(plan.step_seconds), step_text(plan)))
    if plan.infer_seconds:
        rows.append(("infer", seconds_text(plan.infer_seconds), infer_text(plan)))
    rungs = _rungs(plan)
    if len(rungs) > 1:
        sizes = ", ".join(bytes_text(rung.ram_bytes) for rung in rungs)
        rows.append(("ladder", f"{len(rungs)}", f"plans in one program, for {sizes} of RAM"))
    if seconds is not None:
        rate = f"{_rate(plan.batch / seconds)} samples/s"
        rows.append(("time", seconds_text(seconds), f"{_step(plan)} on this machine: {rate}"))
    if seconds_per_inference is not None:
        rows.append(("", seconds_text(seconds_per_inference), "inference of 1 sample on this machine"))
    rows.append(("learns", f"{len(plan.learns)}", _learning(plan)))
    lines = [paint(printable(title), "bold", colour=colour)] if title else []
    for name, figure, text in rows:
        first, *rest = wrapped(text, width - 21) or [""]
        lines += [f"{name:<7} {paint(f'{figure:>10}', 'bold', colour=colour)}   {first}", *(" " * 21 + t for t in rest)]
    return "\n".join(lines)


def limit_text(plan: Plan) -> str:
    return bytes_text(plan.limits["train"]) if "train" in plan.limits else "yes"


def fits_text(plan: Plan) -> str:
    """What it takes to fit, and its price, in short."""
    did = [printable(d.short or d.why) for d in plan.decisions if d.is_to_fit]
    return f"{', '.join(did) or 'as it is'}: {_price_text(plan)}"


def _price_text(plan: Plan) -> str:
    """What a limit costs, and how far that may be above the optimum."""
    extra = _more(plan, plan.step_cost)
    if extra < LEAST_SAID:
        return f"no extra {plan.objective}"
    text = f"+{extra * 100:.1f} % {plan.objective}"
    if not plan.least_cost:
        return text
    above = plan.step_cost / plan.least_cost - 1
    return f"{text}, at most {above * 100:.1f} % above the optimum" if above >= LEAST_SAID else f"{text}, the optimum"


def _more(plan: Plan, cost: float) -> float:
    """Than without a limit."""
    return cost / plan.free_cost - 1 if plan.free_cost else 0.0


def _limit_rows(plan: Plan) -> list[tuple[str, str, str]]:
    rows = []
    if "train" in plan.limits:
        rows.append(("limit", bytes_text(plan.limits["train"]), f"{plan.limits['train']:,} bytes{_made_for(plan)}"))
    if plan.device:
        banks = ", ".join(f"{region} in {printable(bank)}" for region, bank in plan.banks.items())
        rows.append(("device", printable(plan.device), banks))
    return rows


def infer_text(plan: Plan) -> str:
    """What an inference takes by the prices that it was planned with."""
    return f"inference of 1 sample on {_where(plan)}, predicted: {_joules_text(plan.infer_joules)}"


def _where(plan: Plan) -> str:
    return printable(plan.device) if plan.device else "a typical desktop core"


def step_text(plan: Plan) -> str:
    """What a step takes by the prices that it was planned with."""
    text = f"a step on {_where(plan)}, predicted: {_joules_text(plan.step_joules)}"
    if not plan.objective or _more(plan, plan.step_cost) < LEAST_SAID:
        return text
    text += f"; without a limit {seconds_text(plan.free_seconds)}, {_joules_text(plan.free_joules)}"
    least = max(_more(plan, plan.least_cost), 0.0)
    return f"{text}; no way to fit takes less than +{least * 100:.1f} %" if plan.least_cost else text


def _made_for(plan: Plan) -> str:
    if plan.kernels == "exact":
        return ", with exact kernels"
    return f", with {printable(plan.kernels)} kernels on up to {plan.threads} thread{'s' * (plan.threads != 1)}"


def _rungs(plan: Plan) -> tuple[Rung, ...]:
    return rungs_of(plan.arena_by_entry, plan.arena_by_entry, plan.ram_bytes - plan.arena_bytes)


def state_parts(plan: Plan) -> dict[str, int]:
    """What is in RAM between steps, and how many bytes of it."""
    names = {"param": "parameters", "optim": "optimizer", "stat": "statistics", "setting": "settings"}
    found = {name: sum(s.bytes for s in plan.facts.stored if s.role == role) for role, name in names.items()}
    found["settings"] -= plan.replay_bytes
    found["replay"] = plan.replay_bytes
    return {name: count for name, count in found.items() if count}


def _learning(plan: Plan) -> str:
    text = _tensors(len(plan.learns)).partition(" ")[2]
    if plan.model_tensors:
        text = f"of {plan.model_tensors} tensors, {plan.learned_parameters:,} of {plan.model_parameters:,} parameters"
    return f"{text} (method {printable(plan.method)})"


def _replay_text(plan: Plan) -> str:
    kept, _, places = next((d.why for d in plan.decisions if d.kind == "replay"), "").partition(";")
    outside = places.partition(", ")[2]  # of the state come first
    return f"{plan.replay_bytes:,} bytes of the state{', ' + printable(outside) if outside else ''}: {printable(kept)}"


def _joules_text(joules: float) -> str:
    for unit in ("J", "mJ", "µJ"):
        if joules >= 1 or unit == "µJ":
            break
        joules *= 1000
    return f"{joules:.3g} {unit}"


def _step(plan: Plan) -> str:
    """What figures of the entry `train` are about."""
    if plan.step_samples > plan.batch:
        return f"{_samples(plan.batch)}, of the {plan.step_samples} of a step"
    return f"a step of {_samples(plan.batch)}"


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _layers(rows: Sequence[Layer], plan: Plan, count: int, colour: bool, width: int) -> str:
    """Numbers and what learns take 68 columns; the rest is for names of layers and ops."""
    names = [printable(row.name) for row in rows]
    room = width - 68
    name_room = min(max(map(len, [*names, "layer"])), max(10, room * 3 // 5, room - 14))
    op_room = room - name_room - 2
    ops = [_first_few(row.ops, op_room) if op_room >= OP_ROOM else "" for row in rows]
    op_room = max(map(len, ["op", *ops])) if any(ops) else 0
    most = max(row.saved_bytes for row in rows)

    def line(name: str, op: str, saved: str, bar: str, forward: str, backward: str, weights: str, learns: str) -> str:
        text = f"{cut(name, name_room):<{name_room}}  " + (f"{op:<{op_room}}  " if op_room else "")
        text += f"{saved:>10} {paint(f'{bar:<{BAR}}', 'blue', colour=colour)} {forward:>8} {backward:>8} {weights:>10}"
        return f"{text}  {learns}".rstrip()

    def numbers(rows: Sequence[Layer], bar: str, learns: str) -> tuple[str, str, str, str, str, str]:
        saved, weights = sum(r.saved_bytes for r in rows), sum(r.weights_bytes for r in rows)
        forward, backward = sum(r.forward_macs for r in rows), sum(r.backward_macs for r in rows)
        return (_or_dot(saved, bytes_text), bar, _or_dot(forward, count_text), _or_dot(backward, count_text),
                _or_dot(weights, bytes_text), learns)  # fmt: skip

    lines = [paint(line("layer", "op", "saves", "", "forward", "backward", "weights", "learns"), "bold", colour=colour)]
    for row, name, op in zip(rows, names, ops, strict=True):
        lines.append(line(name, op, *numbers([row], _bar(row.saved_bytes, most), _learned(row))))
    lines.append(paint(line("total", "", *numbers(rows, "", _tensors(len(plan.learns)))), "bold", colour=colour))
    note = f"saves: kept from the forward to the backward pass; forward, backward: MACs of {_samples(plan.batch)}"
    notes = wrapped(note, width)
    notes += [f"{count} layers in {len(rows)} rows; --all-layers shows each"] if len(rows) < count else []
    return "\n".join([*lines, *(paint(note, "dim", colour=colour) for note in notes)])


def _first_few(ops: Sequence[str], room: int) -> str:
    """As many as fit, and how many more."""
    for count in range(len(ops), 0, -1):
        rest = f" +{len(ops) - count}" if count < len(ops) else ""
        text = ", ".join(printable(op) for op in ops[:count]) + rest
        if len(text) <= room or count == 1:
            return text if len(text) <= room else f"{text[: max(0, room - 1)]}…"
    return ""


def _bar(value: int, most: int) -> str:
    """A length in eighths of a character; what is not nothing can be seen."""
    eighths = -(-value * BAR * 8 // most) if most else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _learned(row: Layer) -> str:
    """The names, without the layer's own, if they fit."""
    names = ", ".join(printable(name.removeprefix(f"{row.name}.")) for name in row.learns)
    return names if len(names) <= 15 else _tensors(len(row.learns))


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


def _or_dot(value: int, text: Callable[[int], str]) -> str:
    return text(value) if value else "·"


def _decisions(plan: Plan, colour: bool, width: int) -> str:
    lines = [paint("decisions", "bold", colour=colour) + "  what each saves at the peak, and its price"]
    room = max((len(printable(d.kind)) for d in plan.decisions), default=0)
    prices = [f"{seconds_text(d.adds_s)} a step" if d.adds_s else "no time" for d in plan.decisions]
    price_room = max(map(len, prices), default=0)
    for d, price in zip(plan.decisions, prices, strict=True):
        start = f"  {printable(d.kind):<{room}}  {bytes_text(d.saves_bytes):>10}  {price:>{price_room}}  "
        lines += wrapped(start + printable(d.why), width, " " * len(start))
    return "\n".join(lines if plan.decisions else [*lines, "  none: there was nothing to save"])


# -- JSON ---------------------------------------------------------------------------------------------------------


def plan_json(
    plan: Plan, seconds_per_step: float | None = None, seconds_per_inference: float | None = None
) -> dict[str, Any]:
    """Everything that `plan_text` shows, and all tensors of all entry points. Keys: docs/howto/read_a_plan.md."""
    return {
        "ram_bytes": plan.ram_bytes,
        "state_bytes": plan.state_bytes,
        "replay_bytes": plan.replay_bytes,
        "arena_bytes": plan.arena_bytes,
        "context_bytes": plan.context_bytes,
        "stack_bytes": plan.stack_bytes,
        "work_bytes": plan.work_bytes,
        "flash_bytes": plan.flash_bytes,
        "slot_bytes": plan.slot_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "batch": plan.batch,
        "step_samples": plan.step_samples,
        "macs": {name: plan.cost.macs[name] for name in ordered(plan.cost.macs)},
        "seconds_per_step": seconds_per_step,
        "samples_per_s": plan.batch / seconds_per_step if seconds_per_step else None,
        "seconds_per_inference": seconds_per_inference,
        "method": plan.method,
        "optimizer": plan.optimizer,
        "learns": list(plan.learns),
        "model_tensors": plan.model_tensors,
        "model_parameters": plan.model_parameters,
        "learned_parameters": plan.learned_parameters,
        "decisions": [asdict(d) for d in plan.decisions],
        "layers": [asdict(row) for row in layers_of(plan)],
        "stored": [asdict(s) for s in plan.facts.stored],
        "entries": {name: _entry_json(plan, name) for name in ordered(plan.facts.entries)},
        "device": plan.device or None,
        "banks": dict(plan.banks),
        "rungs": [asdict(rung) for rung in _rungs(plan)],
        "page_bytes": plan.page_bytes,
        "page_state_bytes": plan.page_state_bytes,
        "paged": {name: asdict(moved) for name, moved in plan.paged.items()},
        "step_seconds": plan.step_seconds or None,
        "step_joules": plan.step_joules or None,
        "infer_seconds": plan.infer_seconds or None,
        "infer_joules": plan.infer_joules or None,
        "free_seconds": plan.free_seconds or None,
        "free_joules": plan.free_joules or None,
        "objective": plan.objective or None,
        "least_cost": plan.least_cost or None,
        "limits": dict(plan.limits),
        "kernels": plan.kernels or None,
        "threads": plan.threads or None,
    }


def _entry_json(plan: Plan, name: str) -> dict[str, Any]:
    timeline = plan.facts.entries[name]
    at, most = timeline.peak()
    tensors = [
        {**asdict(s), "layer": timeline.maker(s).layer, "op": timeline.maker(s).op} for s in timeline.spans
    ]  # fmt: skip
    return {
        "arena_bytes": plan.arena_by_entry[name],
        "peak_bytes": most,
        "peak_at": at,
        "loop": None if timeline.loop is None else {"at": timeline.loop[0], "instructions": timeline.loop[1]},
        "instructions": [asdict(m) for m in timeline.moments],
        "tensors": tensors,
    }
