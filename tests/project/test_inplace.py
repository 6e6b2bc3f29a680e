"""The table of inputs whose memory a kernel may take is made from the op records."""

from smidgen.runtime import build
from tools import make_inplace


def test_what_may_run_in_place_is_the_same_for_a_build_without_the_records() -> None:
    """Where pip builds the runtime, numpy is not there to read the records: a file has them."""
    assert build.INPLACE.read_text() == make_inplace.text(), "python -m tools.make_inplace"
    assert build.inplace_inputs() == make_inplace.masks()
