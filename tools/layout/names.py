"""The rules of names and docstrings: what they are called, and how the first line begins."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from tools.layout.modules import Module
from tools.layout.tree import Tree

FILLERS = frozenset(
    re.findall(
        r"\w+",
        """
        asked every found given held known left made one ones others own rest said some taken
        told wanted what
        """,
    )
)
"""Words that say nothing alone: of a function, parameter, variable or attribute."""

_PARTICIPLES = frozenset(
    re.findall(
        r"\w+",
        """
        begun bought broken brought built caught chosen done drawn driven felt frozen gone
        hidden kept lost met paid seen sent shown sold spent taught thought written
        """,
    )
)
"""Irregular ones that no verb is spelled like, beside those in `FILLERS`."""

_VERBS_IN_ED = frozenset(
    re.findall(r"\w+", "bleed breed embed exceed feed need proceed seed shed speed")
)

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


class Interfaces:
    """Names that are not ours to choose, derived from the code.

    Third parties implement the plugin classes and what these speak of: every class that a public
    member of one names in its annotations, protocols likewise. Fields of a request are options
    and keys of settings files. Fields of results and of what is decoded from a file are written.
    """

    def __init__(self, tree: Tree) -> None:
        self._classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
        self._protocols: set[str] = set()
        self._starts: set[str] = set()
        plugins = {f"{tree.root.name}.{folder}" for folder in tree.limits.plugin_folders}
        for name, module in tree.modules.items():
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    self._add_class(node, is_plugin=name.rpartition(".")[0] in plugins)
                elif isinstance(node, ast.Call) and _is_decoding(node):
                    self._add_decoded(module, node.args[0])
        for node in ast.walk(tree.modules[tree.root.name].tree):
            if isinstance(node, ast.ImportFrom):
                self._starts |= {alias.name for alias in node.names if alias.name[:1].isupper()}

    def _add_class(self, node: ast.ClassDef, *, is_plugin: bool) -> None:
        bases = set(_base_names(node))
        self._classes[node.name].append(node)
        if "Protocol" in bases:
            self._protocols.add(node.name)
        written = _is_request(node) or not bases.isdisjoint(("Protocol", "Result", "TableResult"))
        if written or ("Plugin" in bases and not is_plugin):
            self._starts.add(node.name)

    def _add_decoded(self, module: Module, kind: ast.expr) -> None:
        """Add the classes that a call decodes: those it names, or those of a table it names."""
        self._starts |= set(_class_names(kind))
        tables = {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)}
        for statement in module.tree.body:
            if not tables.isdisjoint(_targets(statement)):
                self._starts |= set(_class_names(statement))

    @cached_property
    def members(self) -> dict[str, set[str]]:
        """Class -> names of its public fields and methods, of all classes that are interfaces."""
        members: dict[str, set[str]] = {}
        pending = sorted(self._starts)
        while pending:
            name = pending.pop()
            if name in members or name not in self._classes:
                continue
            members[name] = set()
            for cls in self._classes[name]:
                pending += _base_names(cls)
                for node in cls.body:
                    for member, notes in _members(cls, node):
                        if not member.startswith("_"):
                            members[name].add(member)
                        pending += [n for note in notes for n in _class_names(note)]
        return members

    def owns(self, cls: str, member: str) -> bool:
        """Whether a class has a member from an interface, its own or one that it derives from.

        What a protocol names belongs to it in every class: no base says which ones satisfy it.
        """
        if any(member in self.members.get(protocol, ()) for protocol in self._protocols):
            return True
        pending, seen = [cls], set[str]()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if member in self.members.get(name, ()):
                return True
            pending += [base for node in self._classes.get(name, ()) for base in _base_names(node)]
        return False


def _members(cls: ast.ClassDef, node: ast.stmt) -> Iterator[tuple[str, list[ast.expr]]]:
    """Yield a public member that a statement of a class body defines, with its annotations."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, [node.annotation]
    elif isinstance(node, _FUNCTION) and (
        not node.name.startswith("_") or node.name in ("__call__", "__getitem__")
    ):
        arguments = [*node.args.args, *node.args.kwonlyargs]
        yield node.name, [a for a in (node.returns, *(x.annotation for x in arguments)) if a]
    elif isinstance(node, _FUNCTION) and node.name == "__init__":
        for argument in (*node.args.args, *node.args.kwonlyargs):
            yield argument.arg, []


