"""A writer in a process of its own: a database path, then statements, as JSON lines on standard input.

Writing from the test process itself would put two SQLite libraries on one file in one process, which
drops locks (see `adapters.sqlite.connection`).
"""

import json
import sqlite3
import sys


def main() -> None:
    connection = sqlite3.connect(":memory:")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            rows = None
            if isinstance(request, str):
                connection.close()
                connection = sqlite3.connect(request, isolation_level=None)
                connection.execute("PRAGMA synchronous = OFF")
            else:
                for statement in request:
                    rows = connection.execute(statement).fetchall()
            print(json.dumps({"rows": rows}, default=repr), flush=True)
        except sqlite3.Error as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
