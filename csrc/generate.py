"""Turn the prototypes of rushlight.h into the code between a caller and a kernel body.

    python csrc/generate.py OUTPUT_DIRECTORY

Writes  dispatch.h    the table of kernels of one instruction-set level
        table.inc     its initialiser: the bodies of the level that includes it
        dispatch.inc  the public functions: check dtypes, pick float32 or float64, call the level
        door.inc      one trampoline per kernel and what Python's door must know of its arguments
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

HEADER = Path(__file__).parent / "include" / "rushlight.h"
VIEWS = {"rl_real": "REAL", "rl_ints": "INTS", "rl_mask": "MASK", "rl_bits": "BITS"}
SCALARS = {"int64_t": "INT", "double": "DOUBLE"}
ARGUMENT = re.compile(
    r"(?P<const>const )?(?P<type>rl_\w+|int64_t|double) ?\*?"
    r"(?P<optional>RL_OPTIONAL )?(?P<name>\w+)"
)


class Argument(NamedTuple):
    """One argument of a kernel, the context left out."""

    name: str
    type: str
    const: bool
    optional: bool

    @property
    def c(self) -> str:
        star = "" if self.type in SCALARS else "*"
        return f"{'const ' if self.const else ''}{self.type} {star}{self.name}"

    @property
    def is_real(self) -> bool:
        return self.type in ("rl_real", "rl_list")


class Kernel(NamedTuple):
    """One prototype of the header."""

    name: str
    arguments: list[Argument]

    @property
    def parameters(self) -> str:
        return ", ".join(["rl_ctx *ctx", *(argument.c for argument in self.arguments)])

    @property
    def names(self) -> str:
        return ", ".join(["ctx", *(argument.name for argument in self.arguments)])


def parse(header: str) -> list[Kernel]:
    """Every `rl_status rl_NAME(rl_ctx *ctx, ...);` of the header, in order."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    kernels = []
    for name, body in re.findall(
        r"rl_status rl_(\w+)\(rl_ctx \*ctx,\s*(.*?)\);", text, flags=re.DOTALL
    ):
        arguments = []
        for part in " ".join(body.split()).split(", "):
            match = ARGUMENT.fullmatch(part)
            if match is None or match["type"] not in {*VIEWS, *SCALARS, "rl_list"}:
                raise SystemExit(f"rushlight.h: rl_{name}: cannot read argument {part!r}")
            arguments.append(
                Argument(
                    match["name"], match["type"], bool(match["const"]), bool(match["optional"])
                )
            )
        kernels.append(Kernel(name, arguments))
    return kernels


def dispatch_header(kernels: list[Kernel]) -> str:
    fields = "".join(
        f"    rl_status (*{kernel.name}[2])({kernel.parameters});\n" for kernel in kernels
    )
    return f'#include "rushlight.h"\ntypedef struct {{\n{fields}}} rl_table;\n'


def table(kernels: list[Kernel]) -> str:
    return "".join(
        f".{kernel.name} = {{{kernel.name}_f32, {kernel.name}_f64}},\n" for kernel in kernels
    )


def public_function(kernel: Kernel) -> str:
    checks = []
    for argument in kernel.arguments:
        if argument.type in SCALARS:
            continue
        check = "check_list" if argument.type == "rl_list" else "check_view"
        kind = "" if argument.type == "rl_list" else f", KIND_{VIEWS[argument.type]}"
        checks.append(
            f'{check}(ctx, "{argument.name}", {argument.name}, '
            f"{int(argument.optional)}, &real{kind})"
        )
    lines = [
        f"rl_status rl_{kernel.name}({kernel.parameters}) {{",
        "    int real = -1;",
        f'    ctx->kernel = "{kernel.name}";',
        "    ctx->threads = rl_get_num_threads();",
    ]
    lines += [f"    if ({' || '.join(checks)}) return ctx->status;"]
    lines += [f"    return rl_active->{kernel.name}[real == RL_FLOAT64]({kernel.names});", "}", ""]
    return "\n".join(lines)


def trampoline(kernel: Kernel) -> str:
    fields = {"INT": "integer", "DOUBLE": "number"}
    values = []
    for i, argument in enumerate(kernel.arguments):
        field = (
            fields[SCALARS[argument.type]]
            if argument.type in SCALARS
            else "list"
            if argument.type == "rl_list"
            else "view"
        )
        values.append(f"a[{i}].{field}")
    call = f"rl_{kernel.name}({', '.join(['ctx', *values])})"
    head = f"static rl_status call_{kernel.name}(rl_ctx *ctx, const rl_argument *a)"
    return f"{head} {{ return {call}; }}\n"


def description(kernel: Kernel) -> str:
    kinds = []
    for argument in kernel.arguments:
        kind = SCALARS.get(argument.type) or VIEWS.get(argument.type, "LIST")
        flags = "" if argument.const or argument.type in SCALARS else " | KIND_WRITTEN"
        kinds.append(f"KIND_{kind}{flags}")
    return f'    {{"{kernel.name}", call_{kernel.name}, {len(kinds)}, {{{", ".join(kinds)}}}}},\n'


def door(kernels: list[Kernel]) -> str:
    most = max(len(kernel.arguments) for kernel in kernels)
    rows = "".join(description(kernel) for kernel in kernels)
    body = "".join(trampoline(kernel) for kernel in kernels)
    return (
        f"{body}\nconst rl_kernel rl_kernels[] = {{\n{rows}}};\n"
        f"const int rl_kernel_count = {len(kernels)};\n"
        f'_Static_assert({most} <= RL_MAX_ARGUMENTS, "RL_MAX_ARGUMENTS");\n'
    )


def main(output: Path) -> None:
    """Write the four files; one whose text has not changed keeps its time."""
    kernels = parse(HEADER.read_text())
    output.mkdir(parents=True, exist_ok=True)
    texts = {
        "dispatch.h": dispatch_header(kernels),
        "table.inc": table(kernels),
        "dispatch.inc": "\n".join(public_function(kernel) for kernel in kernels),
        "door.inc": door(kernels),
    }
    for name, text in texts.items():
        path = output / name
        text = f"/* Made by csrc/generate.py from rushlight.h. */\n{text}"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