def _targets(node: ast.stmt) -> set[str]:
    """Return the names that an assignment binds; none of any other statement."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets += [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _base_names(cls: ast.ClassDef) -> list[str]:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in cls.bases]
    return [ast.unparse(base).rpartition(".")[2] for base in bases]


def _class_names(annotation: ast.AST) -> list[str]:
    """Return the capitalized names of an annotation, those in quotes too."""
    names = []
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.append(node.value.rpartition(".")[2])
        elif isinstance(node, ast.Name):
            names.append(node.id)
        elif isinstance(node, ast.Attribute):
            names.append(node.attr)
    return [name for name in names if name[:1].isupper()]


def _is_request(cls: ast.ClassDef) -> bool:
    return any(ast.unparse(decorator) == "request" for decorator in cls.decorator_list)


def _is_decoding(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    return bool(call.args) and name in ("decode", "build_dataclass")


def filler_names(tree: Tree) -> Iterator[tuple[str, str]]:
    """Functions, parameters, variables and attributes that are called by a word alone."""
    interfaces = Interfaces(tree)
    for name, module in tree.modules.items():
        for cls, node, word in _named(module):
            if word.strip("_") in FILLERS and not interfaces.owns(cls, word):
                yield name, f"line {getattr(node, 'lineno', 0)}: '{word}' says nothing alone"


def participles(tree: Tree) -> Iterator[tuple[str, str]]:
    """Functions and methods that begin with a participle; properties are values."""
    interfaces = Interfaces(tree)
    for name, module in tree.modules.items():
        for cls, node, word in _named(module):
            if not isinstance(node, _FUNCTION) or _is_property(node) or word.startswith("__"):
                continue
            first = word.strip("_").partition("_")[0]
            participle = first in FILLERS | _PARTICIPLES or (
                first.endswith("ed") and first not in _VERBS_IN_ED
            )
            if participle and not interfaces.owns(cls, word):
                yield name, f"line {node.lineno}: {word}() begins with a participle, not a verb"


def _named(module: Module) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield the class around, the node and the name of all that a module names."""
    pending: list[tuple[str, ast.AST]] = [("", module.tree)]
    while pending:
        cls, parent = pending.pop()
        for node in ast.iter_child_nodes(parent):
            inside = node.name if isinstance(node, ast.ClassDef) else cls
            pending.append((inside, node))
            if isinstance(node, _FUNCTION):
                yield cls, node, node.name
            elif isinstance(node, ast.arg):
                yield cls, node, node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield cls, node, node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield cls, node, node.attr


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any("property" in d or d.endswith(".setter") for d in decorators)


def same_functions(tree: Tree) -> Iterator[tuple[str, str]]:
    """Public functions of one name, but for those that a module has for whoever runs it."""
    places = defaultdict(list)
    for name, module in tree.modules.items():
        for node in module.tree.body:
            if (
                isinstance(node, _FUNCTION)
                and not node.name.startswith("_")
                and node.name not in tree.limits.entry_points
                and not _is_command(node)
            ):
                places[node.name].append(name)
    for function, homes in sorted(places.items()):
        if len(homes) > 1:
            yield homes[0], f"{function}() is defined in {', '.join(homes[1:])} too"


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is a worker's task, which is called by its name over a pipe."""
    first = next(iter(node.args.args), None)
    return (
        first is not None
        and first.annotation is not None
        and (ast.unparse(first.annotation) == "Workbench")
    )


_HALF = frozenset(re.findall(r"\w+", "And As But Of So With"))
"""First words of what is no sentence without the name that it stands under."""


def half_sentences(tree: Tree) -> Iterator[tuple[str, str]]:
    """Docstrings whose first paragraph is no sentence: no capital, no stop, or half a phrase."""
    for name, module in tree.modules.items():
        for node in module.nodes:
            if not isinstance(node, (ast.ClassDef, *_FUNCTION)):
                continue
            text = ast.get_docstring(node)
            if not text:
                continue
            first = " ".join(text.partition("\n\n")[0].split())
            word = first.partition(" ")[0]
            small = word.isalpha() and word[0].islower() and len(word) > 1
            if first[-1] not in ".:?!" or small or word in _HALF:
                yield name, f"line {node.lineno}: no sentence by itself: {first}"
