"""Tables of figures in README and docs come from docs/results: `python -m tools.fill_figures` writes them.

A page names a table of `result_tables.py` and holds its rows between two comments, each on a line of its own:

    <!-- table: step -->
    | network | batch | …
    <!-- end -->

A test fails when the rows there are not those of docs/results. No other text of a page is filled in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from smidgen import terminal
from tools.result_tables import TABLES, Figure, Table

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "docs" / "results"
SHIPPED: Final = ROOT / "src" / "smidgen" / "demo"  # results that the demo shows
CODE: Final = re.compile(r"^```.*?^```[ \t]*$|^    [^\n]*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)  # talks of markers
MARKED: Final = re.compile(r"^<!-- table: (\S+) -->\n(?:.*\n)*?<!-- end -->$", re.MULTILINE)
MARKER: Final = re.compile(r"<!--\s*/?\s*(?:table|end|figure)\b")
UNITS: Final = {"bytes": terminal.bytes_text, "count": terminal.count_text, "seconds": terminal.seconds_text}
OF_SEVERAL: Final[dict[str, Callable[[list[Any]], Any]]] = {"max": max, "min": min, "sum": sum, "len": len}


class NoFigure(Exception):
    """A page or a table names something that docs/results does not have."""


def filled(text: str, results: Path = RESULTS, tables: Mapping[str, Table] = TABLES) -> str:
    """`text` with every table as docs/results has it."""
    found = list(MARKED.finditer(text))
    if any(len(MARKER.findall(m[0])) != 2 for m in found) or 2 * len(found) != len(MARKER.findall(CODE.sub("", text))):
        raise NoFigure("a table is <!-- table: name -->, its rows and <!-- end -->, each on lines of its own")
    return MARKED.sub(lambda m: f"<!-- table: {m[1]} -->\n{written(m[1], results, tables)}<!-- end -->", text)


def written(name: str, results: Path = RESULTS, tables: Mapping[str, Table] = TABLES) -> str:
    """The rows of one table, as Markdown."""
    if name not in tables:
        raise NoFigure(f"there is no table '{name}'; result_tables.py has {', '.join(tables)}")
    head, *rows = [[figure_text(c, results) if isinstance(c, Figure) else c for c in row] for row in tables[name]]
    if any(len(row) != len(head) for row in rows):
        raise NoFigure(f"table '{name}': rows of {sorted({len(row) for row in rows})} cells below {len(head)} titles")
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def figure_text(figure: Figure, results: Path = RESULTS) -> str:
    file = SHIPPED / figure.file if (SHIPPED / figure.file).is_file() else results / figure.file
    if not file.is_file():
        raise NoFigure(f"there is no {file.name} in docs/results")
    place = f"{figure.file}, {figure.path}"
    value = _value(json.loads(file.read_text(encoding="utf-8")), figure.path, place)
    try:
        return UNITS[figure.how](value) if figure.how in UNITS else format(value, figure.how)
    except (TypeError, ValueError) as error:
        raise NoFigure(f"{place}: {value!r} cannot be written as '{figure.how}': {error}") from None


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
    """Every page that may hold a table."""
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
