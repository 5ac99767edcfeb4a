"""What an application on InnoDB has to do: repeat a transaction that the server gave up for a deadlock."""

from __future__ import annotations

from collections.abc import Iterable

import pymysql

from adapters.conformance import SqlWriter
from adapters.conformance.operations import Transaction

DEADLOCK = 1213


class PatientWriter(SqlWriter):
    """A writer whose transactions are repeated after a deadlock."""

    def run(self, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            while True:
                try:
                    super().run([transaction])
                    break
                except pymysql.err.OperationalError as error:
                    if error.args[0] != DEADLOCK:
                        raise
                    self.rollback()
