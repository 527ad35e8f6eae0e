# One image for every process of the product; compose says which one a container runs.
FROM python:3.13.14-slim-bookworm AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1

# Without pip of its own: what is copied into the last stage holds the product and its dependencies, nothing else.
RUN python -m venv --without-pip /opt/isotherm

WORKDIR /src
# Dependencies first, so that a change of the product does not install them again. Wheels only: there is no compiler.
COPY requirements.lock ./
RUN pip --python /opt/isotherm/bin/python install --require-hashes --only-binary :all: -r requirements.lock
COPY . .
RUN pip --python /opt/isotherm/bin/python install --no-deps . \
    && pip --python /opt/isotherm/bin/python check

FROM python:3.13.14-slim-bookworm

# REMAP_SIGTERM: SIGTERM begins Celery's soft shutdown, which ends in seconds and gives unfinished steps back. Without
# it SIGTERM waits for the longest task, and the engine kills the worker first. OPENBLAS_NUM_THREADS: a worker has a process
# for each processor; threads of numpy's library besides keep one busy for 80 ms after every product.
ENV PATH=/opt/isotherm/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONFAULTHANDLER=1 \
    PYTHONUNBUFFERED=1 \
    OPENBLAS_NUM_THREADS=1 \
    REMAP_SIGTERM=SIGQUIT

RUN groupadd --gid 10001 isotherm \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin isotherm \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/isotherm/blobs

COPY --from=build /opt/isotherm /opt/isotherm

# Celery puts the working folder on the import path; this one holds no modules and is not writable.
WORKDIR /opt/isotherm
USER 10001:10001
STOPSIGNAL SIGTERM
CMD ["isotherm", "--help"]
