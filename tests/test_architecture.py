"""The architecture, as tests: layers, sizes, names, and calls that belong in one place only."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = _ROOT / "src" / "tidemill"
_TESTS = _ROOT / "tests"

_FILE_LINES_MAX = 400
_FUNCTION_LINES_MAX = 60
_HEADLESS_LINES_MAX = 20
_EMPTY_NAMES = {"utils", "common", "helpers", "misc", "manager", "base", "impl"}
# rocksdict raises nothing but `Exception`, which the one module that calls it turns into an error. What is
# raised in a client's own thread is raised again in the task that waits for it. A broker process that
# cannot open must end, whatever the error is.
_MAY_CATCH_EVERYTHING = {
    "broker/loop.py",
    "server/process/broker_process.py",
    "server/grpc/gateway.py",
    "log/sorted_keys.py",
    "client/transport/blocking_calls.py",
}
_MAY_BE_ASYNC = {"server", "client", "cli", "embedded"}
_MAY_ASK_THE_TIME = {"core/clock.py"}
_MAY_USE_DATETIME = {"core/clock.py", "core/durations.py"}
# What a user asks for by name, generated stubs, and what Spark's workers load before they are forked.
_MAY_IMPORT_BY_NAME = {
    "core/lazy.py",
    "cli/catalogue.py",
    "server/grpc/protocol.py",
    "pipeline/worker_daemon.py",
}

_MODULES = sorted(path.relative_to(_PACKAGE).as_posix() for path in _PACKAGE.rglob("*.py"))


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse((_PACKAGE / module).read_text())


def _each_node(allowed: set[str]) -> Iterator[tuple[str, ast.AST]]:
    """Every syntax node of every module, but for the modules (or layers) in `allowed`."""
    for module in _MODULES:
        if module not in allowed and module.split("/")[0] not in allowed:
            for node in ast.walk(_tree(module)):
                yield module, node


def _where(module: str, node: ast.AST) -> str:
    return f"{module}:{getattr(node, 'lineno', 0)}"


def test_imports_point_down() -> None:
    # In a process of its own: the linter switches off the loggers of the one it runs in.
    linter = Path(sys.executable).with_name("lint-imports")
    said = subprocess.run([linter, "--no-cache", "--no-logo"], cwd=_ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("module", _MODULES)
def test_a_file_holds_one_idea(module: str) -> None:
    line_count = len((_PACKAGE / module).read_text().splitlines())
    assert line_count <= _FILE_LINES_MAX
    if line_count > _HEADLESS_LINES_MAX:
        assert ast.get_docstring(_tree(module)), "say at the top what the module owns and keeps true"


def test_functions_fit_on_a_screen() -> None:
    too_long = [
        f"{_where(module, node)} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for module, node in _each_node(set())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > _FUNCTION_LINES_MAX
    ]
    assert not too_long


def test_module_names_say_what_they_own() -> None:
    empty = [module for module in _MODULES if _EMPTY_NAMES & set(Path(module).with_suffix("").parts)]
    empty += [module for module in _MODULES if _EMPTY_NAMES & set(Path(module).stem.split("_"))]
    assert not empty


def test_every_package_has_an_init() -> None:
    folders = {(_PACKAGE / module).parent for module in _MODULES}
    assert not [folder.name for folder in folders if not (folder / "__init__.py").exists()]


def test_init_files_only_describe_and_export() -> None:
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    busy = [
        _where(module, node)
        for module in _MODULES
        if module.endswith("__init__.py")
        for node in _tree(module).body
        if not isinstance(node, allowed)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert not busy


def _swallows_everything(node: ast.AST) -> bool:
    """A handler for any exception at all that does not raise it again at its end."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    names = {"" if kind is None else ast.unparse(kind) for kind in caught}
    last = node.body[-1]
    return bool(names & {"", "Exception", "BaseException"}) and not (
        isinstance(last, ast.Raise) and last.exc is None
    )


