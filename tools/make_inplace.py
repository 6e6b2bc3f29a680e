"""Writes src/smidgen/runtime/kernels/inplace.txt from the op records: which inputs a kernel's output may overwrite.

python -m tools.make_inplace

The runtime is built where pip has not installed numpy yet, so it cannot ask the records itself. `make setup` runs this,
and a test compares.
"""

from __future__ import annotations

import os

from smidgen.ops import all_ops
from smidgen.runtime.build import INPLACE


def masks() -> dict[str, int]:
    """Kernel → a bit for each of its inputs whose memory output 0 may take."""
    found: dict[str, int] = {}
    for op in all_ops().values():
        for source in set(op.inplace) - set(op.shares.values()):
            # Inputs that an output shares are not operands of their own.
            place = source - sum(shared < source for shared in op.shares.values())
            for kernel in op.kernels.values():
                found[kernel] = found.get(kernel, 0) | 1 << place
    return found


def text() -> str:
    return "".join(f"{name} {mask}\n" for name, mask in sorted(masks().items()))


def main() -> None:
    """An up-to-date file keeps its time, so that nothing is built again; others are replaced whole."""
    if INPLACE.exists() and INPLACE.read_text() == text():
        return
    partial = INPLACE.with_name(f"{INPLACE.name}.{os.getpid()}.part")
    partial.write_text(text())
    os.replace(partial, INPLACE)


if __name__ == "__main__":
    main()
