"""Speed and memory of Rushlight, beside PyTorch where it is installed.

python bench/run.py [--only gpt-nano,mlp] [--rounds 15] [--threads 2] [--seconds 0.2] [--json FILE]
python bench/run.py --report FILE

Every column of a workload is a process of its own (column.py).  They live side by side and take
turns of a fraction of a second, so that what else the machine does hits them alike.  README.md
says what the columns mean.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

from column import PEAK_SIZE

HERE = Path(__file__).resolve().parent
WORKLOADS = ("mlp", "lenet", "gpt-nano", "gpt-char", "llama-char", "gpt2")
COLUMNS = ("torch", "script", "fused")
IMPORT_ROUNDS = 9
PEAK_FLOPS = 2.0 * PEAK_SIZE**3
IMPORT_TIMER = (
    "import time, numpy; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
)


def transformer_flops(
    rows: int, context: int, layers: int, width: int, weights: int, vocabulary: int
) -> float:
    """Products of one training step: 6 per weight and row, and the causal half of attention.

    Attention has two T x T products per layer forward and four backward; those that a kernel
    computes again are not counted.
    """
    attention = layers * 6 * rows * context * width
    return 6 * rows * (layers * weights + vocabulary * width) + attention


FLOPS = {
    # the gradient of the input is not needed in the first layer
    "mlp": 64 * (4 * 784 * 128 + 6 * 128 * 10),
    "lenet": 64 * (4 * 144_000 + 6 * 320_000 + 6 * (320 * 50 + 50 * 10)),
    "gpt-nano": transformer_flops(12 * 64, 64, 4, 128, 12 * 128**2, 65),
    "gpt-char": transformer_flops(16 * 256, 256, 6, 384, 12 * 384**2, 65),
    "llama-char": transformer_flops(
        256, 256, 6, 384, 2 * 384**2 + 2 * 384 * 128 + 3 * 384 * 1024, 88
    ),
    "gpt2": transformer_flops(4 * 64, 64, 12, 768, 12 * 768**2, 50257),
}


class Column:
    """A process of column.py that waits for its turns."""

    def __init__(self, column: str, workload: str, options: argparse.Namespace) -> None:
        self.names = {"workload": workload, "column": column, "threads": options.threads}
        command = [sys.executable, str(HERE / "column.py"), column, workload]
        command += ["--threads", str(options.threads), "--seconds", str(options.seconds)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def turn(self) -> dict:
        """One record: milliseconds and page faults per step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> dict:
        """End the process; one record with its peak memory."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        record = self._answer()
        self.process.wait()
        return record

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.names} ended with status {self.process.wait()}")
        return {**self.names, **json.loads(line)}


def import_seconds(module: str, bytecode: str) -> float:
    """What importing a module costs once NumPy is there, in a fresh process.

    Bytecode is kept in a folder of ours, as an installed package has it: without it (a read-only
    checkout, PYTHONDONTWRITEBYTECODE) the time would be that of the compiler.
    """
    command = [sys.executable, "-c", IMPORT_TIMER.format(module)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return float(done.stdout)


def measure_imports(modules: list[str]) -> list[dict]:
    """Records of the import times; the first import of each, which compiles, is not counted."""
    with tempfile.TemporaryDirectory() as bytecode:
        for module in modules:
            import_seconds(module, bytecode)
        return [
            {"import": module, "ms": round(import_seconds(module, bytecode) * 1e3, 2)}
            for _ in range(IMPORT_ROUNDS)
            for module in modules
        ]


def measure(options: argparse.Namespace, columns: list[str]) -> list[dict]:
    """All records of one run; shows which column is at work where that can be seen."""
    records = []
    for workload in options.only:
        processes = [Column(c, workload, options) for c in (*columns, "peak")]
        for process in processes:
            process.turn()  # until every one has built its model and warmed up
        for number in range(1, options.rounds + 1):
            for process in processes:
                if sys.stderr.isatty():
                    column = process.names["column"]
                    print(f"\r{workload} {number} {column:8}", end="", file=sys.stderr)
                records.append(process.turn())
        records += [process.close() for process in processes]
    records += measure_imports(["rushlight", *(["torch"] if "torch" in columns else [])])
    if sys.stderr.isatty():
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return records


def paired_ratio(rows: list[float], base: list[float]) -> str:
    """The median over rounds of the ratio to PyTorch in the same round, and its quartiles."""
    ratios = [a / b for a, b in zip(rows, base, strict=True)] if base else []
    if len(ratios) < 2:
        return "-"
    low, middle, high = quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def table(records: list[dict]) -> list[str]:
    """The figures as a Markdown table."""
    lines = [
        "| workload | column | ms | ÷ torch (quartiles) | peak MB | ÷ torch | faults | GFLOP/s "
        "| of peak |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for workload in WORKLOADS:

        def figures(column: str, key: str, workload: str = workload) -> list[float]:
            return [
                r[key]
                for r in records
                if r.get("workload") == workload and r["column"] == column and key in r
            ]

        peak = figures("peak", "ms")
        for column in COLUMNS:
            ms = figures(column, "ms")
            if not ms:
                continue
            rate = FLOPS[workload] / median(ms) / 1e6
            shares = [FLOPS[workload] * p / (PEAK_FLOPS * t) for p, t in zip(peak, ms, strict=True)]
            memory, base = max(figures(column, "peak_mb")), figures("torch", "peak_mb")
            lines.append(
                f"| {workload} | {column} | {median(ms):.4g} "
                f"| {paired_ratio(ms, figures('torch', 'ms'))} | {memory:.0f} "
                f"| {f'{memory / max(base):.2f}' if base else '-'} "
                f"| {median(figures(column, 'faults')):.1f} | {rate:.0f} | {median(shares):.0%} |"
            )
    return lines


def summary(records: list[dict]) -> list[str]:
    """The lines under the table: peak, import, wheel."""
    peaks = [PEAK_FLOPS / r["ms"] / 1e6 for r in records if r.get("column") == "peak" and "ms" in r]
    threads = sorted({r["threads"] for r in records if "threads" in r})
    lines = []
    if peaks:
        lines.append(
            f"GEMM peak: best {max(peaks):.0f}, median {median(peaks):.0f}, least {min(peaks):.0f} "
            f"GFLOP/s; threads: {', '.join(map(str, threads))}"
        )
    for module in ("rushlight", "torch"):
        times = [r["ms"] for r in records if r.get("import") == module]
        if times:
            lines.append(f"import {module}: {median(times):.0f} ms over NumPy")
    wheels = sorted((HERE.parent / "dist").glob("*.whl"))
    for wheel in wheels:
        lines.append(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB")
    if not wheels:
        lines.append("wheel: none in dist/ (`make wheel`)")
    return lines


def names(text: str) -> list[str]:
    """Workloads from a list with commas."""
    listed = text.split(",")
    unknown = sorted(set(listed) - set(WORKLOADS))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {list(WORKLOADS)}")
    return listed


def positive(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=names, default=list(WORKLOADS), metavar="NAME,NAME")
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every record to a file")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only show such a file")
    options = parser.parse_args()
    if options.report:
        text = options.report.read_text(encoding="utf-8")
        records = [json.loads(line) for line in text.splitlines()]
    else:
        has_torch = importlib.util.find_spec("torch") is not None
        records = measure(options, [c for c in COLUMNS if c != "torch" or has_torch])
    if options.json:
        with options.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    print("\n".join([*table(records), "", *summary(records)]))


if __name__ == "__main__":
    main()
