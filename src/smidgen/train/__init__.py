"""A job on the host: training, evaluation, checkpoints, weights. Needs numpy and the C runtime, no torch."""
