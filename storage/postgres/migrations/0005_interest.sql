-- What a bank's users care about: one row per interest, wherever and however often it was said.
CREATE TABLE interest_points (
    id uuid PRIMARY KEY,
    bank_id bigint NOT NULL REFERENCES banks (id),
    name text NOT NULL,
    -- The first name, folded, and how often it had been used up before: together they make the id.
    canonical text NOT NULL,
    revival integer NOT NULL DEFAULT 0 CHECK (revival >= 0),
    summary text NOT NULL,
    keywords text[] NOT NULL DEFAULT '{}',
    kind text NOT NULL,
    importance double precision NOT NULL CHECK (importance BETWEEN 0 AND 1),
    confidence double precision NOT NULL CHECK (confidence BETWEEN 0 AND 1),
    reliability double precision NOT NULL CHECK (reliability BETWEEN 0 AND 1),
    status text NOT NULL CHECK (status IN ('active', 'archived', 'pending_review')),
    subjective boolean NOT NULL DEFAULT false,
    wiki_worthy boolean,
    ttl_days integer CHECK (ttl_days > 0),                 -- NULL: the default
    first_seen_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    seen_count integer NOT NULL CHECK (seen_count >= 0),   -- distinct sessions among its evidence
    version bigint NOT NULL DEFAULT 1,
    terms bigint[] NOT NULL DEFAULT '{}',                  -- words of name, summary and keywords
    embedding halfvec,
    embedding_model text,
    embedding_dim integer,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (bank_id, canonical, revival),
    UNIQUE (id, bank_id),
    CHECK ((embedding IS NULL) = (embedding_model IS NULL)),
    CHECK (embedding_dim IS NOT DISTINCT FROM vector_dims(embedding))
);
CREATE INDEX interest_points_by_bank ON interest_points (bank_id, status, last_seen_at DESC);

-- Where it was said: ids and places, no text. The record may be evicted; what it said stays counted.
CREATE TABLE interest_evidence (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    point_id uuid NOT NULL REFERENCES interest_points (id) ON DELETE CASCADE,
    bank_id bigint NOT NULL,
    namespace_id bigint NOT NULL,
    record_key bigint NOT NULL,
    record_id text COLLATE "C" NOT NULL,
    turn integer NOT NULL CHECK (turn >= 0),
    start_char integer NOT NULL CHECK (start_char >= 0),
    end_char integer NOT NULL CHECK (end_char >= start_char),
    statement bytea NOT NULL CHECK (octet_length(statement) = 16),
    event_time timestamptz NOT NULL,
    operation_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (namespace_id, bank_id) REFERENCES namespaces (id, bank_id),
    UNIQUE (point_id, record_key, statement)
);
CREATE INDEX interest_evidence_by_statement ON interest_evidence (bank_id, record_key, statement);
CREATE INDEX interest_evidence_by_namespace ON interest_evidence (namespace_id);

CREATE TABLE interest_edges (
    bank_id bigint NOT NULL REFERENCES banks (id),
    source_id uuid NOT NULL REFERENCES interest_points (id) ON DELETE CASCADE,
    target_id uuid NOT NULL REFERENCES interest_points (id) ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('related', 'sequel', 'contradicts')),
    weight double precision NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_id, kind, target_id),
    CHECK (source_id <> target_id),
    -- What holds both ways is kept once.
    CHECK (kind = 'sequel' OR source_id < target_id)
);
CREATE INDEX interest_edges_by_target ON interest_edges (target_id, kind);
CREATE INDEX interest_edges_by_bank ON interest_edges (bank_id);

-- Two points that cannot both hold. Neither is removed; `current_side` says which one counts, and `current_because` why.
CREATE TABLE interest_contradictions (
    id uuid PRIMARY KEY,
    bank_id bigint NOT NULL REFERENCES banks (id),
    left_id uuid NOT NULL REFERENCES interest_points (id) ON DELETE CASCADE,
    right_id uuid NOT NULL REFERENCES interest_points (id) ON DELETE CASCADE,
    rule text NOT NULL,
    left_words text NOT NULL DEFAULT '',
    right_words text NOT NULL DEFAULT '',
    description text NOT NULL DEFAULT '',
    left_evidence bigint REFERENCES interest_evidence (id) ON DELETE SET NULL,
    right_evidence bigint REFERENCES interest_evidence (id) ON DELETE SET NULL,
    current_side text CHECK (current_side IN ('left', 'right')),
    current_because text NOT NULL,
    status text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'resolved')),
    operation_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    resolved_at timestamptz,
    UNIQUE (left_id, right_id),
    CHECK (left_id < right_id),
    CHECK ((status = 'resolved') = (resolved_at IS NOT NULL))
);
CREATE INDEX interest_contradictions_by_bank ON interest_contradictions (bank_id, status, created_at DESC);
CREATE INDEX interest_contradictions_by_right ON interest_contradictions (right_id);
CREATE INDEX interest_contradictions_by_left_evidence ON interest_contradictions (left_evidence);
CREATE INDEX interest_contradictions_by_right_evidence ON interest_contradictions (right_evidence);

CREATE TABLE interest_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    bank_id bigint NOT NULL REFERENCES banks (id),
    point_id uuid NOT NULL REFERENCES interest_points (id) ON DELETE CASCADE,
    operation_id uuid NOT NULL,
    action text NOT NULL CHECK (action IN ('create', 'update', 'archive', 'contradict')),
    detail jsonb NOT NULL DEFAULT '{}',                    -- ids, rules and counts, no text
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX interest_log_by_bank ON interest_log (bank_id, id DESC);
CREATE INDEX interest_log_by_point ON interest_log (point_id, id DESC);

-- Whose turn it is: the runs of a bank decide one after the other, so that each sees what the one before it wrote.
CREATE TABLE interest_banks (
    bank_id bigint PRIMARY KEY REFERENCES banks (id),
    version bigint NOT NULL DEFAULT 0,                     -- raised by every run that changed something
    turn_of uuid REFERENCES operations (id) ON DELETE SET NULL,
    taken_at timestamptz
);
CREATE INDEX interest_banks_by_turn ON interest_banks (turn_of) WHERE turn_of IS NOT NULL;
