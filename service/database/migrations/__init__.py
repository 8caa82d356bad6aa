"""Runs migrations/*.sql, through alembic."""
