"""SQLite as a source: trigger capture, transaction boundaries from the write-ahead log, Arrow end to end."""
