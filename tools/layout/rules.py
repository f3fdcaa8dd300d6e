"""The rules, one function each: it yields the files that break it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tools.layout import names
from tools.layout.modules import Module, private_uses, read_modules
from tools.layout.tree import Tree


@dataclass(frozen=True, order=True)
class Violation:
    """One rule that one file breaks."""

    rule: str
    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.rule}: {self.what}"


Rule = Callable[[Tree], Iterator[tuple[str, str]]]


def long_files(tree: Tree) -> Iterator[tuple[str, str]]:
    """Files with too many lines."""
    for name, module in tree.modules.items():
        if len(module.lines) > tree.limits.file:
            yield name, f"{len(module.lines)} lines, at most {tree.limits.file}"


def long_functions(tree: Tree) -> Iterator[tuple[str, str]]:
    """Functions with too many lines."""
    for name, module in tree.modules.items():
        for function, length in module.functions:
            if length > tree.limits.function:
                yield name, f"{function} has {length} lines, at most {tree.limits.function}"


def first_lines(tree: Tree) -> Iterator[tuple[str, str]]:
    """Modules whose docstring begins with a long line, or that have none."""
    for name, module in tree.modules.items():
        line = (ast.get_docstring(module.tree) or "").partition("\n")[0]
        if not line:
            yield name, "no docstring"
        elif len(line) > tree.limits.first_line:
            yield name, f"{len(line)} characters, at most {tree.limits.first_line}: {line}"


def machinery(tree: Tree) -> Iterator[tuple[str, str]]:
    """Private modules in folders that list plugins or verbs."""
    folders = {*tree.limits.plugin_folders, *tree.limits.listings}
    for name in tree.modules:
        folder, _, module = name.partition(".")[2].rpartition(".")
        if folder in folders and module.startswith("_"):
            yield name, "a private module: what they share stands in a sub-package"


def importing_plugins(tree: Tree) -> Iterator[tuple[str, str]]:
    """Plugins that import a plugin of their own folder."""
    for folder in tree.limits.independent:
        home = f"{tree.root.name}.{folder}"
        plugins = {
            name
            for name, module in tree.modules.items()
            if name.rpartition(".")[0] == home and not module.is_package
        }
        for name in sorted(plugins):
            for target in sorted(tree.graph[name] & plugins):
                yield name, f"imports {target}: a plugin is found by its role"


def same_names(tree: Tree) -> Iterator[tuple[str, str]]:
    """Public classes and functions of one name."""
    places = defaultdict(list)
    for name, module in tree.modules.items():
        for cls in module.classes:
            places[cls].append(name)
    for cls, found in sorted(places.items()):
        if len(found) > 1 and not cls.startswith("_"):
            yield found[0], f"class {cls} is defined in {', '.join(found[1:])} too"
    yield from names.same_functions(tree)


def circles(tree: Tree) -> Iterator[tuple[str, str]]:
    """Modules that import each other, directly or through others, be it for types alone."""
    left = dict(tree.typed_graph)
    while idle := [name for name in left if not left.keys() & left[name]]:
        for name in idle:
            del left[name]
    seen: set[str] = set()
    for name in sorted(left):
        if name not in seen and (path := _path(left, name)):
            seen |= {one for one in _reached(left, name) if name in _reached(left, one)}
            yield name, " -> ".join(path)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found, rest = set[str](), [start]
    while rest:
        more = graph.get(rest.pop(), set()) - found
        found |= more
        rest += more
    return found


def _path(graph: Mapping[str, set[str]], start: str) -> list[str]:
    """Return the shortest way from a module back to itself, empty where there is none."""
    paths, seen = [[start]], set[str]()
    for path in paths:
        for target in sorted(graph.get(path[-1], ())):
            if target == start:
                return [*path, target]
            if target not in seen:
                seen.add(target)
                paths.append([*path, target])
    return []


def upward(tree: Tree) -> Iterator[tuple[str, str]]:
    """Imports of a higher floor, or of another package on the same."""
    for contract in tree.contracts:
        floors = tree.floors(contract)
        for name, targets in tree.graph.items():
            for target in sorted(targets):
                home, other = _home(floors, name), _home(floors, target)
                if home and other and home != other and floors[other] <= floors[home]:
                    yield name, f"imports {target}, which is not below"


def _home(floors: Mapping[str, int], name: str) -> str:
    while name and name not in floors:
        name = name.rpartition(".")[0]
    return name


def floorless(tree: Tree) -> Iterator[tuple[str, str]]:
    """Packages that no layers contract names, though it names their neighbours."""
    packages = {name for name, module in tree.modules.items() if module.is_package}
    for contract in tree.contracts:
        floors = tree.floors(contract)
        for container in {name.rpartition(".")[0] for name in floors}:
            for name in sorted(packages - set(floors)):
                if name.rpartition(".")[0] == container != "":
                    yield name, f"not in the layers of {container} in pyproject.toml"


def own_root(tree: Tree) -> Iterator[tuple[str, str]]:
    """Imports of the package's own ``__init__``."""
    for name in tree.modules:
        if tree.root.name in tree.graph[name]:
            yield name, f"imports {tree.root.name} itself"


def private_names(tree: Tree) -> Iterator[tuple[str, str]]:
    """Tests that use private names of the package."""
    for file in read_modules(tree.project / "tests").values():
        for use in private_uses(file, tree.modules):
            yield str(file.path.relative_to(tree.project)), use


