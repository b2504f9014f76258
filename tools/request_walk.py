"""Follow one value through the text of a package: the request of a fine-tuning, from
`finetune_events` to the network.

    python tools/request_walk.py [FUNCTION PARAMETER]    prints the stays of the walk

Nothing is run. The walk begins with a parameter of a function, and follows the value in the order
of the text, branch after branch, into each function of the package that gets it. What is followed
is the value as a whole, each of its fields (`request.data`), and lists and dictionaries that hold
them; what is inside a field is another value. They are followed through

- variables and attributes that they are assigned to;
- copies and conversions (KEEPING): `replace(request, ...)`, `Path(request.data)`, `vars(request)`;
- results of functions of the package that return them;
- methods that a protocol names: those of the class of the value at the beginning.

They are not followed into comparisons, sums and texts, nor into what else a function computes from
them, nor into `errors`: checks and messages lead nowhere. The walk ends where a value is put into
an attribute of an object: other methods of that object are not searched. Functions of other
libraries, and functions that are themselves values, are not entered. A function that the walk
enters a second time with the same parameters is passed, but not searched again.

- times handed on: how often a call passes the value, or a field of it, to a function or class of
  the package.
- modules: those with a function that gets it.
- names: how many different names of variables, parameters and attributes hold it or a field. `self`
  is none.
- climbs: how often it is used in a package that stands higher than the one in which it was used
  last. A package stands higher than all that it imports; packages that do not import each other may
  stand equally high. So a call is no climb, but the next use after it may be one.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1] / "bertworks"
START = ("finetune_events", "request")
# Functions whose result is their argument, or holds it.
KEEPING = frozenset(
    "replace copy deepcopy str Path tuple list dict set frozenset sorted reversed iter next cast "
    "vars asdict enumerate "
    "zip filter".split()
)
# Methods of the value, or of a list or dictionary that holds it, whose result is a part of it.
KEEPING_METHODS = frozenset("items values keys get pop copy".split())
# Methods that the types of Python have: a call of one says nothing about the class of the object.
COMMON_METHODS = frozenset(
    name
    for kind in (str, bytes, list, dict, tuple, set, frozenset, int, float, Path)
    for name in dir(kind)
)
PAIRING = frozenset(("items", "zip", "enumerate"))  # functions that put elements into tuples
LEFT_OUT = {"errors"}  # modules into which the walk does not follow
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Content(IntEnum):
    """What a name or an expression is to the walk. Where it may be several of these, the largest
    counts."""

    NOTHING = 0  # another value
    FIELD = 1  # a field of the followed value
    HOLDER = 2  # a list or dictionary of fields or whole values
    WHOLE = 3  # the followed value


@dataclass(frozen=True)
class Function:
    """A function or method of the package. owner: the name of its class, or ""."""

    module: str
    owner: str
    node: FunctionNode

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class Class:
    """A class of the package."""

    module: str
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name


Definition = Function | Class


@dataclass(frozen=True)
class Stay:
    """A stretch of the walk within one module. climbs: whether the walk came up to it."""

    module: str
    function: str
    climbs: bool


@dataclass
class Walk:
    """What the walk met; see the top of this file."""

    stays: list[Stay] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    hand_overs: int = 0

    @property
    def climbs(self) -> int:
        return sum(stay.climbs for stay in self.stays)


class Package:
    """The definitions of a package, and which of them a name means in a module."""

    def __init__(self, root: Path):
        self.name = root.name
        self.trees: dict[str, ast.Module] = {}
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            self.trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(
                path.read_text(encoding="utf-8")
            )
        self._definitions = {
            name: dict(definitions(name, tree)) for name, tree in self.trees.items()
        }
        self._imports = {name: self._imports_of(tree) for name, tree in self.trees.items()}

    def _imports_of(self, tree: ast.Module) -> dict[str, tuple[str, str]]:
        """The names that a module imports from this package: each with a module, and a name in it
        or ""."""
        imports = {}
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
                continue
            first, _, base = node.module.partition(".")
            if first != self.name:
                continue
            for alias in node.names:
                whole = f"{base}.{alias.name}".removeprefix(".")
                place = (whole, "") if whole in self.trees else (base, alias.name)
                imports[alias.asname or alias.name] = place
        return imports

    @cached_property
    def floors(self) -> dict[str, int]:
        """How high each package, or module at the top level, stands: above all that it imports."""
        below: dict[str, set[str]] = {}
        for module, imports in self._imports.items():
            if module:  # the module of the whole package only hands on names
                here = package_of(module)
                below.setdefault(here, set()).update(
                    {package_of(name) for name, _ in imports.values()} - {here, ""}
                )
        floors: dict[str, int] = {}

        def floor(name: str, above: tuple[str, ...] = ()) -> int:
            if name not in floors:
                under = [
                    floor(part, (*above, name))
                    for part in sorted(below.get(name, ()))
                    if part not in above
                ]
                floors[name] = 1 + max(under, default=0)
            return floors[name]

        for name in sorted(below):
            floor(name)
        return floors

    def find(self, module: str, name: str) -> Definition | None:
        """What a plain name means in a module: a function or class of the package, or None."""
        if name in self._definitions.get(module, {}):
            return self._definitions[module][name]
        target, attribute = self._imports.get(module, {}).get(name, ("", ""))
        return self.find(target, attribute) if attribute and target != module else None

    def find_in_module(self, module: str, alias: str, name: str) -> Definition | None:
        """What `alias.name` means in a module, if `alias` is a module of the package."""
        target, attribute = self._imports.get(module, {}).get(alias, ("", ""))
        return self.find(target, name) if target and not attribute else None

    def method(self, kind: Class, name: str) -> Function | None:
        """A method of a class, or of the classes of the package from which it inherits."""
        for node in kind.node.body:
            if isinstance(node, FunctionNode) and node.name == name:
                return Function(kind.module, kind.name, node)
        for base in kind.node.bases:
            parent = self.find(kind.module, base.id) if isinstance(base, ast.Name) else None
            if isinstance(parent, Class) and (method := self.method(parent, name)):
                return method
        return None

    @cached_property
    def methods(self) -> dict[str, list[Function]]:
        """All methods of the package by their names."""
        methods: dict[str, list[Function]] = {}
        for module, members in self._definitions.items():
            for kind in members.values():
                if isinstance(kind, Class):
                    for node in kind.node.body:
                        if isinstance(node, FunctionNode):
                            methods.setdefault(node.name, []).append(
                                Function(module, kind.name, node)
                            )
        return methods

    def function(self, name: str) -> Function:
        """The only function of this name at the top of a module.

        Raises:
            ValueError: there is none, or more than one.
        """
        all_members = [members[name] for members in self._definitions.values() if name in members]
        functions = [member for member in all_members if isinstance(member, Function)]
        if len(functions) != 1:
            raise ValueError(f"{len(functions)} modules define a function {name}: expected one")
        return functions[0]


def package_of(module: str) -> str:
    """The package of a module, or the module itself if it is at the top level."""
    return module.partition(".")[0]


def definitions(module: str, tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """The functions and classes at the top of a module."""
    for node in tree.body:
        if isinstance(node, FunctionNode):
            yield node.name, Function(module, "", node)
        elif isinstance(node, ast.ClassDef):
            yield node.name, Class(module, node)


def all_parameters(node: FunctionNode | ast.Lambda) -> list[ast.arg]:
    """The parameters that have a position, then those that have only a name. `*` and `**` are left
    out."""
    arguments = node.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


class Walker:
    """Walks through a package, and keeps a `Walk`."""

    def __init__(self, package: Package):
        self.package = package
        self.walk = Walk()
        self.value_class: Class | None = None  # of the followed value
        self._results: dict[tuple[Function, frozenset[tuple[str, Content]]], Content] = {}

    def enter(self, function: Function, parameters: dict[str, Content]) -> Content:
        """Follow the value from parameters of a function. Returns what the function returns."""
        self.touch(function)
        self.walk.modules.add(function.module)
        self.walk.names.update(parameters.keys() - {"self", "cls"})
        key = (function, frozenset(parameters.items()))
        if key not in self._results:
            self._results[key] = Content.NOTHING  # for a function that calls itself
            frame = Frame(self, function, parameters)
            frame.run(function.node.body)
            self._results[key] = frame.result
        return self._results[key]

    def touch(self, function: Function) -> None:
        """The value is used in a function."""
        stays = self.walk.stays
        if stays and stays[-1].module == function.module:
            return
        floors = self.package.floors
        here = floors.get(package_of(function.module), 0)
        climbs = bool(stays) and here > floors.get(package_of(stays[-1].module), 0)
        stays.append(Stay(function.module, function.name, climbs))


class Frame:
    """Follows the value within one function.

    holders: what the names hold now, as `request` or `self.request`. result: what the function
        returns.
    """

    def __init__(self, walker: Walker, function: Function, holders: Mapping[str, Content]):
        self.walker = walker
        self.package = walker.package
        self.function = function
        self.holders = dict(holders)
        self.result = Content.NOTHING
        self._depth = 0  # of branches and loops around the statement
        self._inner: dict[str, FunctionNode] = {}
        self._entered: set[tuple[str, frozenset[tuple[str, Content]]]] = set()
        self._classes: dict[str, Class] = {}
        for parameter in all_parameters(function.node):
            self._note_class(parameter.arg, parameter.annotation)

    def _note_class(self, name: str, expression: ast.expr | None) -> None:
        """Remember the class of a variable: its annotation, or the call that made it."""
        if isinstance(expression, ast.Call):
            expression = expression.func
        if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            expression = ast.Name(expression.value)
        kind = (
            self.package.find(self.function.module, expression.id)
            if isinstance(expression, ast.Name)
            else None
        )
        if isinstance(kind, Class):
            self._classes[name] = kind

    # Statements

    def run(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._run_statement(statement)

    def _run_statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._inner[node.name] = node
                self._run_inner(node, {})
            case ast.ClassDef():
                self.run(node.body)
            case ast.Assign():
                self._assign(node.targets, node.value)
            case ast.AnnAssign() if node.value is not None:
                self._assign([node.target], node.value)
            case ast.AugAssign():
                self._bind(node.target, self.content(node.value))
            case ast.Return():
                self.result = max(self.result, self.content(node.value))
            case ast.For() | ast.AsyncFor():
                self._bind(node.target, self._element_of(node.iter))
                self._branch(node.body, node.orelse)
            case ast.While() | ast.If():
                self.content(node.test)
                self._branch(node.body, node.orelse)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._bind(item.optional_vars, self.content(item.context_expr))
                self.run(node.body)
            case ast.Try() | ast.TryStar():
                self._branch(
                    node.body,
                    *(handler.body for handler in node.handlers),
                    node.orelse,
                    node.finalbody,
                )
            case ast.Match():
                subject = self.content(node.subject)
                for case in node.cases:
                    self._bind_pattern(case.pattern, subject)
                    self.content(case.guard)
                    self._branch(case.body)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.content(child)

    def _branch(self, *bodies: Sequence[ast.stmt]) -> None:
        """Statements that may not run: a name that they assign may keep its value."""
        self._depth += 1
        for body in bodies:
            self.run(body)
        self._depth -= 1

    def _run_inner(self, node: FunctionNode, parameters: dict[str, Content]) -> Content:
        """Follow the value into a function within this one, which sees the variables of this
        one."""
        key = (node.name, frozenset(parameters.items()))
        if key in self._entered:
            return Content.NOTHING
        self._entered.add(key)
        self.walker.walk.names.update(parameters)
        outer, outer_result = self.holders, self.result
        hidden = {parameter.arg for parameter in all_parameters(node)}
        self.holders = {
            name: content for name, content in outer.items() if name not in hidden
        } | parameters
        self.result = Content.NOTHING
        self.run(node.body)
        result = self.result
        self.holders, self.result = outer, outer_result
        return result

    def _assign(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        first = targets[0]
        if len(targets) == 1 and isinstance(first, ast.Tuple) and isinstance(value, ast.Tuple):
            parts = (*first.elts, *value.elts)
            if len(first.elts) == len(value.elts) and not any(
                isinstance(part, ast.Starred) for part in parts
            ):
                contents = [self.content(part) for part in value.elts]
                for target, content in zip(first.elts, contents):
                    self._set(target, content)
                return
        content = self.content(value)
        for target in targets:
            self._set(target, content)
            if isinstance(target, ast.Name):
                self._note_class(target.id, value)

    def _set(self, target: ast.expr, content: Content) -> None:
        """The target of an assignment holds this, and no longer what it held before."""
        if not content and not self._depth:
            self.holders.pop(ast.unparse(target), None)
        self._bind(target, content)

    def _bind(self, target: ast.expr | None, content: Content) -> None:
        if not content:
            return
        match target:
            case ast.Name(id=name):
                self._hold(name, name, content)
            case ast.Attribute(attr=name):
                self._hold(ast.unparse(target), name, content)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._bind(part, element(content))
            case ast.Starred(value=part) | ast.Subscript(value=part):
                self._bind(part, Content.HOLDER)

    def _bind_pattern(self, pattern: ast.pattern, subject: Content) -> None:
        if isinstance(pattern, ast.MatchAs):
            self._bind(ast.Name(pattern.name) if pattern.name else None, subject)
            subject = subject if pattern.pattern else Content.NOTHING
        if isinstance(pattern, ast.MatchSequence):
            subject = element(subject)
        for part in ast.iter_child_nodes(pattern):
            if isinstance(part, ast.pattern):
                self._bind_pattern(part, subject)

    def _hold(self, holder: str, name: str, content: Content) -> None:
        if holder not in self.holders:
            self.walker.touch(self.function)
        self.holders[holder] = max(content, self.holders.get(holder, Content.NOTHING))
        if name != "_":
            self.walker.walk.names.add(name)

    # Expressions

    def content(self, node: ast.expr | None) -> Content:
        """Follow the value through an expression. Returns what the result is."""
        match node:
            case None:
                return Content.NOTHING
            case ast.Name():
                return self.holders.get(node.id, Content.NOTHING)
            case ast.Attribute():
                base = (
                    Content.FIELD if self.content(node.value) == Content.WHOLE else Content.NOTHING
                )
                return max(base, self.holders.get(ast.unparse(node), Content.NOTHING))
            case ast.Subscript():
                self.content(node.slice)
                return element(self.content(node.value))
            case ast.Call():
                return self._call(node)
            case ast.NamedExpr():
                content = self.content(node.value)
                self._set(node.target, content)
                return content
            case ast.IfExp():
                self.content(node.test)
                return self._largest((node.body, node.orelse))
            case ast.BoolOp():
                return self._largest(node.values)
            case ast.Tuple() | ast.List() | ast.Set():
                return Content.HOLDER if self._largest(node.elts) else Content.NOTHING
            case ast.Dict():
                self._largest(filter(None, node.keys))
                return Content.HOLDER if self._largest(node.values) else Content.NOTHING
            case ast.BinOp():
                joins = isinstance(node.op, ast.BitOr)  # dictionaries
                content = self._largest((node.left, node.right))
                return content if joins else Content.NOTHING
            case ast.Starred() | ast.Await() | ast.Yield() | ast.YieldFrom():
                return self.content(node.value)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self._loops(node.generators)
                return Content.HOLDER if self.content(node.elt) else Content.NOTHING
            case ast.DictComp():
                self._loops(node.generators)
                self.content(node.key)
                return Content.HOLDER if self.content(node.value) else Content.NOTHING
            case ast.Lambda():
                self.content(node.body)
                return Content.NOTHING
            case _:
                self._largest(
                    child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
                )
                return Content.NOTHING

    def _largest(self, nodes: Iterable[ast.expr]) -> Content:
        """Follow the value through all expressions. Returns the largest of what they are."""
        contents = [self.content(node) for node in nodes]
        return max(contents, default=Content.NOTHING)

    def _loops(self, generators: Sequence[ast.comprehension]) -> None:
        for generator in generators:
            self._bind(generator.target, self._element_of(generator.iter))
            self._largest(generator.ifs)

    def _element_of(self, node: ast.expr) -> Content:
        """Follow the value through what a loop runs over. Returns what its elements are."""
        content = self.content(node)
        if isinstance(node, ast.Call) and called_name(node.func) in PAIRING:
            return content
        return element(content)

    def _call(self, node: ast.Call) -> Content:
        """Follow the value into a call. Returns what its result is."""
        function = node.func
        name = called_name(function)
        arguments = []
        for argument in node.args:
            stars = "*" if isinstance(argument, ast.Starred) else ""
            arguments.append(Argument(stars, argument, self.content(argument)))
        for keyword in node.keywords:
            arguments.append(
                Argument(keyword.arg or "**", keyword.value, self.content(keyword.value))
            )
        if name in ("partial", "map") and node.args:  # calls its first argument, now or later
            function, arguments = node.args[0], arguments[1:]
            if name == "map":
                arguments = [
                    Argument("", argument.node, element(argument.content)) for argument in arguments
                ]
        receiver = (
            self.content(function.value) if isinstance(function, ast.Attribute) else Content.NOTHING
        )
        if not isinstance(function, ast.Name | ast.Attribute):
            self.content(function)
        largest = max((argument.content for argument in arguments), default=Content.NOTHING)
        if not largest and not receiver:
            return Content.NOTHING
        if isinstance(function, ast.Name) and function.id in self._inner:
            inner = self._inner[function.id]
            self._hand_over()
            return self._run_inner(inner, received(inner, arguments, 0))
        definition = self._definition(function)
        if definition is None:
            if receiver:
                return receiver if name in KEEPING_METHODS else Content.NOTHING
            if name in ("vars", "asdict") and largest == Content.WHOLE:
                return Content.HOLDER
            return largest if name in KEEPING else Content.NOTHING
        if definition.module in LEFT_OUT:
            return Content.NOTHING
        return self._call_definition(definition, arguments, receiver)

    def _call_definition(
        self, definition: Definition, arguments: "list[Argument]", receiver: Content
    ) -> Content:
        """Follow the value into a function or class of the package."""
        function = definition
        if isinstance(definition, Class):
            initializer = self.package.method(definition, "__init__")
            if initializer is None:  # a dataclass or a named tuple: the value is put down in it
                self._hand_over()
                return Content.NOTHING
            function = initializer
        assert isinstance(function, Function)
        parameters = received(function.node, arguments, int(has_receiver(function)))
        if receiver == Content.WHOLE and has_receiver(function):
            parameters[all_parameters(function.node)[0].arg] = receiver
        if not parameters:
            return Content.NOTHING
        self._hand_over()
        result = self.walker.enter(function, parameters)
        return Content.NOTHING if isinstance(definition, Class) else result

    def _hand_over(self) -> None:
        self.walker.touch(self.function)
        self.walker.walk.hand_overs += 1

    def _definition(self, function: ast.expr) -> Definition | None:
        """What a call calls, if it is known and belongs to the package."""
        module = self.function.module
        if isinstance(function, ast.Name):
            return self.package.find(module, function.id)
        if not isinstance(function, ast.Attribute):
            return None
        name = function.attr
        if isinstance(function.value, ast.Name):
            receiver = function.value.id
            if definition := self.package.find_in_module(module, receiver, name):
                return definition
            kind: Definition | None = self._classes.get(receiver) or self.package.find(
                module, receiver
            )
            if receiver in ("self", "cls"):
                kind = self.package.find(module, self.function.owner)
            if isinstance(kind, Class):
                if self.holders.get(receiver) == Content.WHOLE and is_protocol(kind):
                    kind = self.walker.value_class or kind
                return self.package.method(kind, name)
        candidates = self.package.methods.get(name, [])
        return candidates[0] if len(candidates) == 1 and name not in COMMON_METHODS else None


@dataclass(frozen=True)
class Argument:
    """An argument of a call. name: of the parameter; "" if it has a position, "*" and "**" for
    unpacked ones."""

    name: str
    node: ast.expr
    content: Content


def is_protocol(kind: Class) -> bool:
    """Whether a class only says which methods other classes have."""
    return any(ast.unparse(base).partition("[")[0] == "Protocol" for base in kind.node.bases)


def element(content: Content) -> Content:
    """What the elements of a value are: those of a list that holds fields are fields."""
    return Content.FIELD if content == Content.HOLDER else Content.NOTHING


def called_name(function: ast.expr) -> str:
    """The name before the parentheses of a call, without what is before its last dot; "" for
    another expression."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def has_receiver(function: Function) -> bool:
    """Whether the first parameter of a function is the object or class before the dot."""
    decorators = {ast.unparse(decorator) for decorator in function.node.decorator_list}
    return bool(function.owner) and "staticmethod" not in decorators


