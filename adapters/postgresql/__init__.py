"""PostgreSQL as a source: logical decoding or triggers, answers as Arrow by ADBC."""
