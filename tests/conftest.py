"""One thread of linear algebra for each test process: tests run side by side. Exact kernels unless a test says
otherwise: most compare bits."""

import os
import signal

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SMIDGEN_KERNELS", "exact")
# A run in the background inherits an ignored Ctrl-C; tests that send one want Python's own.
signal.signal(signal.SIGINT, signal.default_int_handler)