def received(node: FunctionNode, arguments: Sequence[Argument], first: int) -> dict[str, Content]:
    """The parameters that get the value in a call, and what they get.

    Args:
        arguments: in their order.
        first: the number of parameters that the call does not write: `self`.
    """
    positional = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)][first:]
    known = {parameter.arg for parameter in all_parameters(node)} - {"self", "cls"}
    further = [node.args.vararg.arg] if node.args.vararg else []
    named = [node.args.kwarg.arg] if node.args.kwarg else []
    written = {argument.name for argument in arguments}
    parameters: dict[str, Content] = {}
    number = 0  # of the next parameter that has a position
    for argument in arguments:
        content = argument.content
        if argument.name == "":
            targets = positional[number : number + 1]
            written.update(targets)
            number += 1
            if not targets and content:
                targets, content = further, Content.HOLDER
        elif argument.name == "*":  # any of the parameters that are left
            targets, content = [*positional[number:], *further], element(content)
            number = len(positional)
        elif argument.name == "**":  # any parameter that the call does not write itself
            targets, content = [*sorted(known - written), *named], element(content)
        elif argument.name in known:
            targets = [argument.name]
        else:
            targets, content = named, Content.HOLDER if content else content
        if content:
            parameters |= dict.fromkeys(targets, content)
    return parameters


def walk_request(root: Path = ROOT, start: tuple[str, str] = START) -> Walk:
    """The walk of a parameter through a package. start: the function, and its parameter."""
    package = Package(root)
    walker = Walker(package)
    function = package.function(start[0])
    for parameter in all_parameters(function.node):
        if parameter.arg == start[1] and isinstance(parameter.annotation, ast.Name):
            kind = package.find(function.module, parameter.annotation.id)
            walker.value_class = kind if isinstance(kind, Class) else None
    walker.enter(function, {start[1]: Content.WHOLE})
    return walker.walk


def main() -> None:
    start = (sys.argv[1], sys.argv[2]) if len(sys.argv) == 3 else START
    walk = walk_request(start=start)
    for stay in walk.stays:
        print(f"{'climbs to ' if stay.climbs else '          '}{stay.module}: {stay.function}")
    print(f"{walk.hand_overs} times handed on; {len(walk.modules)} modules; {walk.climbs} climbs")
    print(f"{len(walk.names)} names: {' '.join(sorted(walk.names))}")


if __name__ == "__main__":
    main()
