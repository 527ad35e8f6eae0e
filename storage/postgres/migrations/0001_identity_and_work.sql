-- Who a row belongs to. Columns, not a joined key: a key of joined text is not injective, and forgetting walks columns.
CREATE TABLE banks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text,
    agent text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE NULLS NOT DISTINCT (tenant, agent)
);

CREATE TABLE namespaces (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    bank_id bigint NOT NULL REFERENCES banks (id),
    tenant text,
    scope text NOT NULL,
    agent text NOT NULL,
    session text,
    run text,
    -- When the next migration pass is worth running; NULL when nothing is known to become due.
    due_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE NULLS NOT DISTINCT (tenant, scope, agent, session, run),
    UNIQUE (id, bank_id)
);
CREATE INDEX namespaces_by_bank ON namespaces (bank_id, session);
CREATE INDEX namespaces_due ON namespaces (due_at) WHERE due_at IS NOT NULL;

-- One row per call of a producer. Its state is derived from its steps and written when a step ends.
CREATE TABLE operations (
    id uuid PRIMARY KEY,
    kind text NOT NULL,
    bank_id bigint REFERENCES banks (id),
    namespace_id bigint REFERENCES namespaces (id),
    key_hash bytea,
    fingerprint bytea,
    trace_id uuid NOT NULL,
    state text NOT NULL DEFAULT 'accepted'
        CHECK (state IN ('accepted', 'running', 'done', 'partial', 'failed', 'dead', 'cancelled')),
    result jsonb,
    error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    CHECK ((state IN ('accepted', 'running')) = (finished_at IS NULL)),
    CHECK ((key_hash IS NULL) = (fingerprint IS NULL))
);
CREATE UNIQUE INDEX operations_idempotency ON operations (kind, key_hash) WHERE key_hash IS NOT NULL;
-- Passes over one namespace coalesce: at most one waits at any time.
CREATE UNIQUE INDEX operations_one_waiting_pass ON operations (namespace_id)
    WHERE kind = 'tier.reconcile' AND state = 'accepted';
CREATE INDEX operations_finished ON operations (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE operation_steps (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation_id uuid NOT NULL REFERENCES operations (id) ON DELETE CASCADE,
    stage text NOT NULL,
    unit text NOT NULL DEFAULT '',
    queue text NOT NULL,
    input jsonb NOT NULL,
    input_hash bytea NOT NULL,
    -- Stages ("tier.migrate") or single steps ("cold.summarize/3") of this operation that must be final before this one.
    waits_for text[] NOT NULL DEFAULT '{}',
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'done', 'failed', 'dead', 'cancelled')),
    attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    owner text,
    -- Fencing token: raised by every claim, demanded by every write of its owner.
    token bigint NOT NULL DEFAULT 0,
    lease_until timestamptz,
    not_before timestamptz NOT NULL DEFAULT now(),
    -- Waits for a server or a rate limit do not count as attempts; past this moment they end the step all the same.
    retry_until timestamptz NOT NULL,
    -- When a pending step may be announced again, should its message have been lost; doubles with every announcement.
    nudge_at timestamptz NOT NULL,
    nudges integer NOT NULL DEFAULT 0,
    -- How often the step was given back to wait for something that passes.
    waits integer NOT NULL DEFAULT 0,
    answer jsonb,
    receipt jsonb,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    UNIQUE (operation_id, stage, unit),
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state IN ('pending', 'running')) = (finished_at IS NULL))
);
CREATE INDEX operation_steps_open ON operation_steps (queue, nudge_at) WHERE state IN ('pending', 'running');
CREATE INDEX operation_steps_leases ON operation_steps (lease_until) WHERE state = 'running';

-- Messages to the broker, written in the transaction of their cause. They refer to rows without a constraint: every write
-- would pay for checks and two more indexes, and a message whose operation is gone is dropped by the relay.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation_id uuid,
    step_id bigint,
    builder text NOT NULL,
    payload jsonb NOT NULL,
    not_before timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX outbox_due ON outbox (not_before, id);
