"""The Celery application. Its settings are read when they are first needed, so importing it touches nothing."""

from celery import Celery

from isotherm.tasks import celery_amqp, celery_redis

app = Celery("isotherm", config_source="isotherm.celeryconfig", amqp=celery_redis.Amqp)
celery_redis.use(app)
celery_amqp.use()