def requests_below_doors(tree: Tree) -> Iterator[tuple[str, str]]:
    """Parameters and fields that take a verb's request outside the modules that may.

    These define a request class, make the verb of one or are it, with a function `run`, or are the
    command line's. What takes any request, the base class, is machinery of requests.
    """
    kinds, doors = _find_request_classes(tree), set[str]()
    for name, module in tree.modules.items():
        imported = {target.rpartition(".")[2] for target in module.imports}
        defined = {node.name for node in module.tree.body if isinstance(node, ast.FunctionDef)}
        if (
            imported & {"make_verb", "request"}
            or "run" in defined
            or _is_within(tree, name, tree.limits.doors)
        ):
            doors.add(name)
    for name, module in tree.modules.items():
        for place, annotation in _list_annotations(module) if name not in doors else ():
            for kind in sorted(_names_in(annotation) & kinds):
                yield name, f"{place} is a {kind}, which its verb takes apart"


def _find_request_classes(tree: Tree) -> set[str]:
    """Return the names of the classes that are decorated as requests."""
    return {
        node.name
        for module in tree.modules.values()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and node.name != "Request"
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Name) and decorator.id == "request"
    }


def _is_within(tree: Tree, name: str, packages: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{tree.root.name}.{package}.") for package in packages)


def _list_annotations(module: Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield where something is annotated, and how: parameters, and fields of classes."""
    for node in module.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if arg.annotation is not None:
                    yield f"{arg.arg} of {node.name}", arg.annotation
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign):
                    yield f"{ast.unparse(item.target)} of {node.name}", item.annotation


def _names_in(annotation: ast.expr) -> set[str]:
    nodes = list(ast.walk(annotation))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


def small_modules(tree: Tree) -> Iterator[tuple[str, str]]:
    """Short modules that only one sibling imports, but for plugins, verbs and stated reasons."""
    folders = (*tree.limits.plugin_folders, *tree.limits.listings)
    free = {f"{tree.root.name}.{folder}" for folder in folders}
    importers = defaultdict(set)
    for name, targets in tree.graph.items():
        for target in targets:
            importers[target].add(name)
    for name, module in tree.modules.items():
        home, users = name.rpartition(".")[0], importers[name]
        joined = len(users) == 1 and {user.rpartition(".")[0] for user in users} == {home}
        if (
            not joined
            or module.is_package
            or home in free
            or len(module.lines) >= tree.limits.least
        ):
            if name in tree.limits.small:
                yield name, "needs no reason to be short any more"
        elif name not in tree.limits.small:
            yield name, f"{len(module.lines)} lines, and only {next(iter(users))} imports it"


def child_interpreters(tree: Tree) -> Iterator[tuple[str, str]]:
    """Ways to start Python, or any process, past the module that starts it in safe-path mode."""
    for name, module in tree.modules.items():
        if name == f"{tree.root.name}.{tree.limits.interpreter}":
            continue
        for node in module.nodes:
            if way := _find_start(node):
                yield name, f"line {node.lineno}: {way}: use make_python_command"  # type: ignore[attr-defined]


def _find_start(node: ast.AST) -> str:
    """Return how a node gets at an interpreter or starts a process; empty where it does not."""
    match node:
        case ast.Constant(value=str(text)) if "sys.executable" in text:
            return "sys.executable in a text"
        case ast.Attribute(value=ast.Name(id="sys"), attr="executable" | "_base_executable"):
            return "sys.executable"
        case ast.Attribute(value=ast.Name(id="os"), attr=attribute) if _STARTS.match(attribute):
            return f"os.{attribute}"
        case ast.List(elts=items) | ast.Tuple(elts=items) if any(
            isinstance(item, ast.Constant) and item.value in ("-m", "-c") for item in items[1:]
        ):
            return "the words of an interpreter"
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            words = {alias.name.partition(".")[0] for alias in names}
            words.add((getattr(node, "module", "") or "").partition(".")[0])
            found = words & {"multiprocessing", "ProcessPoolExecutor", "executable"}
            return f"import of {found.pop()}" if found else ""
    return ""


def temporary_folders(tree: Tree) -> Iterator[tuple[str, str]]:
    """Temporary folders beside the module whose folders go where their process was killed."""
    for name, module in tree.modules.items():
        if name == f"{tree.root.name}.{tree.limits.temporary}":
            continue
        for node in module.nodes:
            if isinstance(node, ast.Call) and "dir" not in {word.arg for word in node.keywords}:
                called = ast.unparse(node.func).rpartition(".")[2]
                if called in ("TemporaryDirectory", "mkdtemp"):
                    yield name, f"line {node.lineno}: {called}: use open_temporary_folder"


_STARTS = re.compile(r"exec|spawn|posix_spawn|fork|system$|popen$")

RULES: Mapping[str, Rule] = {
    "long file": long_files,
    "long function": long_functions,
    "first line": first_lines,
    "no plugin": machinery,
    "plugin imports plugin": importing_plugins,
    "same name": same_names,
    "import circle": circles,
    "upward import": upward,
    "no floor": floorless,
    "imports the root": own_root,
    "private name in a test": private_names,
    "request below its door": requests_below_doors,
    "filler": names.filler_names,
    "participle": names.participles,
    "half a sentence": names.half_sentences,
    "small module": small_modules,
    "child interpreter": child_interpreters,
    "temporary folder": temporary_folders,
}


def check(tree: Tree, *rules: str) -> list[Violation]:
    """Return the violations of some rules, or of all."""
    return sorted(
        Violation(rule, _file(tree, place), what)
        for rule in rules or RULES
        for place, what in RULES[rule](tree)
    )


def _file(tree: Tree, place: str) -> str:
    return str(tree.modules[place].path) if place in tree.modules else place
