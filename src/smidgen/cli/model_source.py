"""Models and inputs by name: `file.py:build`, `package.module:attr`, `net.pt2`, `8x3x32x32`, `8x16:int100`,
`8x3x32x32:bytes/255`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..errors import BadModelSource, SmidgenError, did_you_mean
from ..ir import Array
from ..program.buffer import MAX_RANK

if TYPE_CHECKING:
    from ..compiler.inputs import Bytes

LARGEST_BYTES: Final = 2**27
"""Of one example; a proof keeps twenty of them."""


def load_model(source: str) -> Any:
    """The nn.Module that `source` names: a module, a function without arguments that returns one, or a .pt2 file."""
    from torch import nn

    if source.endswith(".pt2"):
        return _exported(source).module()
    found = _named(source, "a model", "build")
    model = _called(found, source) if callable(found) and not isinstance(found, nn.Module) else found
    if not isinstance(model, nn.Module):
        raise BadModelSource(f"{source} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def load_function(source: str) -> Any:
    """The function that `source` names, as it is."""
    found = _named(source, "a function", "loss")
    if not callable(found):
        raise BadModelSource(f"{source} is a {type(found).__name__}, not a function")
    return found


def load_example(source: str) -> tuple[Any, ...]:
    """The inputs that a .pt2 file was exported with; other sources have none."""
    help = "--input 8x3x32x32, batch first; once for each input of the model"
    if not source.endswith(".pt2"):
        raise BadModelSource(f"{source} comes without an example input", help=help)
    kept = _exported(source).example_inputs
    if not kept or kept[1] or not kept[0]:
        raise BadModelSource(f"{source} was saved without plain example inputs", help=help)
    return tuple(kept[0])


@functools.cache
def _exported(path: str) -> Any:
    """What torch.export.save wrote."""
    import torch

    if not Path(path).is_file():
        raise BadModelSource(f"no file {path}")
    try:
        return torch.export.load(path)
    except Exception as error:  # torch raises many kinds for a damaged archive
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise BadModelSource(f"{path} is not a file of torch.export.save", why=why) from error


def _named(source: str, what: str, usual: str) -> Any:
    place, _, name = source.rpartition(":")
    if not place or not name:
        raise BadModelSource(f"'{source}' does not name {what}", help=f"file.py:{usual} or package.module:{usual}")
    module = _module(place)
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise BadModelSource(f"{place} has no '{name}'", help=did_you_mean(name, public))
    return getattr(module, name)


def _called(build: Any, source: str) -> Any:
    help = "name a function without arguments that returns the model"
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise BadModelSource(f"{source} needs arguments", why=str(error), help=help) from None
    except ValueError:  # written in C: no signature to look at
        pass
    try:
        return build()
    except SmidgenError:
        raise
    except (Exception, SystemExit) as error:
        raise _users_error(f"{source} fails", error) from error


def _users_error(what: str, error: BaseException) -> BadModelSource:
    """What the user's code raised, with the innermost of the user's lines."""
    from ..compiler.torch_import.aten.source import last_of, place

    at = last_of((f.filename, f.lineno or 0, f.line or "") for f in traceback.extract_tb(error.__traceback__))
    said = str(error).partition("\n")[0]
    if isinstance(error, SyntaxError) and error.filename:
        at, said = place(error.filename, error.lineno or 0, error.text or ""), error.msg
    return BadModelSource(what, at=at, why=f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.append(str(Path.cwd()))  # an installed command does not look there by itself
        try:
            return importlib.import_module(place)
        except ImportError as error:
            help = "or give a file: path/to/nets.py:build"
            raise BadModelSource(f"cannot import {place}", why=str(error), help=help) from None
        except (Exception, SystemExit) as error:
            raise _users_error(f"cannot import {place}", error) from error
    path = Path(place)
    if not path.is_file():
        raise BadModelSource(f"no file {place}")
    # A name of its own: a file may be called random.py.
    spec = importlib.util.spec_from_file_location(f"model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadModelSource(f"cannot read {place} as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise _users_error(f"cannot run {place}", error) from error
    finally:
        sys.path.append(sys.path.pop(0))  # its functions may import later; what is installed comes first
    return module


_KIND = re.compile(r"int(?P<top>\d+)|bytes((?P<by>[*/])(?P<scale>NUMBER))?(?P<offset>[+-]NUMBER)?".replace(
    "NUMBER", r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"))  # fmt: skip


def example_of(text: str, rng: np.random.Generator) -> Array | Bytes:
    """A random array for a description like 8x3x32x32, 8x16:int100 or 8x3x32x32:bytes/127.5-1."""
    dims, _, described = text.lower().partition(":")
    kind = _KIND.fullmatch(described)
    try:
        shape = tuple(int(d) for d in dims.split("x"))
    except ValueError:
        shape = ()
    top = int(kind["top"] or 256) if kind else 0
    if not shape or min(shape) < 1 or (":" in text and not top):
        raise BadModelSource(
            f"'{text}' is not an input",
            help="8x3x32x32 (batch first), 8x16:int100 for integers, 8x3x32x32:bytes/255 for bytes",
        )
    item = (1 if kind["top"] is None else 8) if kind else 4
    if len(shape) > MAX_RANK or math.prod(shape) * item > LARGEST_BYTES or top > 2**31 - 1:
        raise BadModelSource(
            f"'{text}' is too large an input",
            why=f"at most {MAX_RANK} axes, {LARGEST_BYTES // item:,} numbers, and integers below 2**31",
            help="a smaller batch proves the same: 8x3x32x32",
        )
    if kind is None:
        return rng.standard_normal(shape).astype(np.float32)
    values = rng.integers(0, top, shape)
    if kind["top"]:
        return values.astype(np.int64)
    from ..compiler.inputs import Bytes

    scale = float(kind["scale"] or 1)
    scale = 1 / scale if kind["by"] == "/" and scale else scale
    return Bytes(values.astype(np.uint8), scale, float(kind["offset"] or 0))
