"""How rule (b) judges a gradient from several tries."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen.report.parity import B_LIMIT, F32_SLACK, judged_gradient

CASES = {
    "one good try is enough": ([3e-2, 5e-6, 1e-2], [2e-6, 2e-6, 2e-6], True),
    "no digits in float32": ([6e-4, 5e-4], [2e-4, 3e-4], True),
    "wrong where torch is right": ([2e-3] * 9, [3e-6] * 9, False),
    "wrong where torch is usually right": ([2e-3] * 9, [3e-2] * 4 + [3e-6] * 5, False),
    "thresholds in every try, torch lucky once": ([4e-3, 6e-3, 9e-3], [3e-3, 2e-5, 5e-3], True),
    "far worse than torch with thresholds in every try": ([3e-2, 4e-2, 5e-2], [3e-3, 1e-3, 5e-3], False),
    "not a number": ([np.inf, np.inf], [1e-6, 1e-6], False),
    "not a number there either": ([1e-3, 1e-3], [np.inf, np.inf], False),
    "only one try": ([1e-3], [], False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_judged_by_its_best_try_or_where_torch_misses_too_by_its_usual_one(name: str) -> None:
    ours, theirs, right = CASES[name]
    error, limit = judged_gradient(ours, theirs)
    assert (error <= limit) is right


def test_the_limit_is_that_of_the_rule_where_a_try_is_within_it() -> None:
    assert judged_gradient([5e-6, 1.0], [1.0, 1.0]) == (5e-6, B_LIMIT)
    assert judged_gradient([3e-4, 1.0], [1e-4, 1.0]) == (3e-4, F32_SLACK * 1e-4)
