"""`rushlight info`: what this machine and installation have."""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata
from pathlib import Path

OPTIONAL = {
    "matplotlib": "loss curves, confusion matrices",
    "pillow": "image files",
    "tensorboardX": "TensorBoard events",
    "torch": "comparisons in tests and bench",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(options: argparse.Namespace) -> int:
    """Print a line for each fact."""
    import rushlight as rl
    from rushlight import _core

    print(f"rushlight  {rl.__version__}, in {Path(rl.__file__).parent}")
    print(f"python     {platform.python_version()}, {platform.system()} {platform.machine()}")
    print(f"needs      {_versions(['numpy', 'safetensors'])}")
    print(f"cpu        {_cpu()}")
    print(f"levels     built: {', '.join(_core.LEVELS)}; chosen: {_core.level()}")
    print(f"threads    {rl.get_num_threads()} of {os.cpu_count()} processors")
    print(f"memory     {_memory()}")
    for name, use in OPTIONAL.items():
        print(f"optional   {_versions([name])} ({use})")
    return 0


def _versions(names: list[str]) -> str:
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name}: not installed")
    return ", ".join(found)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> str:
    """Of the machine, where the system tells."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (os.sysconf(name) * page for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return "unknown on this system"
    return f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of it unused"


def machine() -> str:
    """Threads and instruction-set level in use, for the first lines of a run."""
    import rushlight as rl
    from rushlight._core import level

    threads = rl.get_num_threads()
    return f"{threads} thread{'s' * (threads != 1)}, level {level()}"
