"""One workload in one column, in a process of its own that takes turns.  run.py starts these.

python bench/column.py torch|script|fused|peak WORKLOAD [--threads 2] [--seconds 0.2]

torch   workloads.py as it is
script  workloads.py with only its import lines changed to Rushlight
fused   models.py in place of its networks
peak    a large square matrix product with Rushlight: what "share of peak" refers to

Every line on standard input asks for a turn and is answered with one JSON line: milliseconds and
page faults per step.  The end of the input is answered with the peak memory of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).parent / "workloads.py"
IMPORTS = {
    "import torch\n": "import rushlight as torch\n",
    "import torch.nn as nn\n": "import rushlight.nn as nn\n",
    "import torch.nn.functional as F\n": "import rushlight.nn.functional as F\n",
}
PEAK_SIZE = 2048
WARM_UP = 3


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


def training_step(column: str, workload: str, threads: int) -> Callable[[], None]:
    """The step that workloads.py measures: forward, loss, backward, clipping, optimizer."""
    names = load_script(column)
    names["torch"].set_num_threads(threads)
    names["torch"].manual_seed(0)
    model, optimizer, batch, clip, _ = names["build"](workload)
    model.train()
    clip_grad_norm_ = names["nn"].utils.clip_grad_norm_

    def step() -> None:
        loss = model(*batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

    return step


def peak_step(threads: int) -> Callable[[], None]:
    """A product of two large matrices."""
    import rushlight as rl

    rl.set_num_threads(threads)
    a, b = rl.randn(PEAK_SIZE, PEAK_SIZE), rl.randn(PEAK_SIZE, PEAK_SIZE)

    def step() -> None:
        rl.matmul(a, b)

    return step


def take_turns(step: Callable[[], None], seconds: float) -> None:
    """Answer standard input, a turn of about `seconds` a line."""
    for _ in range(WARM_UP):
        step()
    start = time.perf_counter()
    step()
    count = max(1, int(seconds / (time.perf_counter() - start)))
    for _ in sys.stdin:
        step()  # what ran in between had the caches
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.perf_counter()
        for _ in range(count):
            step()
        spent = time.perf_counter() - start
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        print(json.dumps({"ms": spent / count * 1e3, "faults": faults / count}), flush=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": round(memory, 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("column", choices=["torch", "script", "fused", "peak"])
    parser.add_argument("workload")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.2)
    options = parser.parse_args()
    if options.column == "peak":
        step = peak_step(options.threads)
    else:
        step = training_step(options.column, options.workload, options.threads)
    take_turns(step, options.seconds)


if __name__ == "__main__":
    main()
