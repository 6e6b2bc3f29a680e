"""Fills the tables of docs/reference/python.md: names, types, defaults and signatures from the code, what they mean
from python_api.toml. The sentences around them are the page's own.

A place is marked `<!-- arguments: compile -->` or `<!-- members: Job -->`, up to `<!-- so far: … -->`. Every public
name of smidgen, and every argument, field and member of what is marked, is there, and nothing else: or LookupError.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import smidgen
from smidgen import ops
from smidgen.compiler.fit.max_batch import Largest
from smidgen.compiler.fit.sweep import Point, Sweep
from smidgen.compiler.optimizers import DEFAULT
from smidgen.program.plan import Decision
from smidgen.program.rungs import Rung
from smidgen.schemes.find import Found, Row
from smidgen.train.history import Epoch
from smidgen.train.replay import ReplayBuffer

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "python.md"
MEANINGS: Final = Path(__file__).with_name("python_api.toml")
MARKED: Final = re.compile(
    r"(?P<open>^<!-- (?P<kind>\w+): (?P<name>[\w.]+) -->\n).*?(?P<close>^<!-- so far: (?P=name) -->$)",
    re.MULTILINE | re.DOTALL,
)
MOST_SHOWN: Final = 5  # arguments of a call that is written out; more are in a table
RETURNED: Final = {
    kind.__name__: kind for kind in (Decision, Epoch, Found, Largest, Point, ReplayBuffer, Row, Rung, Sweep)
}
"""Not made by users, but returned to them."""
SAME: Final = {"compile": ("search", "sweep", "max_batch")}
PACKAGES: Final = {"fleet", "methods"}
"""Functions with the arguments of another one."""
SPELLED: Final = {
    "str | os.PathLike[str]": "path", "Sequence[str]": "list of str", "Sequence[int | str]": "list of int or str",
    "Callable[[float], float]": "function", "Callable[[], float]": "function", "Callable[[Epoch], object]": "function",
}  # fmt: skip
"""How the code writes a type → how the page does."""


def python_page() -> str:
    return filled(PAGE.read_text(encoding="utf-8"), tomllib.loads(MEANINGS.read_text(encoding="utf-8")))


def filled(text: str, meanings: Mapping[str, Mapping[str, str]]) -> str:
    """`text` with all marked places made anew."""
    seen = [(found["kind"], found["name"]) for found in MARKED.finditer(text)]
    _check_all("marked places", [name for _, name in seen], _expected())
    tables = {name for kind, name in seen if kind in ("arguments", "fields")}
    _check_all("sections of python_api.toml", [name for name in meanings if name != "types"], tables)

    def made(found: re.Match[str]) -> str:
        name = found["name"]
        return found["open"] + MAKERS[found["kind"]](name, _public(name), meanings) + found["close"]

    return MARKED.sub(made, text)


def _expected() -> list[str]:
    """What has to be marked: every public name, what is returned to users, and the method with arguments of its own."""
    same = {other for others in SAME.values() for other in others}
    return [*(set(smidgen.__all__) - same - PACKAGES), *RETURNED, "Job.fit"]


def _public(name: str) -> Any:
    owner, _, member = name.partition(".")
    found = RETURNED.get(owner) or getattr(smidgen, owner)
    return getattr(found, member) if member else found


def _check_all(what: str, there: Sequence[str], expected: Sequence[str] | set[str]) -> None:
    missing, extra = sorted(set(expected) - set(there)), sorted(set(there) - set(expected))
    if missing or extra or len(set(there)) != len(there):
        raise LookupError(f"{what}: missing {missing}, not in the code {extra}, twice {len(there) - len(set(there))}")


# -- arguments and fields ------------------------------------------------------------------------------------------


def _arguments(name: str, of: Any, meanings: Mapping[str, Mapping[str, str]]) -> str:
    """A signature, and a row for each argument."""
    parameters = [p for p in inspect.signature(of).parameters.values() if p.name != "self"]
    means = meanings[name]
    _check_all(f"arguments of {name}", list(means), [p.name for p in parameters])
    rows = [
        (f"`{p.name}`", _type(p.annotation, p.name, meanings["types"]), _default(p), _meaning(means[p.name]))
        for p in parameters
    ]
    calls = [(name, of), *((other, _public(other)) for other in SAME.get(name, ()))]
    if any(inspect.signature(other).parameters != inspect.signature(of).parameters for _, other in calls):
        raise LookupError(f"not all of {[other for other, _ in calls]} have the same arguments")
    called = ", ".join(f"`{_call(_path(other), function)}`" for other, function in calls)
    return f"{called}\n\n{_table(('argument', 'type', 'default', 'meaning'), rows)}"


def _fields(name: str, of: Any, meanings: Mapping[str, Mapping[str, str]]) -> str:
    """A row for each field; properties and methods below it."""
    fields, means = dataclasses.fields(of), meanings[name]
    _check_all(f"fields of {name}", list(means), [f.name for f in fields])
    rows = [(f"`{f.name}`", _type(f.type, f.name, {}), _meaning(means[f.name])) for f in fields]
    return _table(("field", "type", "meaning"), rows) + _more(of, {f.name for f in fields})


def _members(name: str, of: Any, meanings: Mapping[str, Mapping[str, str]]) -> str:
    """Every public attribute and method, with the first sentence of its docstring."""
    return _more(of, set())


def _more(of: type, known: set[str]) -> str:
    rows = []
    for name in (n for n in _public_names(of) if n not in known):
        member = inspect.getattr_static(of, name)
        call = name if not callable(getattr(of, name)) else _call(name, getattr(of, name))
        rows.append((f"`{call}`", _first_sentence(member)))
    return "\n" + _table(("member", "meaning"), rows) if rows else ""


def _public_names(of: type) -> list[str]:
    own = [name for kind in of.__mro__ for name in vars(kind) if kind.__module__.startswith("smidgen")]
    return [name for name in dict.fromkeys(own) if not name.startswith("_")]


def _function(name: str, of: Any, meanings: Mapping[str, Mapping[str, str]]) -> str:
    return f"`{_call(_path(name), of)}`: {_first_sentence(of)}\n"


MAKERS: Final[dict[str, Callable[[str, Any, Mapping[str, Mapping[str, str]]], str]]] = {
    "arguments": _arguments, "fields": _fields, "members": _members, "function": _function,
}  # fmt: skip


# -- spelling ------------------------------------------------------------------------------------------------------


def _path(name: str) -> str:
    return name.replace("Job.", "job.") if name.startswith("Job.") else f"smidgen.{name}"


def _call(name: str, of: Any) -> str:
    """As it is called: names and defaults, without types; many arguments by name only are left to a table."""
    parts: list[str] = []
    for p in inspect.signature(of).parameters.values():
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(p.name if p.default is p.empty else f"{p.name}={_value(p.default)}")
    if len(parts) > MOST_SHOWN and "*" in parts:
        parts = [*parts[: parts.index("*") + 1], "…"]
    return f"{name}({', '.join(parts)})"


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is parameter.empty else f"`{_value(parameter.default)}`"


def _value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value!r}"


def _type(annotation: Any, name: str, types: Mapping[str, str]) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if name in types and (text in ("Any", "Wanted") or "Optimizer" in text):
        return types[name]
    for code, spelled in SPELLED.items():
        text = text.replace(code, spelled)
    return ", ".join(part.strip() for part in re.split(r"\|(?![^\[]*\])", text.replace(" | None", "")))


def _meaning(text: str) -> str:
    texts = {"@LOSSES@": ", ".join(f"`{name}`" for name in ops.losses()), "@OPTIMIZER@": _given(DEFAULT)}
    for mark, value in texts.items():
        text = text.replace(mark, value)
    return text


def _given(optimizer: Any) -> str:
    """As its constructor is called, without what is its default anyway."""
    told = [f for f in dataclasses.fields(optimizer) if getattr(optimizer, f.name) != f.default]
    return f"{type(optimizer).__name__}({', '.join(f'{f.name}={getattr(optimizer, f.name)!r}' for f in told)})"


def _first_sentence(of: Any) -> str:
    doc = " ".join((inspect.getdoc(of) or "").split("\n\n")[0].split())
    if not doc:
        raise LookupError(f"{of} has no docstring, and is public")
    return re.split(r"(?<=[.])\s+(?=[A-Z`])", doc)[0].rstrip(".").replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *rows))


__all__ = ["filled", "python_page"]
