"""Every error a user can meet: one exception tree, one code each, one message shape.

A message says what went wrong, where, why, and what to type next; `help` lists only things that work.
"""

from __future__ import annotations

from collections.abc import Iterable


class SmidgenError(Exception):
    """Base of all errors; `code` is never reused, `exit_status` is what the command line returns."""

    code = "E900"
    exit_status = 1

    def __init__(self, what: str, *, at: str = "", why: str = "", help: str = "") -> None:
        self.what, self.at, self.why, self.help = what, at, why, help
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {self.what}"]
        lines += [f"  at   {self.at}"] if self.at else []
        lines += [f"  why  {self.why}"] if self.why else []
        lines += [f"  help: {self.help}"] if self.help else []
        return "\n".join(lines)


class UnsupportedOp(SmidgenError):
    """The model uses an operator that smidgen does not have."""

    code = "E101"


class ExportFailed(SmidgenError):
    """torch.export could not capture the model, or not with a free batch size."""

    code = "E102"


class BadShape(SmidgenError):
    """Shapes, dtypes or attributes of the model do not fit an operator's rule."""

    code = "E103"
    WHY = "the rule of the operator does not take it"
    HELP = "print the shapes and types of its inputs in forward(); cast or reshape what is not as it should be"

    def __init__(self, what: str, *, at: str = "", why: str = "", help: str = "") -> None:
        super().__init__(what, at=at, why=why or self.WHY, help=help or self.HELP)


class BadModelSource(SmidgenError):
    """`file.py:function`, `package.module:attr` or the input description cannot be used."""

    code = "E104"
    exit_status = 2


class DoesNotFit(SmidgenError):
    """The program needs more memory than there is."""

    code = "E201"


class UnsafeLayout(SmidgenError):
    """The verifier found a live byte overwritten, or an access outside its region."""

    code = "E202"


class UnknownDevice(SmidgenError):
    """No device of that name."""

    code = "E203"
    exit_status = 2


class UnknownMethod(SmidgenError):
    """No method or parameter of that name."""

    code = "E301"
    exit_status = 2


class NothingToTrain(SmidgenError):
    """The method selects no parameter of this model."""

    code = "E302"


class NotDifferentiable(SmidgenError):
    """The loss does not reach a parameter through differentiable operators."""

    code = "E303"


class BadOption(SmidgenError):
    """An argument or option has a value that is not valid."""

    code = "E304"
    exit_status = 2


class BatchStatistics(SmidgenError):
    """Batch statistics need more than one value per channel."""

    code = "E305"


class NotAdditive(SmidgenError):
    """A batch cannot be split into micro-batches: the loss is not a sum or mean over samples."""

    code = "E306"


class CannotUpdate(SmidgenError):
    """An update that a method or the user asks for cannot be honoured."""

    code = "E307"


class BadMethod(SmidgenError):
    """A method of the user's own does not keep the contract of methods."""

    code = "E308"
    exit_status = 2


class BadScheme(SmidgenError):
    """The text of a scheme, which says what learns, is not understood."""

    code = "E309"
    exit_status = 2


class CannotStream(SmidgenError):
    """A program or a model cannot learn from a stream, or not from this sample."""

    code = "E310"


class CannotSelect(SmidgenError):
    """What learns cannot be chosen from these samples, or within these limits."""

    code = "E311"


class BadCalibration(SmidgenError):
    """The samples that int8 is calibrated with are missing, or no range can be told from them."""

    code = "E401"


class CannotQuantize(SmidgenError):
    """A network, or what learns of it, cannot be int8."""

    code = "E402"


class BadProgram(SmidgenError):
    """A program file is truncated, altered, of another version, or asks for a missing kernel."""

    code = "E501"


class BadData(SmidgenError):
    """Inputs or labels do not have the shape, dtype or range that the program was compiled for."""

    code = "E502"


class RunFailed(SmidgenError):
    """The runtime stopped a step."""

    code = "E503"


class MissingPart(SmidgenError):
    """An optional dependency, compiler or library is not installed."""

    code = "E504"


class CannotWrite(SmidgenError):
    """A file cannot be written where it was asked for."""

    code = "E505"


class NotFinite(SmidgenError):
    """Training met a loss, or made a weight, that is NaN or infinite; the job is back in its last good state."""

    code = "E506"


class BadCheckpoint(SmidgenError):
    """A checkpoint is truncated or altered, or belongs to another program or to another run of `fit`."""

    code = "E507"


class WrongVersion(SmidgenError):
    """A client's program learns something else than the fleet does."""

    code = "E601"


class BrokenUpdate(SmidgenError):
    """What a client sent back lacks tensors, has others, or has them in other shapes."""

    code = "E602"


class UpdateNotFinite(SmidgenError):
    """What a client sent back has NaN or infinity in it."""

    code = "E603"


class UpdateTooLarge(SmidgenError):
    """What a client sent back is absurdly far from what it was given."""

    code = "E604"


class CannotSet(SmidgenError):
    """A program cannot be given other values for something that it does not learn."""

    code = "E605"


class BoardSilent(SmidgenError):
    """A board of a gateway does not answer, however often it is asked."""

    code = "E606"


class BoardRefused(SmidgenError):
    """A board of a gateway refuses what it is asked; `number` is the error of runtime/fleet.h, 0: its answer makes no
    sense."""

    code = "E607"

    def __init__(self, what: str, *, at: str = "", why: str = "", help: str = "", number: int = 0) -> None:
        super().__init__(what, at=at, why=why, help=help)
        self.number = number


class Internal(SmidgenError):
    """A bug in smidgen: an invariant between two of its own stages does not hold."""

    code = "E901"
    exit_status = 3


def all_errors() -> dict[str, type[SmidgenError]]:
    """Code → exception class, for documentation and `smidgen explain`."""
    return {cls.code: cls for cls in SmidgenError.__subclasses__()}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the closest known word, else the list of known words."""
    options = sorted(known)
    import difflib

    def alike(option: str) -> tuple[float, int]:
        """Of equally close ones, that with more letters in place."""
        return difflib.SequenceMatcher(None, option, word).ratio(), sum(map(str.__eq__, option, word))

    close = difflib.get_close_matches(word, options, n=5)
    return f"did you mean '{max(close, key=alike)}'?" if close else "one of " + ", ".join(options)
