"""Double precision for a reference in torch: of a model that is meant for single precision, or all the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

RMS_NORMS = (nn.functional.rms_norm, torch.rms_norm)


class OfSingle(TorchFunctionMode):  # type: ignore[misc]  # torch has no types there
    """A model in float64 has the constants of float32 where torch takes them by the type of its input: the `eps` that
    an RMSNorm is not given."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in RMS_NORMS:
            kwargs |= dict(zip(("input", "normalized_shape", "weight", "eps"), args, strict=False))
            args = ()
            if kwargs.get("eps") is None:
                kwargs["eps"] = torch.finfo(torch.float32).eps
        return func(*args, **kwargs)


class InDouble(OfSingle):
    """A model in float64 computes in it all the way: where it asks for float32, too, and where torch takes that for
    itself (the derivative of its hardsigmoid has a sixth in single precision)."""

    def __enter__(self) -> Any:
        self._usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(self._usual)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(_double_type(a) for a in args)
        kwargs = {name: _double_type(value) for name, value in (kwargs or {}).items()}
        if func in (nn.functional.hardsigmoid, torch._C._nn.hardsigmoid):
            return ((args[0] if args else kwargs["input"]) + 3).clamp(0, 6) / 6
        func = torch.Tensor.double if func is torch.Tensor.float else func
        return super().__torch_function__(func, types, args, kwargs)


def _double_type(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


__all__ = ["InDouble", "OfSingle"]
