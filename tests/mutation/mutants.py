"""All mutants of a room, and a sample of them."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

import tests.mutation.operators  # noqa: F401 # Cosmic Ray asks for all that it knows
from tests.mutation.rooms import Room

# Without a decorator or an exception's class nothing works: no test could miss that. And whether
# what is equal is identical depends on the interpreter.
LEFT_OUT = {
    "core/ExceptionReplacer",
    "core/NoOp",
    "core/RemoveDecorator",
    "core/ReplaceComparisonOperator_Eq_Is",
    "core/ReplaceComparisonOperator_IsNot_NotEq",
    "core/ReplaceComparisonOperator_Is_Eq",
    "core/ReplaceComparisonOperator_NotEq_IsNot",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault at one place of one room."""

    room: Room
    spec: MutationSpec

    def __str__(self) -> str:
        line, column = self.spec.start_pos
        name = self.spec.operator_name.removeprefix("core/")
        return f"{self.spec.module_path}:{line}:{column} {name}"


def sample(rooms: list[Room], root: Path, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants, at most one at a place; the same for the same code and seed."""
    places: dict[tuple[Path, tuple[int, int]], list[Mutant]] = {}
    for room in rooms:
        for spec in _specs(room, root):
            places.setdefault((spec.module_path, spec.start_pos), []).append(Mutant(room, spec))
    chosen = random.Random(seed)
    found = [chosen.choice(places[place]) for place in sorted(places)]
    return found if count >= len(found) else chosen.sample(found, count)


def _specs(room: Room, root: Path) -> Iterator[MutationSpec]:
    modules = room.modules(root)
    with use_db(":memory:", WorkDB.Mode.create) as database:
        init([root / module for module in modules], database, {})
        found = [item.mutations[0] for item in database.work_items]
    unseen = {root / module: _unseen(root / module) for module in modules}
    lines = {root / module: (root / module).read_text().splitlines() for module in modules}
    for spec in sorted(
        found, key=lambda spec: (spec.module_path, spec.operator_name, spec.occurrence)
    ):
        if spec.operator_name in LEFT_OUT:
            continue
        if any(start <= spec.start_pos < end for start, end in unseen[spec.module_path]):
            continue
        line, column = spec.start_pos
        if lines[spec.module_path][line - 1].startswith("*,", column):
            continue  # not an operator, but a mark between parameters
        yield _relative(spec, root)


def _relative(spec: MutationSpec, root: Path) -> MutationSpec:
    return MutationSpec(
        module_path=spec.module_path.relative_to(root),
        operator_name=spec.operator_name,
        occurrence=spec.occurrence,
        start_pos=spec.start_pos,
        end_pos=spec.end_pos,
        operator_args=spec.operator_args,
        definition_name=spec.definition_name,
    )


def _unseen(module: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where no test should look: types, decorators of classes, and chosen constants.

    Also what protocols declare, which no code runs; the sizes of caches, as a smaller one returns
    the same; `strict` of zip, an assertion; and what only the compiled form of the core runs, which
    is not what is changed.
    """
    nodes: list[ast.expr | ast.stmt] = []
    tree = ast.parse(module.read_text())
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name()]) | ast.AnnAssign():
                nodes.append(node)
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                nodes.append(node)
    for inner in ast.walk(tree):
        match inner:
            case ast.arg(annotation=ast.expr() as found) | ast.AnnAssign(annotation=found):
                nodes.append(found)
            case ast.ClassDef(bases=[*_, ast.Name("Protocol")], body=members):
                nodes += [member for member in members if _is_declaration(member)]
            case ast.ClassDef(decorator_list=decorators):
                nodes += decorators  # how a value is made, frozen and by keyword
            case ast.FunctionDef(returns=ast.expr() as found):
                nodes.append(found)
            case ast.AsyncFunctionDef(returns=ast.expr() as found):
                nodes.append(found)
            case ast.If(test=test, body=compiled) if _is_compiled_only(test):
                nodes += compiled
            case ast.Call(func=ast.Name("cast"), args=[found, _]):
                nodes.append(found)
            case ast.Call(func=ast.Name("lru_cache" | "zip"), keywords=options):
                nodes += [option.value for option in options]
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in nodes
    ]


def _is_compiled_only(test: ast.expr) -> bool:
    match test:
        case ast.BoolOp(ast.And(), [first, *_]):
            return _is_compiled_only(first)
        case ast.Attribute(ast.Name("cython"), "compiled"):
            return True
    return isinstance(test, ast.Name) and test.id in ("compiled", "is_compiled_form")


def _is_declaration(member: ast.stmt) -> bool:
    match member:
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            # Other methods are inherited.
            return isinstance(body[-1], ast.Expr) and isinstance(body[-1].value, ast.Constant)
    return True
