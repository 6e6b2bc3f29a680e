"""compile(), sweep() and max_batch(): one set of arguments, checked once; the pipeline itself is in compiler/."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from . import terminal
from .compiler.assemble import Asked, encode, sized
from .compiler.effort import metered
from .compiler.entries import Entries
from .compiler.fit.by_method import ByMethod, by_method
from .compiler.fit.candidate import step_spent
from .compiler.fit.ladder import encode_ladder
from .compiler.fit.max_batch import Largest, largest_batch
from .compiler.fit.micro_batch import for_caches
from .compiler.fit.search import best_for, in_time
from .compiler.fit.sweep import Sweep, Told
from .compiler.fit.sweep import sweep as sweep_all
from .compiler.optimizers import Optimizer
from .compiler.options import (
    Classes,
    Memory,
    Options,
    check_step,
    check_where,
    checked_budget,
    checked_deadline,
    checked_device,
    checked_effort,
    checked_ladder,
    checked_memory,
    checked_objective,
    checked_options,
    checked_prices,
)
from .compiler.pipeline import Lowering
from .compiler.planner.cost import prices_of
from .compiler.planner.goal import Goal, Search
from .compiler.planner.measure import measured
from .compiler.precision import Int8
from .devices.device import Device
from .devices.room import Limit
from .errors import BadOption, MissingPart
from .methods import Method, Part, SparseUpdate, TinyTrain, methods_of, open_parts
from .program.program import Program
from .program.rungs import entry_at
from .runtime.work import Work, checked_kernels, checked_page_to
from .schemes import Selector, checked_data, scoring_within, tiny_part
from .train.job import Job

if TYPE_CHECKING:
    from .compiler.imported import Imported
    from .ir import Array
    from .schemes import Found
    from .train.scoring import Chooser, LayerScores

Wanted = Part | type[Method] | Sequence[Part | type[Method]]
"""What may be given as `method`."""
EFFORT_S: Final = 5.0
SWEEP_EFFORT_S: Final = 1.0  # for each point
OBJECTS: Final = 100_000  # more than before, until cycles are looked for
OF_MEMORY: Final = (
    "page_to", "objective", "deadline", "effort", "ladder", "accumulate", "const", "prices",
)  # fmt: skip
OF_CLASSES: Final = {"spare_classes": "spare", "class_names": "names"}
MOVED: Final = (*OF_MEMORY, *OF_CLASSES, "threads", "page", "told")
"""Arguments of version 0.1 that are written another way now."""
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Task:
    """Checked arguments, and the model."""

    limit: Limit | None
    lowering: Lowering
    options: Options
    goal: Goal
    memory: Memory
    work: Work
    asked_bytes: int | None  # of RAM on this machine, or one like it
    data: Any = None

    def search(self, effort_s: float) -> Search:
        """By default with so much effort."""
        return Search(effort_s if self.memory.effort is None else float(self.memory.effort))


@contextlib.contextmanager
def prepared(
    model: Any,
    example: Any,
    *,
    loss: Any = "cross_entropy",
    target: Any = None,
    optimizer: Optimizer | None = None,
    method: Wanted = "full",
    batch: int | None = None,
    bn: str = "frozen",
    seed: int = 0,
    classes: Classes | None = None,
    device: str | Device | None = None,
    budget: int | str | None = None,
    memory: Memory | None = None,
    precision: str | Int8 = "f32",
    data: Any = None,
    kernels: str | None = None,
) -> Iterator[Task]:
    """The task that the arguments describe. Prices that are measured meanwhile are remembered at the end."""
    chip, memory = checked_device(device), checked_memory(memory, budget)
    ram_bytes, page_to = checked_budget(memory.budget), memory.page_to
    checked_page_to(page_to, help="memory=smidgen.Memory(page_to='page.bin')")
    checked_ladder(memory.ladder)
    effort_s = checked_effort(EFFORT_S if memory.effort is None else memory.effort)
    objective, measure = checked_objective(memory.objective), checked_prices(memory.prices, chip)
    import_model = _importer()
    work = Work(*checked_kernels("exact" if kernels is None and chip else kernels, 1))
    if chip is not None and not chip.is_bare:
        ram_bytes = min(chip.ram_bytes, chip.ram_bytes if ram_bytes is None else ram_bytes)
    limit = None if chip is None else Limit.of_device(chip)
    if ram_bytes is not None:
        limit = Limit.of_budget(ram_bytes, chip, ram_bytes - work.left(ram_bytes), work.threads)
    options = checked_options(
        model, optimizer=optimizer, method=method, batch=batch, bn=bn, seed=seed, classes=classes,
        accumulate=memory.accumulate, const=memory.const, replay=memory.replay, stream=memory.stream,
        whole_inputs=memory.whole_inputs, kernels=work.kernels, precision=precision,
    )  # fmt: skip
    check_where(options.replay, page_to)
    imported = import_model(model, example, loss=loss, target=target, bn=options.bn)
    lowering = Lowering(imported, device=chip, data=data, price=lambda entries: sized(entries, limit).need.ram_bytes)
    options = settled(lowering, options, limit, data)
    names = names_in(imported)
    check_scoring(options, names, memory)
    options = scoring_within(lowering, options, limit, names)
    lowering.choose(options)  # for what was asked: what is tried in order to fit learns the same
    fixed = contextlib.nullcontext(prices_of(chip))
    with metered(effort_s), measured(work.kernels, work.threads, page_to=page_to) if measure else fixed as prices:
        goal = Goal(
            objective, page=page_to is not None, prices=prices, split=memory.accumulate is not False,
            fill=memory.budget is not None or memory.deadline is not None,
        )  # fmt: skip
        usual = functools.partial(step_spent, goal=goal)
        deadline_s = checked_deadline(memory.deadline, lambda: usual(lowering.entries(options)).seconds)
        yield Task(limit, lowering, options, replace(goal, deadline_s=deadline_s), memory, work, ram_bytes, data)


def _asking(
    arguments: Callable[P, AbstractContextManager[Task]],
) -> Callable[[Callable[[Task], R]], Callable[P, R]]:
    """A function of a task as one of the arguments that describe it."""
    signature = inspect.signature(arguments)

    def around(run: Callable[[Task], R]) -> Callable[P, R]:
        @functools.wraps(run)
        def call(*args: P.args, **given: P.kwargs) -> R:
            if old := [name for name in given if name in MOVED]:
                verb = "is" if len(old) == 1 else "are"
                what = f"{', '.join(f'{name}=' for name in old)} {verb} written another way since 0.2"
                raise BadOption(what, help=_written_now(given))
            try:
                signature.bind(*args, **given)
            except TypeError as error:
                raise TypeError(f"{run.__name__}() {error}") from None
            with _few_collections(), arguments(*args, **given) as task:
                return run(task)

        call.__signature__ = signature.replace(return_annotation=run.__annotations__["return"])  # type: ignore[attr-defined]
        return call

    return around


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Compiling makes many objects and hardly any cycles: as often as by default, looking for those takes a tenth of
    the time and more."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], OBJECTS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _written_now(given: Mapping[str, Any]) -> str:
    """All old spellings among these arguments, as they are written now: what belongs to one type, as one of it."""
    memory = {name: given[name] for name in OF_MEMORY if name in given}
    if given.get("page"):
        memory.setdefault("page_to", "page.bin")
    classes = {new: given[old] for old, new in OF_CLASSES.items() if old in given}
    found = [
        f"{name}=smidgen.{kind}({', '.join(f'{field}={value!r}' for field, value in fields.items())})"
        for name, kind, fields in (("memory", "Memory", memory), ("classes", "Classes", classes))
        if fields
    ]
    if "threads" in given:
        kernels = given.get("kernels") or "fast"
        found.append(f"kernels='{kernels}'" if given["threads"] == 1 else f"kernels='fast:{given['threads']}'")
    gone = [] if given.get("page", True) else [f"page={given['page']!r}"]
    gone += ["told= (`smidgen plan` shows progress)"] if "told" in given else []
    return "; ".join(filter(None, [", ".join(found), f"leave out {', '.join(gone)}" if gone else ""]))


@_asking(prepared)
def compile(task: Task) -> Job:
    """A training program for `model`, with every byte of its memory planned and proven.

    `example` is one input or a tuple of them, batch dimension first; `batch` the most samples of one step (default: the
    example's). `optimizer` is SGD(lr=0.01, momentum=0.9) unless it is given. `method` is what learns: a name of
    `smidgen methods`, names of parameters, `smidgen.Update`s, or a list of them; `data`, samples or (samples, labels),
    is for methods that look at it. `device`, a name of `smidgen devices`, makes its RAM and flash hard limits (and
    takes int8 constants if only that fits). `budget`, in bytes or as "256KB", is a hard limit of RAM; `memory`, a
    `smidgen.Memory`, says more about how to fit. `classes`, a `smidgen.Classes`, names classes and keeps room for new
    ones. `kernels` are those of `smidgen.load`: "exact", "fast", or "fast:2" on two threads; the work memory of fast
    ones counts.
    """
    memory, goal, work = task.memory, task.goal, task.work
    check_step(task.options.replay, task.options.batch or task.lowering.imported.batch)
    rungs = checked_ladder(memory.ladder)
    limits = {entry_at("train", number): count for number, count in enumerate(rungs, 1)}
    if task.asked_bytes is not None:
        limits["train"] = task.asked_bytes
    asked = Asked(limits, work) if limits else None
    search = task.search(EFFORT_S)
    faster_split = work.kernels == "fast" and memory.accumulate is None
    if faster_split and (task.limit is None or task.limit.device is None):
        goal = replace(goal, cached_threads=work.threads)
    if rungs and asked is not None:
        whole = replace(goal, cached_threads=0, fill=False)
        made = encode_ladder(rungs, work, task.limit, task.lowering, task.options, whole, search, asked)
    elif task.limit is not None:
        made = best_for(task.limit, task.lowering, task.options, goal, search).program(asked)
    else:
        entries = in_time(task.lowering, task.options, goal)
        entries, known = for_caches(task.lowering, task.options, entries, goal)
        made = encode(entries, sized=known)
    page_to = memory.page_to if made.page_bytes else None
    choose = chooser(task, goal, asked) if "score" in made.entries else None
    job = Job(made, kernels=work.kernels, threads=work.threads, page_to=page_to, choose=choose)
    if choose is not None and task.data is not None:
        job.select(*checked_data(task.data))
    return job


def chooser(task: Task, goal: Goal, asked: Asked | None) -> Chooser:
    """What makes a program of scores, for `job.select`."""
    selectors = [Selector(task.lowering, task.options, task.limit, goal, names_in(task.lowering.imported))]

    def choose(scores: list[LayerScores], learned: Mapping[str, Array]) -> Program:
        last = selectors[0]
        imported = last.lowering.imported.with_values(learned)
        if imported is not last.lowering.imported:
            selectors[0] = replace(last, lowering=last.lowering.of(imported))
        return selectors[0].program(scores, asked)

    return choose


def names_in(imported: Imported) -> list[str]:
    return [name for p in imported.parameters for name in (p.name, *p.aliases)]


def check_scoring(options: Options, names: Sequence[str], memory: Memory) -> None:
    """What learns is chosen later: what depends on that is not known when the program is made."""
    if tiny_part(options, names) is None:
        return
    late = {
        "Memory(replay=…)": memory.replay, "Memory(ladder=…)": memory.ladder, "Memory(page_to=…)": memory.page_to,
        "Classes(spare=…)": options.spare_classes,
    }  # fmt: skip
    for name, given in late.items():
        if given:
            raise BadOption(f"tinytrain does not go with {name}", help=f"leave out {name}, or choose another method")
    parts = [part for part in methods_of(options.method, names) if isinstance(part, Method)]
    if len(parts) > 1:
        others = " and ".join(str(part) for part in parts if not isinstance(part, TinyTrain))
        raise BadOption(f"tinytrain does not go with {others or 'another tinytrain'}", help='method="tinytrain"')


@_asking(prepared)
def search(task: Task) -> Found:
    """The scheme of sparse updates that gains most on your samples within the budget or the device: what each layer
    gains alone, and the best of them that fit together. `data` are samples and labels; a quarter of each class is to
    judge by. The other arguments are those of `compile`; `method` is not used.
    """
    return searched(task.lowering, task.options, task.limit, task.data)


def searched(
    lowering: Lowering, options: Options, limit: Limit | None, data: Any, told: Told = lambda done, total, what: None
) -> Found:
    """What the same search found before is known; an interrupted one goes on."""
    from .schemes import cache, found_scheme

    if limit is None:
        raise BadOption("a search for a scheme needs a limit of RAM", help="budget='256KB', or device='stm32f746'")
    checked = checked_data(data)
    key = cache.key_of(lowering, options, limit, checked)
    known = cache.known(key)
    goal = Goal(prices=prices_of(limit.device))
    found = found_scheme(lowering, options, limit, goal, checked, told=told, known=known,
                         keep=lambda: cache.keep(key, known))  # fmt: skip
    cache.keep(key, known)
    return found


def settled(lowering: Lowering, options: Options, limit: Limit | None, data: Any) -> Options:
    """With a scheme in place of each that is to be searched."""
    names = names_in(lowering.imported)
    found = methods_of(options.method, names)
    where = [i for i in open_parts(options.method, names) if isinstance(found[i], SparseUpdate)]
    if not where or data is None or limit is None:
        return options
    with terminal.Progress("searching what to learn") as bar:
        scheme = SparseUpdate(searched(lowering, options, limit, data, bar.show).scheme)
    parts = [options.method] if isinstance(options.method, str) else list(options.method)
    return replace(options, method=tuple(scheme if i in where else part for i, part in enumerate(parts)))


@_asking(prepared)
def sweep(task: Task) -> Sweep:
    """Budget against predicted time: the points of each technique alone and of all of them together.

    Budgets are chosen from the smallest that is found to fit to that of the plan without one; `budget` is one more.
    Below the smallest one `compile` refuses. Tensors may leave RAM if `memory` says where to. The arguments are those
    of `compile`.
    """
    return swept(task)


def swept(task: Task, told: Told = lambda done, total, what: None) -> Sweep:
    """`told(done, total, what)` is called before each budget."""
    for name in ("deadline", "ladder"):
        if getattr(task.memory, name):
            raise BadOption(f"a sweep does not go with {name}", help=f"leave out Memory({name}=…)")
    chip = None if task.limit is None else task.limit.device
    limit = None if chip is None else Limit.of_device(chip)
    asked = checked_budget(task.memory.budget)
    search = task.search(SWEEP_EFFORT_S)
    return sweep_all(
        task.lowering, task.options, limit, task.goal, search, task.work, [asked] if asked else [], told=told
    )


@_asking(prepared)
def max_batch(task: Task) -> Largest:
    """The most samples whose step, taken at once, fits the budget or the device, and how many a second that makes. The
    arguments are those of `compile`."""
    return largest(task)


def largest(task: Task, told: Told = lambda done, total, what: None) -> Largest:
    deadline = task.memory.deadline
    if task.limit is None:
        raise BadOption("max_batch needs a limit", help="budget='64MB' or device='stm32h743'")
    if task.memory.ladder:
        raise BadOption("max_batch does not go with ladder", help="leave out Memory(ladder=…)")
    if task.options.batch is not None:
        raise BadOption("max_batch does not go with batch", why="it finds the batch", help="leave out batch=")
    if isinstance(deadline, str) and "x" in deadline:
        raise BadOption(f"deadline={deadline!r} depends on the batch", help="memory=smidgen.Memory(deadline=0.5)")
    budget = checked_budget(task.memory.budget)
    search = task.search(EFFORT_S)
    return largest_batch(task.limit, task.lowering, task.options, task.goal, search, task.work, budget, told)


def compared(task: Task, told: Told = lambda done, total, what: None) -> ByMethod:
    """Every method within the task's limit; the one that it asks for is among them."""
    deadline = task.memory.deadline
    if task.memory.ladder:
        raise BadOption("a table of methods does not go with ladder", help="leave out Memory(ladder=…)")
    if isinstance(deadline, str) and "x" in deadline:
        raise BadOption(f"deadline={deadline!r} depends on the method", help="memory=smidgen.Memory(deadline=0.5)")
    search = task.search(SWEEP_EFFORT_S)
    return by_method(task.limit, task.lowering, task.options, task.goal, search, task.work, told)


def build(
    model: Any, example: Any, *, loss: Any = "cross_entropy", target: Any = None, data: Any = None, **options: Any
) -> Entries:  # fmt: skip
    """The graphs of all entry points, before anything is done to fit: for those who look at graphs."""
    import_model = _importer()
    checked = checked_options(model, **options)
    imported = import_model(model, example, loss=loss, target=target, bn=checked.bn)
    price = functools.partial(sized, limit=None)
    return Lowering(imported, data=data, price=lambda entries: price(entries).need.ram_bytes).entries(checked)


def _importer() -> Callable[..., Imported]:
    """Asked for first, so that a machine without torch says that and nothing else."""
    try:
        from .compiler.torch_import.capture import import_model  # torch is needed here and nowhere else
    except ModuleNotFoundError as error:
        raise MissingPart("compiling needs PyTorch", why=str(error), help="pip install 'smidgen[compile]'") from error
    return import_model


__all__ = ["build", "compile", "max_batch", "sweep"]
