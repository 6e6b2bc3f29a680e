"""smidgen: a program file that is loaded and trained with numpy alone, by fast kernels."""

from __future__ import annotations

from typing import Any

from .protocol import Array, Case, Options


def start(options: Options) -> str:
    import smidgen  # noqa: F401

    return ""  # asking for it would take longer than the import


class Run:
    def __init__(self, case: Case, options: Options) -> None:
        import smidgen

        path = case.folder / f"program_{options.threads}.smg"
        self.job = smidgen.load(path, kernels="fast", threads=options.threads, page_to=path.with_suffix(".pages"))
        self.x, self.y = case.data()

    @property
    def facts(self) -> dict[str, Any]:
        """Asked for at the end: reading a plan takes memory that training does not need."""
        return {"ram_bytes": self.job.plan.ram_bytes, "at_a_time": self.job.plan.batch}

    def step(self) -> float:
        return self.job.train_step(self.x, self.y)

    def forward(self) -> Array:
        return self.job.predict(self.x)


build = Run
