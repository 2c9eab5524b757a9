"""Where the time of a training step goes: kernels, their calls and milliseconds.

python bench/profile_step.py gpt-nano [--column fused|script] [--steps 20] [--threads 2] [--shapes]

Each call of a kernel is timed from Python, so "Python and the rest" is everything outside the
kernels: recording, autograd, allocation, NumPy.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable

from column import WARM_UP, training_step

from rushlight import _core, kernels

NAMES = {number: name for name, number in _core.KERNELS.items()}


class Profile:
    """Stands in for the door to the kernels and adds up the time behind it."""

    def __init__(self, by_shape: bool) -> None:
        self.by_shape = by_shape
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.flops: dict[str, float] = defaultdict(float)

    def __call__(self, kernel: int, *arguments) -> None:
        start = time.perf_counter()
        _core.call(kernel, *arguments)
        elapsed = time.perf_counter() - start
        name = NAMES[kernel]
        flops = 0.0
        if name == "gemm":
            c, a = arguments[:2]
            inner = a.shape[-1]
            flops = 2.0 * c.size * inner
            if self.by_shape:
                name = f"gemm {c.shape[-2]} x {c.shape[-1]} x {inner}"
        self.seconds[name] += elapsed
        self.calls[name] += 1
        self.flops[name] += flops


def run(step: Callable[[], None], count: int) -> float:
    """Seconds of some steps."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - start


def table(profile: Profile, seconds: float, steps: int) -> list[str]:
    """Per step, the dearest kernel first."""
    lines = ["| kernel | calls | ms | share | GFLOP/s |", "|---|---:|---:|---:|---:|"]
    for name in sorted(profile.seconds, key=profile.seconds.get, reverse=True):
        spent, flops = profile.seconds[name], profile.flops[name]
        rate = f"{flops / spent / 1e9:.0f}" if flops else ""
        lines.append(
            f"| {name} | {profile.calls[name] / steps:.0f} | {spent / steps * 1e3:.3f} "
            f"| {spent / seconds:.1%} | {rate} |"
        )
    rest = seconds - sum(profile.seconds.values())
    lines.append(f"| Python and the rest | | {rest / steps * 1e3:.3f} | {rest / seconds:.1%} | |")
    lines.append(f"| step | | {seconds / steps * 1e3:.3f} | | |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload")
    parser.add_argument("--column", choices=["script", "fused"], default="fused")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", action="store_true", help="one row per shape of a product")
    options = parser.parse_args()
    step = training_step(options.column, options.workload, options.threads)
    profile = Profile(options.shapes)
    kernels.call = profile
    run(step, WARM_UP)
    profile.reset()
    seconds = run(step, options.steps)
    print("\n".join(table(profile, seconds, options.steps)))


if __name__ == "__main__":
    main()
