"""The rules: no Celery, no sockets, no SQL and no clock of their own."""
