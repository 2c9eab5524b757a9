"""The line budgets of project, files and functions; blank, comment and docstring lines are free."""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

MOST = {"python": 15_000, "c": 8_000, "file": 500, "function": 60}
ROOT = Path(__file__).parent.parent
FREE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def python_lines(text: str) -> int:
    """Lines with code on them."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documented.update(range(value.lineno, (value.end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in FREE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documented)


def c_lines(text: str) -> int:
    """Lines with code on them."""
    bare = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return sum(bool(line.strip()) for line in bare.splitlines())


def long_python_functions(path: Path) -> list[str]:
    """Functions over the budget."""
    return [
        f"{path}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MOST["function"]
    ]


def long_c_functions(path: Path) -> list[str]:
    """Functions over the budget: from a line that starts in column one to the next bare brace."""
    found, start = [], 0
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if re.match(r"(static|RL_INLINE|[a-z_]+ \**[a-z_]+\()", line):
            start = number
        elif line == "}" and start:
            if number - start >= MOST["function"]:
                found.append(f"{path}:{start} function of {number - start + 1} lines")
            start = 0
    return found


def main() -> int:
    """Print the totals and every breach."""
    python = sorted((ROOT / "src").rglob("*.py"))
    c = sorted(p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".c", ".h", ".inc"))
    totals = {
        "python": sum(python_lines(p.read_text()) for p in python),
        "c": sum(c_lines(p.read_text()) for p in c),
    }
    breaches = [f"{kind}: {n} code lines" for kind, n in totals.items() if n > MOST[kind]]
    for path in (*python, *c):
        length = len(path.read_text().splitlines())
        if length > MOST["file"]:
            breaches.append(f"{path}: {length} lines")
        breaches += long_python_functions(path) if path.suffix == ".py" else long_c_functions(path)
    print(f"code lines: Python {totals['python']}, C {totals['c']}")
    print("\n".join(breaches))
    return bool(breaches)


if __name__ == "__main__":
    sys.exit(main())
