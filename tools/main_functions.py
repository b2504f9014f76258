"""Does the test file of each module fail if the main function of the module returns None?

    python tools/main_functions.py                # all modules of more than 60 lines
    python tools/main_functions.py io text/shards # those of a package, or one

The main function is the public function or method with the most lines, unless MAIN_FUNCTIONS names
another one. Each module costs a run of its test file up to the first failure.
"""

import ast
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bertworks"
MIN_LINES = 60
# By the path of the module in the package.
MAIN_FUNCTIONS = {"text/corpus.py": "CorpusReader.read"}
VARIABLE = "BERTWORKS_RETURNS_NONE"  # "name.of.module:function", for the process of the tests


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with a function that does nothing."""

    function = ""

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        tree = ast.parse(Path(self.path).read_text(encoding="utf-8"))
        for name, node in _functions(tree):
            if name == self.function:
                node.body = ast.parse("return None").body
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module that VARIABLE names."""

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        module, _, function = os.environ[VARIABLE].partition(":")
        if fullname != module:
            return None
        file = ROOT.joinpath(*fullname.split(".")).with_suffix(".py")
        loader = _Loader(fullname, str(file))
        loader.function = function
        return importlib.machinery.ModuleSpec(fullname, loader, origin=str(file))


if VARIABLE in os.environ:  # this file is also a plugin of the runs that it starts
    sys.meta_path.insert(0, _Finder())


def _functions(tree: ast.Module) -> list[tuple[str, ast.FunctionDef]]:
    """Return the public functions and methods of a module by their qualified names."""
    functions = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            functions.append((node.name, node))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            functions += [
                (f"{node.name}.{method.name}", method)
                for method in node.body
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
            ]
    return functions


def main_function(path: Path) -> str | None:
    """Return the qualified name of the main function of a module, or None if it has none."""
    key = path.relative_to(PACKAGE).as_posix()
    if key in MAIN_FUNCTIONS:
        return MAIN_FUNCTIONS[key]
    functions = _functions(ast.parse(path.read_text(encoding="utf-8")))
    if not functions:
        return None
    return max(functions, key=lambda item: (item[1].end_lineno or 0) - item[1].lineno)[0]


def fails_without(path: Path, function: str) -> bool:
    """Return whether the test file of a module fails if this function returns None."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    test = (ROOT / "tests" / path.relative_to(PACKAGE)).with_name(f"test_{path.name}")
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-p", "main_functions", "-m", "not slow", str(test)]
    environment = os.environ | {"PYTHONPATH": paths, VARIABLE: f"{name}:{function}"}
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False)
    return run.returncode != 0


def main() -> None:
    chosen = [word.removesuffix(".py") for word in sys.argv[1:]]
    total, failing = 0, 0
    for path in sorted(PACKAGE.rglob("*.py")):
        key = path.relative_to(PACKAGE).with_suffix("").as_posix()
        is_chosen = not chosen or any(f"{key}/".startswith(f"{word}/") for word in chosen)
        if len(path.read_text(encoding="utf-8").splitlines()) <= MIN_LINES or not is_chosen:
            continue
        total += 1
        function = main_function(path)
        test = (ROOT / "tests" / path.relative_to(PACKAGE)).with_name(f"test_{path.name}")
        if not test.exists():
            verdict = "no test file"
        elif function is None:
            verdict = "no public function"
        elif fails_without(path, function):
            failing += 1
            continue
        else:
            verdict = f"passes without {function}"
        print(f"{key}: {verdict}", flush=True)
    print(f"{failing} of {total} test files fail if the main function returns None")


if __name__ == "__main__":
    main()
