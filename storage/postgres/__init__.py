"""PostgreSQL: the truth."""
