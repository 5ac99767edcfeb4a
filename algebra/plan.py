"""Sweep plans: in which order a sweep visits the nodes of an assembly query.

The papers draw the sources as a chain R1 .. Rn and sweep left, then right. Real join graphs are stars,
cycles and trees, so "left" and "right" need a meaning there:

* SWEEP as published needs, for each starting node, an order in which every next node is connected to what
  is already joined. On a chain `order(i)` is i-1 .. 1, then i+1 .. n.
* Batched SWEEP needs two passes that serve all starting nodes at once. On a chain they are the left and
  the right sweep. In general they are the inward sweep, from the leaves of a join tree to its root, and
  the outward sweep back. Every tree edge is crossed at most once each way, hence at most 2(n-1) queries for
  a batch of any size; edges at the same depth are crossed side by side. The root is the tree's centre, so a
  batch waits for as few rounds of messages as possible.

A join graph with cycles keeps one spanning tree for the sweep; equalities outside the tree are checked
when both ends are joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from algebra.assembly import AssemblyQuery, Edge, nodes_read


@dataclass(frozen=True)
class Hop:
    """One step of a sweep: from a node already joined to the next one.

    `on` pairs (column of `origin`, column of `target`); empty if only a theta predicate connects them.
    """

    origin: int
    target: int
    on: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SweepPlan:
    """The join tree of an assembly query, and the orders in which sweeps walk it."""

    query: AssemblyQuery
    tree: tuple[Edge, ...]
    root: int

    @classmethod
    def of(cls, query: AssemblyQuery) -> SweepPlan:
        """The plan for a query: a spanning tree that prefers equalities, rooted at its centre."""
        joined = {0}
        tree: list[Edge] = []
        remaining = set(range(1, len(query.nodes)))
        while remaining:
            edge = _next_edge(query, joined, remaining)
            tree.append(edge)
            target = edge.right if edge.right in remaining else edge.left
            joined.add(target)
            remaining.remove(target)
        return cls(query, tuple(tree), _centre(len(query.nodes), tree))

    @property
    def width(self) -> int:
        """How many sequence numbers one transaction takes: one per node it may change."""
        return len(self.query.nodes)

    @cached_property
    def parent(self) -> dict[int, Hop]:
        """For each node but the root: the hop inward, to its parent."""
        hops: dict[int, Hop] = {}
        frontier = [self.root]
        seen = {self.root}
        while frontier:
            node = frontier.pop(0)
            for edge in self.tree:
                if node in (edge.left, edge.right):
                    child, _ = edge.seen_from(node)
                    if child not in seen:
                        _, on = edge.seen_from(child)
                        hops[child] = Hop(child, node, on)
                        seen.add(child)
                        frontier.append(child)
        return hops

    def children(self, node: int) -> list[int]:
        return [child for child, hop in self.parent.items() if hop.target == node]

    def depth(self, node: int) -> int:
        return 0 if node == self.root else 1 + self.depth(self.parent[node].target)

    @cached_property
    def inward(self) -> tuple[tuple[Hop, ...], ...]:
        """Rounds of hops child → parent, deepest first; the hops of one round are independent."""
        return tuple(reversed(self._rounds()))

    @cached_property
    def outward(self) -> tuple[tuple[Hop, ...], ...]:
        """Rounds of hops parent → child, from the root; the hops of one round are independent."""
        return tuple(
            tuple(Hop(h.target, h.origin, tuple((b, a) for a, b in h.on)) for h in hops)
            for hops in self._rounds()
        )

    def _rounds(self) -> list[tuple[Hop, ...]]:
        by_depth: dict[int, list[Hop]] = {}
        for child, hop in self.parent.items():
            by_depth.setdefault(self.depth(child), []).append(hop)
        return [tuple(by_depth[depth]) for depth in sorted(by_depth)]

    def path_inward(self, start: int) -> list[int]:
        """The nodes from `start` to the root, both included."""
        path = [start]
        while path[-1] != self.root:
            path.append(self.parent[path[-1]].target)
        return path

    def order(self, start: int) -> tuple[Hop, ...]:
        """The sweep of SWEEP as published: left of the start first, then right of it."""
        visited = [start]
        hops: list[Hop] = []
        waiting = [*range(start - 1, -1, -1), *range(start + 1, len(self.query.nodes))]
        while waiting:
            hop = next(hop for target in waiting if (hop := self._hop_into(target, visited)))
            hops.append(hop)
            visited.append(hop.target)
            waiting.remove(hop.target)
        return tuple(hops)

    def branches(self, start: int) -> tuple[tuple[Hop, ...], ...]:
        """`order(start)` by the neighbour of the start that a hop lies behind: on a chain, left and right."""
        branches: list[list[Hop]] = []
        branch_of: dict[int, list[Hop]] = {}
        for hop in self.order(start):
            if hop.origin == start:
                branches.append([])
            branch = branches[-1] if hop.origin == start else branch_of[hop.origin]
            branch.append(hop)
            branch_of[hop.target] = branch
        return tuple(tuple(branch) for branch in branches)

    def _hop_into(self, target: int, visited: list[int]) -> Hop | None:
        for edge in self.tree:
            if target in (edge.left, edge.right):
                origin, on = edge.seen_from(target)
                if origin in visited:
                    return Hop(origin, target, tuple((b, a) for a, b in on))
        return None

    @property
    def queries_per_update(self) -> int:
        return len(self.query.nodes) - 1

    @property
    def queries_per_batch(self) -> int:
        return 2 * (len(self.query.nodes) - 1)


def _next_edge(query: AssemblyQuery, joined: set[int], remaining: set[int]) -> Edge:
    """An edge from what is joined to what is not: by equality if there is one, else by theta, else none."""
    for edge in query.edges:
        if edge.on and len({edge.left, edge.right} & joined) == 1:
            return edge
    for predicate in query.filters:
        read = nodes_read(predicate)
        if len(read) == 2 and len(read & joined) == 1:
            left, right = sorted(read)
            return Edge(left, right, ())
    return Edge(min(joined), min(remaining), ())


def _centre(size: int, tree: list[Edge]) -> int:
    """The node of a tree whose farthest node is nearest; the lowest number among equals."""

    def eccentricity(start: int) -> int:
        distance = {start: 0}
        frontier = [start]
        for node in frontier:
            for edge in tree:
                if node in (edge.left, edge.right):
                    other, _ = edge.seen_from(node)
                    if other not in distance:
                        distance[other] = distance[node] + 1
                        frontier.append(other)
        return max(distance.values())

    return min(range(size), key=lambda node: (eccentricity(node), node))
