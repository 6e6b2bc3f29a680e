"""PyTorch: eager in its usual layout, eager in channels_last, and torch.compile. The network is the original module."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .protocol import Array, Case, Options


def start(options: Options) -> str:
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.abspath("build/step/cache/inductor"))
    import torch

    torch.set_num_threads(options.threads)
    # The optimizer imports half of the compiler when the first one is made: that is part of the import.
    weight = torch.zeros(1, requires_grad=True)
    torch.optim.SGD([weight], 0.1, momentum=0.9)
    return torch.__version__


def prepare(case: Case, options: Options) -> None:
    """Fills the compiler's cache, so that a cold start finds it warm."""
    if options.variant == "compile":
        start(options)
        run = Run(case, options)
        run.step()
        run.step()


class Run:
    def __init__(self, case: Case, options: Options) -> None:
        import torch
        import torch.nn.functional as F

        from benchmarks.nets.workloads import built, find

        self.model = built(find(case.net))  # batch-norm statistics are frozen in evaluation mode
        self.model.load_state_dict({k: torch.from_numpy(v) for k, v in case.weights().items()}, strict=False)
        learns = set(case.learns)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in learns)
        x, y = case.data()
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)
        if options.variant != "" and x.ndim == 4:  # the compiler, too, is faster with it
            self.model = self.model.to(memory_format=torch.channels_last)
            self.x = self.x.to(memory_format=torch.channels_last)
        chosen = [p for p in self.model.parameters() if p.requires_grad]
        # Of the three ways that it has on a CPU, the fused one is the fastest.
        self.optimizer = torch.optim.SGD(chosen, lr=case.lr, momentum=case.momentum, fused=True)

        def loss_of(x: Any, y: Any) -> Any:
            return F.cross_entropy(self.model(x), y)

        self.loss_of = torch.compile(loss_of) if options.variant == "compile" else loss_of

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss_of(self.x, self.y)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def forward(self) -> Array:
        import torch

        with torch.no_grad():
            return np.ascontiguousarray(self.model(self.x).numpy())


build = Run
