"""One workload in one column, in this process: prints one JSON line.  run.py starts these.

python bench/column.py torch|script|fused WORKLOAD [--threads 2] [--seconds 1]
python bench/column.py peak gemm

torch   workloads.py as it is
script  workloads.py with only its import lines changed to Rushlight
fused   models.py, measured by the same function
peak    a large square matrix product with Rushlight: what "share of peak" refers to
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

SCRIPT = Path(__file__).parent / "workloads.py"
IMPORTS = {
    "import torch\n": "import rushlight as torch\n",
    "import torch.nn as nn\n": "import rushlight.nn as nn\n",
    "import torch.nn.functional as F\n": "import rushlight.nn.functional as F\n",
}
PEAK_SIZE = 2048
PEAK_TRIES = 12


def load_script(column: str) -> dict:
    """The names that workloads.py defines, under the library of the column."""
    source = SCRIPT.read_text(encoding="utf-8")
    if column != "torch":
        for old, new in IMPORTS.items():
            if old not in source:
                raise SystemExit(f"{SCRIPT.name} lacks the line {old.strip()!r}")
            source = source.replace(old, new)
    names: dict = {"__name__": "workloads"}
    exec(compile(source, str(SCRIPT), "exec"), names)
    if column == "fused":
        from models import build

        names["build"] = build
    return names


def measure_peak(threads: int) -> dict:
    import rushlight as rl

    rl.set_num_threads(threads)
    a, b = rl.randn(PEAK_SIZE, PEAK_SIZE), rl.randn(PEAK_SIZE, PEAK_SIZE)
    best = float("inf")
    with rl.no_grad():
        for _ in range(PEAK_TRIES):
            start = time.perf_counter()
            rl.matmul(a, b)
            best = min(best, time.perf_counter() - start)
    return {"gflops": round(2 * PEAK_SIZE**3 / best / 1e9, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("column", choices=["torch", "script", "fused", "peak"])
    parser.add_argument("workload")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    if options.column == "peak":
        result = measure_peak(options.threads)
    else:
        names = load_script(options.column)
        names["torch"].set_num_threads(options.threads)
        result = names["measure"](options.workload, "float32", options.seconds)
    print(json.dumps({**result, "column": options.column, "workload": options.workload}))


if __name__ == "__main__":
    main()
