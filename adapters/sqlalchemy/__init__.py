"""The SQLAlchemy adapter: any database with a SQLAlchemy dialect, compared with a shadow."""
