"""Tests that take long and repeat, on more cases, what others have shown: `make long` runs them, `make test` a sample.

Of the cases of a test with these names every n-th stays in `make test`, the first one among them; 0: none. Of two names
that fit a test the first counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

LONG: Final = {
    "acceptance/test_generated.py::test_random_networks_train": 3,
    "acceptance/test_generated_budget.py::test_random_networks_within": 4,
    "acceptance/test_generated_slices.py::test_random_slices": 20,
    "acceptance/test_generated_streams.py::test_random_streams": 5,
    "acceptance/test_generated_learning_streams.py::test_random_parts": 5,
    "acceptance/test_generated_tiles.py::test_random_chains": 5,
    "acceptance/test_int8_generated.py::test_random_networks_in_int8": 3,
    "acceptance/test_large_nets.py::test_training_equals_pytorch": 6,
    "acceptance/test_parity.py::test_training_equals_pytorch": 4,
    "deploy/test_bytes.py::test_a_board_learns_from_images_of_bytes": 2,
    "deploy/test_paging_board.py::test_what_does_not_fit_fits_with_pages": 3,
    "cli/test_transcripts.py::test_a_pipe_gets_the_transcript": 2,
    "cli/test_transcripts.py::test_json_has_exactly_the_documented_keys": 3,
    "deploy/test_firmware.py::test_lenet_takes_at_most_33_kb": 2,
    "deploy/test_firmware.py::test_the_plan_is_what_is_linked": 3,
    "deploy/test_runner.py::test_a_runner": 0,
    "deploy/test_runner.py::test_a_step_in_parts": 0,
    "deploy/test_runner.py::test_an_android_library": 0,
    "deploy/test_runner.py::test_lenet_has_the_same_bits_on": 0,
    "deploy/test_slots.py::test_a_save_cut_at_every_byte": 0,
    "deploy/test_zoo_layers_board.py::test_three_steps_on_a_board": 4,
    "devices/test_device.py::test_what_is_offered_instead_does_fit": 0,
    "docs/test_docs.py::test_everything_on_the_page_happens_as_it_says[docs/howto/budget.md]": 0,
    "docs/test_docs.py::test_everything_on_the_page_happens_as_it_says[docs/howto/devices.md]": 0,
    "docs/test_docs.py::test_everything_on_the_page_happens_as_it_says[docs/howto/fleet.md]": 0,
    "docs/test_docs.py::test_everything_on_the_page_happens_as_it_says[docs/howto/ladder.md]": 0,
    "docs/test_docs.py::test_everything_on_the_page_happens_as_it_says[docs/howto/linux_runner.md]": 0,
    "fit/test_budget.py::test_a_program_within_a_budget_learns_the_same_bits": 4,
    "fit/test_budget.py::test_batch_statistics_are_those_of_parts_only": 0,
    "fit/test_budget_edges.py::test_a_deadline_that_cannot_be_met_says": 0,
    "fit/test_budget_edges.py::test_a_program_is_placed_as_it_was_sized": 0,
    "fit/test_needs.py::test_random_cases_need_what_they_say": 6,
    "fit/test_needs.py::test_what_exceeds_the_device_is_said_first": 0,
    "fit/test_needs.py::test_the_need_is_one_number": 3,
    "methods/test_tinytrain.py::test_scores_of_resnet_18": 0,
    "fleet/test_benchmark.py": 0,
    "fleet/test_differ.py::test_bytes_become_blocks": 0,
    "passes/test_resweep.py::test_networks_that_permute_a_lot": 3,
    "planner/test_board_time.py::test_predicted_instructions": 4,
    "planner/test_joint.py::test_nothing_that_fits_costs_less": 3,
    "planner/test_planner_varied.py::test_an_answer_does_not_wait": 0,
    "program/test_paging_safety.py::test_a_runner_pages": 0,
    "project/test_numpy_only.py": 0,
    "project/test_planted_faults.py::test_a_planted_fault": 4,
    "project/test_planted_faults.py::test_every_named_test": 0,
    "report/test_by_method.py::test_a_line_says_what_compile_finds": 0,
    "runtime/test_cpu.py::test_a_library_built_by_zig": 0,
    "runtime/test_fast_kernels.py::test_other_compilers_and_vectors": 2,
    "runtime/test_same_bits.py::test_fifty_training_steps": 3,
}


def long_ones(names: Iterable[str]) -> Iterator[str]:
    """Those of these tests, in their order, that are left to `make long`."""
    seen: Counter[str] = Counter()
    for name in names:
        proof = next((p for p in LONG if name.removeprefix("tests/").startswith(p)), None)
        if proof is not None:
            every, number = LONG[proof], seen[proof]
            seen[proof] += 1
            if not every or number % every:
                yield name


__all__ = ["LONG", "long_ones"]
