"""The list of models: drawn by a seed from what the packages offer, one of each family, before any of them was tried.

A model is eligible if PyTorch runs it forward and backward and it is small enough; whether smidgen can train it is not
asked. The list is a file, so that a model that fails stays in it.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SEED = 17
MEMORY_BYTES = 12 << 30  # for a model whose sizes nobody knows before it is there
Drawn = dict[str, Any]
Eligible = Callable[[str], dict[str, Any] | None]


def draw(
    families: Mapping[str, Sequence[str]], most: int, seed: str, eligible: Eligible, tries: int = 12
) -> list[Drawn]:
    """At most one of each family, of at most so many families: families in an order that the seed gives, of each the
    first eligible model in an order that the seed and its name give. What a family has does not change the others."""
    order = sorted(families)
    random.Random(seed).shuffle(order)
    found: list[Drawn] = []
    for family in order:
        if len(found) == most:
            break
        names = sorted(families[family])
        random.Random(f"{seed}/{family}").shuffle(names)
        for name in names[:tries]:
            facts = eligible(name)
            if facts is not None:
                found.append({"family": family, "name": name, "facts": facts})
                break
    return sorted(found, key=lambda row: row["family"])


def drawn(package: str, told: Callable[[str], None] = lambda text: None) -> list[Drawn]:
    """The models of one package."""
    from . import from_others, from_timm, from_transformers

    def asked(ask: Callable[..., dict[str, Any] | None], *given: str) -> dict[str, Any] | None:
        try:
            facts = ask(*given)
        except Exception:  # not even its configuration can be made
            facts = None
        told(f"{' '.join(given)}: {'eligible' if facts else 'not'}")
        return facts

    if package == "timm":
        rows = draw(from_timm.families(), 1000, f"{SEED}/timm", lambda n: asked(from_timm.eligible, n), tries=1000)
    elif package == "transformers":
        rows = []
        for task, kinds in from_transformers.families().items():
            rows += draw(kinds, from_transformers.QUOTAS[task], f"{SEED}/transformers/{task}",
                         lambda n, task=task: asked(from_transformers.eligible, n, task))  # type: ignore[misc]  # fmt: skip
    else:
        rows = draw(from_others.families(package), from_others.QUOTAS[package], f"{SEED}/{package}",
                    lambda n: asked(from_others.eligible, package, n))  # fmt: skip
    return [{"package": package, **row} for row in rows]


def make(row: Drawn) -> Any:
    """The model of a row of the list."""
    from . import from_others, from_timm, from_transformers

    if row["package"] == "timm":
        return from_timm.make(row["name"], row["facts"])
    if row["package"] == "transformers":
        return from_transformers.make(row["name"], row["facts"])
    return from_others.make(row["package"], row["name"], row["facts"])


def main() -> int:
    """`python -m benchmarks.zoo.draw PACKAGE`: its models as one line of JSON."""
    import torch

    from . import absent

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    absent.stand_in()
    rows = drawn(sys.argv[1], lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(rows))
    return 0


__all__ = ["draw", "drawn", "make"]

if __name__ == "__main__":
    sys.exit(main())
