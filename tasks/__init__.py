"""The doorway: Celery app, stages, canvas, producers, beat schedule and the command line."""

from isotherm.tasks import lifecycle
from isotherm.tasks.app import app

__all__ = ["app", "lifecycle"]
