"""Figures in README and docs come from docs/results: `python tools/fill_figures.py` writes them into the pages.

A figure stands between two comments, which readers do not see; a test fails when the text there is another:

    <!-- figure: parity.json rows[net=mcunet,batch=8,method=full].ram_bytes bytes -->9.21 MB<!-- /figure -->

file of docs/results, or of the demo, then where: keys and positions with dots between, `[key=value,…]` for the items of
a list that have these values, `[*]` for all; max, min, sum or len of (…) where there are several. Then how to write it:
`bytes`, `count` and `seconds` as smidgen.terminal does, anything else is a Python format, as .2f or ,d.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from smidgen import terminal

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "docs" / "results"
SHIPPED: Final = ROOT / "src" / "smidgen" / "demo"  # results that the demo shows
CODE: Final = r"`[^`\n]*`"  # where a marker is only talked about
FIGURE: Final = re.compile(CODE + r"|(<!-- figure: *(\S+) +(\S+) +(\S+) *-->).*?(<!-- /figure -->)")
UNITS: Final = {"bytes": terminal.bytes_text, "count": terminal.count_text, "seconds": terminal.seconds_text}
OF_SEVERAL: Final[dict[str, Callable[[list[Any]], Any]]] = {"max": max, "min": min, "sum": sum, "len": len}


class NoFigure(Exception):
    """A marker names something that docs/results does not have."""


def filled(text: str, results: Path = RESULTS) -> str:
    """`text` with every figure as docs/results has it."""
    found = [m for m in FIGURE.finditer(text) if m[1]]
    if 2 * len(found) != len(re.findall(r"<!--\s*/?\s*figure", re.sub(CODE, "", text))):
        raise NoFigure("a figure is <!-- figure: file.json path format -->…<!-- /figure -->, on one line")
    return FIGURE.sub(lambda m: m[1] + _written(_file(m[2], results), m[3], m[4]) + m[5] if m[1] else m[0], text)


def _file(name: str, results: Path) -> Path:
    return SHIPPED / name if (SHIPPED / name).is_file() else results / name


def _written(file: Path, path: str, how: str) -> str:
    if not file.is_file():
        raise NoFigure(f"there is no {file.name} in docs/results")
    place = f"{file.name}, {path}"
    value = _value(json.loads(file.read_text(encoding="utf-8")), path, place)
    try:
        return UNITS[how](value) if how in UNITS else format(value, how)
    except (TypeError, ValueError) as error:
        raise NoFigure(f"{place}: {value!r} cannot be written as '{how}': {error}") from None


def _value(data: Any, path: str, place: str) -> Any:
    called = re.fullmatch(r"(\w+)\((.*)\)", path)
    found = [data]
    for step in re.findall(r"\[[^\]]*\]|[^.\[\]]+", called[2] if called else path):
        found = [item for value in found for item in _step(value, step)]
    if called and len(found) == 1 and isinstance(found[0], list):
        found = found[0]  # len(rows) means the rows, not that there is one list of them
    if called and called[1] in OF_SEVERAL and found:
        return OF_SEVERAL[called[1]](found)
    if called or len(found) != 1:
        raise NoFigure(f"{place}: {len(found)} values; one is wanted, or max, min, sum or len of them")
    return found[0]


def _step(value: Any, step: str) -> list[Any]:
    """What is reached from `value` by one step of a path: nothing, one thing, or the chosen items of a list."""
    if step.startswith("["):
        wanted = [pair.partition("=") for pair in step[1:-1].split(",") if step != "[*]"]
        items = [i for i in value if isinstance(i, dict) or not wanted] if isinstance(value, list) else []
        return [item for item in items if all(str(item.get(k)) == v for k, _, v in wanted)]
    if isinstance(value, list):
        return value[int(step) : int(step) + 1] if step.isdecimal() else []
    return [value[step]] if isinstance(value, dict) and step in value else []


def pages() -> Iterator[Path]:
    """Every page that may hold a figure."""
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


def main() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
