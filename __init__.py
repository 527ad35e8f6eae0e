"""Isotherm: long-term memory for AI agents, run as an event-driven pipeline on Celery."""

__version__ = "0.1.0"
