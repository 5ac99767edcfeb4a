"""The DuckDB adapter: one database file that its owner's process writes, read in between."""
