"""Tests of the DuckDB adapter; writers are processes of their own."""
