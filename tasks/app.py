"""The Celery application. Its settings are read when they are first needed, so importing it touches nothing."""

from celery import Celery

app = Celery("isotherm", config_source="isotherm.celeryconfig")
