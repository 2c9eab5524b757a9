"""Build the native core: generate the dispatch, compile side by side, link one extension."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

GENERATED = Path("build/generated")
LESS = {"csrc/isa_base.c": ["-O2"]}  # every machine has this level and few run it: 0.7 of the size
FLAGS = [
    "-std=c11", "-O3", "-g0", "-fvisibility=hidden",
    # C11 mode would switch contraction to fused multiply-add off; errno and traps are never read
    "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    *os.environ.get("RUSHLIGHT_CFLAGS", "").split(),
]  # fmt: skip


class BuildCore(build_ext):
    """build_ext that makes the generated files first and compiles the sources in parallel."""

    def build_extension(self, ext: Extension) -> None:
        """Compile every source as a job of its own, then link."""
        subprocess.run([sys.executable, "csrc/generate.py", str(GENERATED)], check=True)
        serial = self.compiler.compile

        def compile_one(source, **options):
            options["extra_postargs"] = [*options["extra_postargs"], *LESS.get(source, [])]
            return serial([source], **options)

        def compile_parallel(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [
                    name
                    for names in pool.map(lambda source: compile_one(source, **options), sources)
                    for name in names
                ]

        self.compiler.compile = compile_parallel
        super().build_extension(ext)


setup(
    ext_modules=[
        Extension(
            "rushlight._core",
            # the levels first: they take longest
            sources=sorted(
                map(str, Path("csrc").glob("*.c")),
                key=lambda name: (not Path(name).name.startswith("isa_"), name),
            ),
            depends=[
                *map(str, Path("csrc").rglob("*.h")),
                *map(str, Path("csrc").rglob("*.inc")),
                "csrc/generate.py",
            ],
            include_dirs=["csrc", "csrc/include", str(GENERATED)],
            extra_compile_args=FLAGS,
            extra_link_args=["-Wl,-s"] if sys.platform == "linux" else [],
            libraries=["m", "pthread"],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": BuildCore},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
