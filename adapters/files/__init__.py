"""The files adapter: a folder of CSV, JSON-lines, Parquet or Excel files, compared with a shadow."""
