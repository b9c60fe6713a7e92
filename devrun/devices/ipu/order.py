"""Whether the stages of a pipeline run in ascending order.

PopTorch's user guide says of `AutoStage` that the stage ids of `PipelinedExecution`
must ascend: blocks on the IPUs 0, 1 and 0 do not compile with `SameAsIpu`, whose stages
are the IPUs, but do with `AutoIncrement`, which makes three stages of them;
`ShardedExecution` has no such rule. Where a layer is defined or listed says nothing of
when it is called, so the order is that of the forward pass which PopTorch captures, and
what is wrong is refused before it compiles anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from devrun.errors import ConfigError
from devrun.models.split import Edge


class StageOrder:
    """Watches one split while a forward pass is captured; elsewhere it does nothing.

    Args:
        strategy: `executionStrategy` as the config has it; None is `SameAsIpu`.
        where: the place in the config that a message names.
        complete: whether every layer must be called.
    """

    def __init__(
        self,
        edges: Sequence[Edge],
        strategy: Any,
        where: str,
        *,
        complete: bool,
    ) -> None:
        self.edges, self.where, self._complete = edges, where, complete
        stages = strategy.get("stages", ()) if isinstance(strategy, Mapping) else ()
        kind = strategy.get("type") if isinstance(strategy, Mapping) else strategy
        self._sharded = kind == "ShardedExecution"
        self._increments = kind == "AutoIncrement"
        self._declared = {
            str(block): number
            for number, stage in enumerate(stages)
            for block in (stage if isinstance(stage, (list, tuple)) else [stage])
        }
        self._begun: list[Edge] | None = None
        self._check_declared()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around one forward pass, in which each layer calls `begin` first.

        Raises:
            ConfigError: a stage after one that must follow it, or a layer that is not
                called.
        """
        self._begun = []
        try:
            yield
            missing = [edge.name for edge in self.edges if edge not in self._begun]
        finally:
            self._begun = None
        if self._complete and missing:
            raise ConfigError(
                f"{self.where} names {missing[0]!r}, which the forward pass never "
                "calls, so no block begins there: name a layer that it calls"
            )

    def begin(self, edge: Edge) -> None:
        """The layer of `edge` is called."""
        if self._begun is None:
            return
        last = self._begun[-1] if self._begun else None
        again = edge in self._begun
        self._begun.append(edge)
        if last is None or self._sharded or self._stage(edge) >= self._stage(last):
            return
        runs = f"{edge} {'again ' if again else ''}after {last}"
        raise ConfigError(
            f"{self.where} goes backwards: the forward pass runs {runs}, but the "
            f"stages of a pipeline ascend: {self._remedy(edge, last, again)}"
        )

    def _stage(self, edge: Edge) -> int:
        if self._declared:
            return self._declared[str(edge.user_id)]
        if not self._increments:
            return edge.ipu
        # a block has the stage of its first call
        named = [each.user_id or each.name for each in self._begun or ()]
        return named.index(edge.user_id or edge.name)

    def _remedy(self, edge: Edge, last: Edge, again: bool) -> str:
        if again:
            return f"remove {last.name!r}, or set executionStrategy: ShardedExecution"
        if self._declared:
            return "give executionStrategy.stages in the order of the forward pass"
        return (
            f"give {edge.name!r} ipu_id {last.ipu} or more, or set executionStrategy "
            "to AutoIncrement, whose pipeline may return to an IPU, or ShardedExecution"
        )

    def _check_declared(self) -> None:
        for index, edge in enumerate(self.edges if self._declared else ()):
            if edge.user_id not in self._declared:
                known = ", ".join(map(repr, self._declared))
                raise ConfigError(
                    f"{self.where}[{index}].user_id is {edge.user_id!r}, which no "
                    f"stage of executionStrategy has: give one of {known}"
                )
