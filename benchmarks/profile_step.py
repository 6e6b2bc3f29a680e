"""Where the time of a training step goes, kernel by kernel: `python -m benchmarks.profile_step mcunet --batch 8`."""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

import smidgen
from smidgen.runtime import library

from .nets.workloads import WORKLOADS

HERE = Path(__file__).resolve().parent


def build(folder: str) -> ctypes.CDLL:
    out = Path(folder) / "profile.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(HERE / "c" / "profile.c"), "-o", str(out)], check=True)
    lib = ctypes.CDLL(str(out))
    lib.profile_seconds.restype = ctypes.c_double
    lib.profile_calls.restype = ctypes.c_long
    lib.profile_install.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return lib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", choices=list(WORKLOADS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--method", default="full")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", help="of RAM")
    parser.add_argument("--steps", type=int, default=0, help="default: as many as take two seconds")
    args = parser.parse_args()
    import torch

    net = WORKLOADS[args.net]
    torch.manual_seed(0)
    x = torch.randn(args.batch, *net.shape)
    y = np.zeros(args.batch, np.int64)
    job = smidgen.compile(
        net.build(), x, optimizer=smidgen.SGD(lr=1e-4, momentum=0.9), method=args.method, budget=args.budget,
        kernels=f"fast:{args.threads}",
    )  # fmt: skip
    data = x.numpy()
    job.train_step(data, y)
    start = time.perf_counter()
    job.train_step(data, y)
    once = time.perf_counter() - start
    steps = args.steps or max(3, int(2 / once))
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        job.train_step(data, y)
        times.append(time.perf_counter() - start)
    plain, best = sorted(times)[len(times) // 2], min(times)
    lib = library.library()
    count = ctypes.c_int.in_dll(lib, "smg_kernel_count").value
    table = (ctypes.c_void_p * count).in_dll(lib, "smg_kernels")
    names = [ctypes.cast(ctypes.cast(p, ctypes.POINTER(ctypes.c_char_p))[0], ctypes.c_char_p).value for p in table]
    with tempfile.TemporaryDirectory() as folder:
        profile = build(folder)
        profile.profile_install(job.engine.machine._open().context, ctypes.addressof(table), count, args.threads)
        rows: list[tuple[float, int, int]] = []
        for _ in range(steps):
            profile.profile_reset()
            job.train_step(data, y)
            one = [(profile.profile_seconds(k), profile.profile_calls(k), k) for k in range(min(count, 256))]
            if not rows or sum(r[0] for r in one) < sum(r[0] for r in rows):
                rows = one
    rows.sort(reverse=True)
    whole = sum(r[0] for r in rows)
    print(
        f"{args.net} batch {args.batch} {args.method}: {plain * 1e3:.3f} ms a step, best {best * 1e3:.3f} ms; "
        f"kernels of the best step {whole * 1e3:.3f} ms"
    )
    for seconds, calls, k in rows:
        if calls:
            name = (names[k] or b"?").decode()
            print(f"  {name:32} {calls:5} calls {seconds * 1e6:10.1f} µs {seconds / whole:6.1%}")


if __name__ == "__main__":
    main()
