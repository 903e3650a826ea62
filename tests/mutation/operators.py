"""Operators beside Cosmic Ray's own: statements that are left out."""

from __future__ import annotations

from collections.abc import Iterator

import parso
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import OPERATOR_PROVIDERS
from parso.tree import BaseNode, NodeOrLeaf

PROVIDER = "purgatory"


class StatementRemover(Operator):  # type: ignore[misc] # it has no types
    """Leaves out a call whose result nobody uses, and what is assigned to anything but a name.

    Not a message to the log, and not a name: without it the next line fails.
    """

    def mutation_positions(
        self, node: NodeOrLeaf
    ) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Yield where `node` begins and ends if it is such a statement."""
        if isinstance(node, BaseNode) and node.type == "simple_stmt" and _has_effect(node):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: BaseNode, index: int) -> BaseNode:
        """Put `pass` in its place."""
        prefix = node.children[0].get_first_leaf().prefix
        node.children[0] = parso.parse(f"{prefix}pass")  # type: ignore[no-untyped-call] # parso's
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """There are none: Cosmic Ray's own tests are not run on this one."""
        return ()


def _has_effect(line: BaseNode) -> bool:
    statement = line.children[0]
    code: str = statement.get_code(include_prefix=False)
    if statement.type == "atom_expr":
        return code.endswith(")") and not code.startswith(("logger.", "_log"))
    return isinstance(statement, BaseNode) and (
        statement.type == "expr_stmt"
        and statement.children[0].type != "name"
        and statement.children[1].type in ("operator", "augassign")
    )


class Provider:
    """How Cosmic Ray finds the operators of this module."""

    def __iter__(self) -> Iterator[str]:
        return iter(("StatementRemover",))

    def __getitem__(self, name: str) -> type[StatementRemover]:
        return {"StatementRemover": StatementRemover}[name]


# As an installed distribution would by an entry point, which tests are not.
OPERATOR_PROVIDERS[PROVIDER] = Provider()
