"""Speed and memory of Rushlight, beside PyTorch where it is installed.

python bench/run.py [--only gpt-nano,mlp] [--rounds 3] [--threads 2] [--seconds 1] [--json FILE]
python bench/run.py --report FILE

Every figure comes from a process of its own (column.py); a round goes once through the columns, so
that what else the machine does hits them alike.  README.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
WORKLOADS = ("mlp", "gpt-nano", "gpt-char", "llama-char", "gpt2")
COLUMNS = ("torch", "script", "fused")
IMPORT_ROUNDS = 9
QUIET = 0.1  # of one core, used by other processes or taken by the host: above it a round is noise
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
    # the gradient of the input is not needed
    "mlp": 64 * (4 * 784 * 128 + 6 * 128 * 10),
    "gpt-nano": transformer_flops(12 * 64, 64, 4, 128, 12 * 128**2, 65),
    "gpt-char": transformer_flops(16 * 256, 256, 6, 384, 12 * 384**2, 65),
    "llama-char": transformer_flops(
        256, 256, 6, 384, 2 * 384**2 + 2 * 384 * 128 + 3 * 384 * 1024, 88
    ),
    "gpt2": transformer_flops(4 * 64, 64, 12, 768, 12 * 768**2, 50257),
}


def machine_seconds() -> float | None:
    """Processor time spent so far by all processes and by the host; None where it is not told."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    except FileNotFoundError:
        return None
    user, nice, system, _idle, _wait, interrupts, soft, stolen = map(int, fields)
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupts + soft + stolen) / ticks


def children_seconds() -> float:
    """Processor time of the processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_column(column: str, workload: str, options: argparse.Namespace) -> dict:
    """One JSON line of column.py, with the share of a core that went elsewhere meanwhile."""
    machine, own, start = machine_seconds(), children_seconds(), time.perf_counter()
    command = [sys.executable, str(HERE / "column.py"), column, workload]
    command += ["--threads", str(options.threads), "--seconds", str(options.seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{column} {workload} ended with status {done.returncode}")
    record = json.loads(done.stdout.splitlines()[-1])
    after = machine_seconds()
    if machine is not None and after is not None:
        others = after - machine - (children_seconds() - own)
        record["others"] = round(max(others, 0.0) / (time.perf_counter() - start), 3)
    return record


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
        for number in range(1, options.rounds + 1):
            started = round(time.time(), 3)  # names the round, also among those of other runs
            for column in [*columns, "peak"]:
                if sys.stderr.isatty():
                    print(f"\r{workload} {number} {column:8}", end="", file=sys.stderr)
                records.append({**run_column(column, workload, options), "round": started})
    records += measure_imports(["rushlight", *(["torch"] if "torch" in columns else [])])
    if sys.stderr.isatty():
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return records


def quiet_rounds(records: list[dict]) -> list[dict]:
    """Without the rounds, whole, in which something else used the machine.

    The peak does not decide: of it only the best counts, which noise cannot raise.
    """
    compared = [r for r in records if r.get("column") in COLUMNS]
    noisy = {r["round"] for r in compared if r.get("others", 0.0) > QUIET}
    return [r for r in records if r.get("round") not in noisy]


def paired_ratio(rows: list[dict], base: list[dict], key: str) -> str:
    """The median over rounds of a figure relative to PyTorch's in the same round."""
    pairs = [a[key] / b[key] for a, b in zip(rows, base, strict=False)]
    return f"{median(pairs):.2f}" if pairs else "-"


def table(records: list[dict]) -> list[str]:
    """The figures as a Markdown table."""
    lines = [
        "| workload | column | ms | ÷ torch | peak MB | ÷ torch | faults | GFLOP/s | of peak |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for workload in WORKLOADS:
        chosen = [r for r in records if r.get("workload") == workload]
        by_column = {c: [r for r in chosen if r["column"] == c] for c in (*COLUMNS, "peak")}
        peaks = [r["gflops"] for r in by_column["peak"]]
        for column in COLUMNS:
            rows, base = by_column[column], by_column["torch"]
            if not rows:
                continue
            ms = median(r["ms"] for r in rows)
            rate = FLOPS[workload] / ms / 1e6
            share = f"{rate / max(peaks):.0%}" if peaks else "-"
            lines.append(
                f"| {workload} | {column} | {ms:.4g} | {paired_ratio(rows, base, 'ms')} "
                f"| {median(r['peak_rss_mb'] for r in rows):.0f} "
                f"| {paired_ratio(rows, base, 'peak_rss_mb')} "
                f"| {median(r['minor_faults'] for r in rows):.1f} | {rate:.0f} | {share} |"
            )
    return lines


def summary(records: list[dict]) -> list[str]:
    """The lines under the table: peak, import, wheel."""
    peaks = [r["gflops"] for r in records if r.get("column") == "peak"]
    threads = sorted({r["threads"] for r in records if "threads" in r})
    lines = []
    if peaks:
        lines.append(
            f"GEMM peak: best {max(peaks):.0f}, median {median(peaks):.0f} GFLOP/s; "
            f"threads: {', '.join(map(str, threads))}"
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
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of steps per process")
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
    quiet = quiet_rounds(records)
    rounds, left = ({r["round"] for r in rs if "round" in r} for rs in (records, quiet))
    if left:
        print("\n".join([*table(quiet), "", *summary(quiet)]))
        print(f"rounds: {len(left)}; left out because the machine was busy: {len(rounds - left)}")
    else:
        print("\n".join([*table(records), "", *summary(records)]))
        print(f"BUSY MACHINE in all {len(rounds)} rounds: these figures mean nothing")


if __name__ == "__main__":
    main()