def test_only_the_loop_and_the_gateway_catch_everything() -> None:
    found = [
        _where(module, node)
        for module, node in _each_node(_MAY_CATCH_EVERYTHING)
        if _swallows_everything(node)
    ]
    assert not found


def test_async_stays_in_the_outer_layers() -> None:
    kinds = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    found = [_where(module, node) for module, node in _each_node(_MAY_BE_ASYNC) if isinstance(node, kinds)]
    assert not found


def _imported_modules(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {node.module or ""}
    return set()


def _name_of(module: str) -> str:
    return ".".join(("tidemill", *Path(module).with_suffix("").parts)).removesuffix(".__init__")


def _dependencies() -> dict[str, set[str]]:
    """What each module refers to: by imports wherever they stand, and by the name of a module in a string."""
    names = set(map(_name_of, _MODULES))
    found: dict[str, set[str]] = {name: set() for name in names}
    for module, node in _each_node(set()):
        said = _imported_modules(node)
        if isinstance(node, ast.ImportFrom):
            said |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            said = {node.value.partition(":")[0]}
        found[_name_of(module)] |= said & names - {_name_of(module), "tidemill"}
    return found


def test_no_import_hides_a_cycle() -> None:
    left = _dependencies()
    while leaves := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in leaves}
    assert not left, "move what both need down instead of importing late or by name"


def test_modules_are_imported_by_name_only_in_few_places() -> None:
    found = [
        _where(module, node)
        for module, node in _each_node(_MAY_IMPORT_BY_NAME)
        if isinstance(node, ast.Name | ast.Attribute)
        and ast.unparse(node) in {"import_module", "importlib.import_module", "__import__"}
    ]
    assert not found


def test_types_alone_import_nothing_of_ours() -> None:
    found = [
        _where(module, inner)
        for module, node in _each_node(set())
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
        if any(name.startswith("tidemill") for name in _imported_modules(inner))
    ]
    assert not found


def test_only_the_clock_asks_the_time() -> None:
    found = [
        _where(module, node)
        for module, node in _each_node(_MAY_ASK_THE_TIME)
        if "time" in _imported_modules(node)
    ]
    found += [
        _where(module, node)
        for module, node in _each_node(_MAY_USE_DATETIME)
        if "datetime" in _imported_modules(node)
    ]
    found += [
        _where(module, node)
        for module, node in _each_node(_MAY_ASK_THE_TIME)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
    ]
    assert not found


def _skips(path: Path) -> Iterator[tuple[str, bool]]:
    """Where a test module skips or expects failure, and whether it says why there."""
    tree = ast.parse(path.read_text())
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    marks = {"skip", "skipif", "xfail", "importorskip"}
    for node in ast.walk(tree):
        is_mark = isinstance(node, ast.Attribute) and node.attr in marks
        if is_mark and ast.unparse(node).startswith("pytest."):
            call = calls.get(id(node))
            says_why = call is not None and (
                any(keyword.arg == "reason" for keyword in call.keywords)
                or (ast.unparse(node) == "pytest.skip" and len(call.args) == 1)
            )
            yield _where(path.name, node), says_why


def test_every_skip_says_why() -> None:
    silent = [
        where for path in sorted(_TESTS.rglob("*.py")) for where, says_why in _skips(path) if not says_why
    ]
    assert not silent


def test_no_test_sleeps() -> None:
    found = [
        _where(path.name, node)
        for path in sorted(_TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep"
    ]
    assert not found, "move a ManualClock instead"


def test_only_the_store_touches_its_writer_and_indexes() -> None:
    found = [
        _where(module, node)
        for module, node in _each_node({"store"})
        if isinstance(node, ast.Attribute)
        and node.attr in {"writer", "indexes"}
        and ast.unparse(node.value).split(".")[-1].lstrip("_") == "store"
    ]
    assert not found, "use `with store.write()`, `with store.read()` and the queries of the store"
