"""What was learned, back into the PyTorch module that the program came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..errors import BadData, BadOption, MissingPart, did_you_mean
from ..ir import Array


def load_into(
    model: Any, learned: Mapping[str, Array], statistics: Sequence[str], step: int, counted: dict[int, tuple[int, int]],
    added: Collection[str] = (),
) -> None:  # fmt: skip
    """`statistics` are names of running ones that the program updates; `counted`: id of a batch counter → what was
    written into it last, at which step; `added`: names of what a method added to the network."""
    try:
        import torch
    except ModuleNotFoundError as error:
        help = "pip install 'smidgen[compile]', or use job.state_dict()"
        raise MissingPart("load_into needs PyTorch", why=str(error), help=help) from error
    if not isinstance(model, torch.nn.Module):
        raise BadOption(f"load_into takes a torch.nn.Module, not a {type(model).__name__}", help="pass the module")
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    for name, value in learned.items():
        if name not in own and name in added:
            raise BadData(f"'{name}' is no part of the model", why="the method added it, and it cannot be merged",
                          help="job.save keeps all that was learned; job.state_dict() has it by name")  # fmt: skip
        if name not in own:
            raise BadData(f"the model has no '{name}'", help=did_you_mean(name, own))
        if tuple(own[name].shape) != value.shape:
            raise BadData(f"'{name}' has shape {tuple(own[name].shape)} in the model, {value.shape} in the program")
    with torch.no_grad():
        for name, value in learned.items():
            own[name].copy_(torch.from_numpy(value))
        counters = {id(own[k]): own[k] for k in map(_counter_of, statistics) if k in own}
        for counter in counters.values():
            _count(counter, step, counted)


def _count(counter: Any, step: int, counted: dict[int, tuple[int, int]]) -> None:
    """Add the steps that this counter has not seen."""
    written, seen = counted.get(id(counter), (-1, 0))
    old = int(counter)
    counter.fill_(old + step - (seen if old == written else 0))
    counted[id(counter)] = int(counter), step


def _counter_of(statistic: str) -> str:
    """The name that torch gives the counter beside a running statistic."""
    place, dot, _ = statistic.rpartition(".")
    return f"{place}{dot}num_batches_tracked"


__all__ = ["load_into"]
