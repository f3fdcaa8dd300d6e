"""Which small changes a module's source allows: one edit of its text each."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Collection

from tools.mutants.edit import Mutant, joined, slice_text

COMPARISONS = {
    ast.Lt: ("<", "<=", ">="),
    ast.LtE: ("<=", "<", ">"),
    ast.Gt: (">", ">=", "<="),
    ast.GtE: (">=", ">", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
"""Kind of a comparison -> how it is written, what is put instead."""
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.BitXor: ("^", "&"),
}
NAMES = {
    "all": "any",
    "any": "all",
    "ceil": "floor",
    "endswith": "startswith",
    "floor": "ceil",
    "max": "min",
    "maximum": "minimum",
    "mean": "max",
    "median": "mean",
    "min": "max",
    "minimum": "maximum",
    "startswith": "endswith",
}
"""Called function or method -> what is called instead."""
PLAIN = ("dataclass", "field", "TypeVar", "NamedTuple", "default_rng", "cast")
"""Calls whose arguments are left alone: shapes of records, seeds, types."""
TEXTS = ("fix", "encoding", "indent", "separators")
"""Keywords that change what is written and not what is decided."""


def mutants(path: str, source: bytes, skip: Collection[str] = ()) -> list[Mutant]:
    """Return the edits of a module, each of which leaves it readable Python.

    Args:
        path: As the edits shall name it.
        source: Its text.
        skip: Qualified names of functions and classes to leave out.
    """
    finder = _Finder(path, source, skip)
    for statement in ast.parse(source).body:
        finder.statement = finder.span(statement)
        finder.visit(statement)
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes, skip: Collection[str]) -> None:
        self.path, self.source, self.skip = path, source, skip
        self.found: list[Mutant] = []
        self.scopes: list[str] = []
        self.statement = (0, len(source))
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self.starts = starts

    # --- where things stand ------------------------------------------------------------------

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return a node's first and last byte."""
        begin = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return begin, end

    def text(self, node: ast.AST) -> str:
        """Return a node's text."""
        return slice_text(self.source, *self.span(node))

    def put(self, begin: int, end: int, text: str) -> None:
        """Note an edit if what it makes can be compiled."""
        line = bisect_right(self.starts, begin)
        made = Mutant(self.path, ".".join(self.scopes), line, (begin, end), text)
        changed = made.apply(self.source)
        top, bottom = self.statement
        try:
            ast.parse(b"if 1:\n " + changed[top : bottom + len(changed) - len(self.source)])
        except (SyntaxError, ValueError):
            return
        first = self.source.rfind(b"\n", 0, begin) + 1
        last = self.source.find(b"\n", end)
        was = slice_text(self.source, first, last)
        becomes = slice_text(changed, first, last + len(changed) - len(self.source))
        self.found.append(
            Mutant(made.path, made.where, line, made.span, text, joined(was), joined(becomes))
        )

    def replace(self, node: ast.AST, text: str) -> None:
        """Note an edit of a whole node."""
        self.put(*self.span(node), text)

    # --- what is left alone ------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Enter a function: its defaults and its body, not its decorators and annotations."""
        self.scopes.append(node.name)
        outer, self.statement = self.statement, self.span(node)
        if ".".join(self.scopes) not in self.skip:
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.visit(default)
            for statement in node.body:
                self.visit(statement)
        self.scopes.pop()
        self.statement = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Enter a class."""
        self.scopes.append(node.name)
        if ".".join(self.scopes) not in self.skip:
            for statement in node.body:
                self.visit(statement)
        self.scopes.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave the annotation alone."""
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts alone."""

    def visit_Assign(self, node: ast.Assign) -> None:
        """Drop what is stored in an object or a table; leave type aliases alone."""
        target = node.targets[0]
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            self.replace(node, "pass")
        alias = isinstance(node.value, ast.Subscript) and not self.scopes
        if not alias and not (isinstance(target, ast.Name) and target.id == "__all__"):
            self.visit(node.value)

    # --- statements --------------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        """Drop a call that stands alone."""
        if isinstance(node.value, ast.Call):
            self.replace(node, "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Drop it."""
        self.replace(node, "pass")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Drop it; what it says is left alone."""
        self.replace(node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        """Go on."""
        self.replace(node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        """Go on."""
        self.replace(node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        """Answer nothing; true and false are turned round as constants."""
        if node.value is None:
            self.replace(node, "pass")
        elif not isinstance(node.value, ast.Constant):
            self.replace(node, "return None")
            self.visit(node.value)
        else:
            self.visit(node.value)

    # --- conditions --------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> None:
        """Turn a bare condition round; leave what only a type checker reads."""
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.condition(node.test)
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Turn a bare condition round."""
        self.condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        """Turn a bare condition round."""
        self.condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Turn bare conditions round."""
        for test in node.ifs:
            self.condition(test)
        self.generic_visit(node)

    def condition(self, test: ast.expr) -> None:
        """Turn it round, unless it is built of parts that are edited themselves."""
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        if not negated and not isinstance(test, (ast.Compare, ast.BoolOp)):
            self.replace(test, f"not ({self.text(test)})")

    def visit_Compare(self, node: ast.Compare) -> None:
        """Move its boundary, and turn it round."""
        sides = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
            written, *others = COMPARISONS[type(op)]
            for other in others:
                self.between(left, right, written, other)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Leave out each part, and swap `and` and `or`."""
        both = isinstance(node.op, ast.And)
        for value in node.values:
            if not isinstance(value, (ast.Constant, ast.Dict, ast.List, ast.Tuple)):
                self.replace(value, str(both))
        written, other = ("and", "or") if both else ("or", "and")
        parts = [self.text(node.values[0])]
        for left, right in zip(node.values, node.values[1:], strict=False):
            gap = slice_text(self.source, self.span(left)[1], self.span(right)[0])
            parts += [re.sub(rf"\b{written}\b", other, gap, count=1), self.text(right)]
        self.replace(node, f"({''.join(parts)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Drop `not` and the sign."""
        if isinstance(node.op, (ast.Not, ast.USub)):
            self.put(self.span(node)[0], self.span(node.operand)[0], "")
        self.generic_visit(node)

    # --- values ------------------------------------------------------------------------------

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Swap the operation."""
        if type(node.op) in ARITHMETIC:
            self.between(node.left, node.right, *ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Change truth and numbers; texts are left alone."""
        value = node.value
        if isinstance(value, bool):
            self.replace(node, str(not value))
        elif isinstance(value, int):
            self.replace(node, str(value + 1 if value <= 10 else value * 2))
        elif isinstance(value, float):
            self.replace(node, repr(value * 2 or 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        """Call the opposite; drop a named argument."""
        called = node.func
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if name in PLAIN:
            return
        if name in NAMES:
            end = self.span(called)[1]
            self.put(end - len(name), end, NAMES[name])
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in TEXTS:
                begin, end = self.span(keyword)
                comma = re.match(rb"\s*,", self.source[end:])
                self.put(begin, end + (comma.end() if comma else 0), "")
            if keyword.arg not in TEXTS:
                self.visit(keyword.value)
        for part in (called, *node.args):
            self.visit(part)

    def between(self, left: ast.AST, right: ast.AST, written: str, other: str) -> None:
        """Replace an operator between two operands."""
        begin, end = self.span(left)[1], self.span(right)[0]
        gap = slice_text(self.source, begin, end)
        pattern = r"\s+".join(map(re.escape, written.split()))
        if found := re.search(pattern, gap):
            self.put(begin + found.start(), begin + found.end(), other)
