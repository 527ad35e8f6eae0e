"""The doorway: Celery app, stages, canvas, producers, beat schedule and the command line."""
