"""The pages behind error codes, as `smidgen explain E101` prints them: one Markdown file for each, in the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..errors import BadOption, all_errors, did_you_mean

FOLDER: Final = Path(__file__).parent / "explain"


def page(code: str) -> str:
    """The page of an error code, as Markdown; `e101` and `101` mean E101."""
    known = sorted(all_errors())
    name = code.strip().upper().removeprefix("ERROR[").rstrip(":]")
    name = f"E{name}" if name.isdecimal() else name
    if name not in known:
        raise BadOption(f"there is no error '{code}'", help=did_you_mean(name, known))
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


__all__ = ["page"]
