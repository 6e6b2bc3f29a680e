"""smidgen: a program file that is loaded and trained with numpy alone. Which kernels it has depends on the version."""

from __future__ import annotations

from typing import Any

from .protocol import Array, Case, Options


def start(options: Options) -> str:
    import smidgen  # noqa: F401

    return ""  # asking for it would take longer than the import


def kernels(threads: int) -> dict[str, Any]:
    """What `smidgen.load` is asked for, as far as this version of it knows the words."""
    import inspect

    import smidgen

    known = inspect.signature(smidgen.load).parameters
    return {k: v for k, v in {"kernels": "fast", "threads": threads}.items() if k in known}


class Run:
    def __init__(self, case: Case, options: Options) -> None:
        import smidgen

        asked = kernels(options.threads)
        self.job = smidgen.load(case.folder / "program.smg", **asked)
        self.x, self.y = case.data()
        self.asked = asked

    @property
    def facts(self) -> dict[str, Any]:
        """Asked for at the end: reading a plan takes memory that training does not need."""
        return {
            "kernels": self.asked.get("kernels", "exact"),
            "threads": self.asked.get("threads", 1),
            "ram_bytes": self.job.plan.ram_bytes,
        }

    def step(self) -> float:
        return self.job.train_step(self.x, self.y)

    def forward(self) -> Array:
        return self.job.predict(self.x)


build = Run
