"""A bank: seeded random transactions over two tables whose amounts always add up to nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from adapters.conformance.journal import JOURNAL, WRITER_STRIDE, numbered
from adapters.conformance.model import Bag
from adapters.conformance.operations import Delete, Insert, Operation, Row, Transaction, Update
from adapters.conformance.queries import table

ACCOUNT = table("account", {"id": pa.int64(), "owner": pa.string(), "amount": pa.int64()}, key=["id"])
POSTING = table("posting", {"account": pa.int64(), "tag": pa.string(), "amount": pa.int64()})
BANK = (ACCOUNT, POSTING, JOURNAL)

OWNERS = ("Ada", "ada", "Bo", "", None)
TAGS = ("in", "out", "")


def total(tables: Mapping[str, Bag]) -> int:
    """The sum of all amounts: zero after every committed transaction, and rarely within one."""
    return sum(
        row[2] * count for name in (ACCOUNT.name, POSTING.name) for row, count in tables.get(name, {}).items()
    )


@dataclass
class Bank:
    """One writer's random transactions, on rows that no other writer touches."""

    seed: int
    writer: int = 0
    _random: random.Random = field(init=False)
    _accounts: list[Row] = field(init=False, default_factory=list)
    _postings: list[Row] = field(init=False, default_factory=list)
    _number: int = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed * 1000 + self.writer)
        self._number = self.writer * WRITER_STRIDE

    def script(self, count: int) -> list[Transaction]:
        """The next transactions of this writer, some of which roll back."""
        return [self._transaction() for _ in range(count)]

    def _transaction(self) -> Transaction:
        accounts, postings = list(self._accounts), list(self._postings)
        commits = self._random.random() > 0.15
        operations: list[Operation] = []
        for _ in range(self._random.choice((1, 1, 2, 3, 8))):
            operations += self._step()
        self._number += 1
        if not commits:
            # Half of a step at the end: had it been shown, the amounts would not add up.
            operations.append(Insert(POSTING.name, ((None, "lost", 1),)))
            self._accounts, self._postings = accounts, postings
        return numbered(self._number, *operations, commits=commits)

    def _step(self) -> list[Operation]:
        steps = [self._open_account, self._rename, self._close_account, self._transfer, self._repost]
        return self._random.choice(steps)()

    def _open_account(self) -> list[Operation]:
        taken = {row[0] for row in self._accounts}
        base = self.writer * WRITER_STRIDE
        free = [base + i for i in range(40) if base + i not in taken]
        if not free:
            return self._transfer()
        amount = self._random.choice((0, self._random.randint(-9, 9)))
        account = (self._random.choice(free), self._random.choice(OWNERS), amount)
        self._accounts.append(account)
        if amount == 0:  # no posting: an account that joins nothing
            return [Insert(ACCOUNT.name, (account,))]
        posting = (account[0], self._tag(), -amount)
        self._postings.append(posting)
        return [Insert(ACCOUNT.name, (account,)), Insert(POSTING.name, (posting,))]

    def _rename(self) -> list[Operation]:
        if not self._accounts:
            return self._open_account()
        index = self._random.randrange(len(self._accounts))
        before = self._accounts[index]
        after = (before[0], self._random.choice(OWNERS), before[2])
        self._accounts[index] = after
        return [Update(ACCOUNT.name, before, after)]

    def _close_account(self) -> list[Operation]:
        if not self._accounts:
            return self._open_account()
        account = self._accounts.pop(self._random.randrange(len(self._accounts)))
        posting = (None, self._tag(), account[2])
        self._postings.append(posting)
        return [Insert(POSTING.name, (posting,)), Delete(ACCOUNT.name, account)]

    def _transfer(self) -> list[Operation]:
        if not self._accounts:
            return self._open_account()
        index = self._random.randrange(len(self._accounts))
        before = self._accounts[index]
        amount = self._random.randint(1, 3)
        after = (before[0], before[1], before[2] - amount)
        # Equal postings: duplicates in a table without a key.
        posting = (before[0], self._tag(), 1)
        self._accounts[index] = after
        self._postings += [posting] * amount
        return [Update(ACCOUNT.name, before, after), Insert(POSTING.name, (posting,) * amount)]

    def _repost(self) -> list[Operation]:
        if not self._postings:
            return self._open_account()
        before = self._postings.pop(self._random.randrange(len(self._postings)))
        after = (before[0], self._tag(), before[2])
        self._postings.append(after)
        if self._random.random() < 0.5:
            return [Delete(POSTING.name, before), Insert(POSTING.name, (after,))]
        return [Update(POSTING.name, before, after)]

    def _tag(self) -> str:
        """The writer's own: writers must not delete each other's copies."""
        return f"{self._random.choice(TAGS)}{self.writer}"
