-- One row per record, whatever its tier: moving a record changes its row, so it is never in two tiers or none.
CREATE TABLE tier_records (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL,
    bank_id bigint NOT NULL,
    id text COLLATE "C" NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 512),
    content text,
    content_sha256 bytea NOT NULL CHECK (octet_length(content_sha256) = 32),
    summary text,
    role text,
    categories text[] NOT NULL DEFAULT '{}',
    metadata jsonb NOT NULL DEFAULT '{}',
    importance double precision NOT NULL CHECK (importance BETWEEN 0 AND 1),
    tier smallint NOT NULL CHECK (tier BETWEEN 1 AND 3),   -- 3 hot, 2 warm, 1 cold
    pinned boolean NOT NULL DEFAULT false,
    version bigint NOT NULL DEFAULT 1,
    access_count bigint NOT NULL DEFAULT 0,
    heat_log double precision,                             -- see isotherm.pipeline.tier.heat
    value_log double precision NOT NULL,
    created_at timestamptz NOT NULL,
    last_access_at timestamptz NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(),
    moved_at timestamptz,
    moved_from smallint,
    size_bytes integer NOT NULL CHECK (size_bytes >= 0),
    terms bigint[] NOT NULL DEFAULT '{}',                  -- the words now in tier_postings
    indexed boolean NOT NULL DEFAULT false,
    FOREIGN KEY (namespace_id, bank_id) REFERENCES namespaces (id, bank_id),
    UNIQUE (namespace_id, id),
    CHECK ((tier = 1) = (content IS NULL)),
    CHECK ((tier = 1) = (summary IS NOT NULL))
);
CREATE INDEX tier_records_newest ON tier_records (namespace_id, created_at DESC, id DESC);
CREATE INDEX tier_records_newest_in_bank ON tier_records (bank_id, created_at DESC, id DESC);
CREATE INDEX tier_records_by_value ON tier_records (namespace_id, tier, value_log);
CREATE INDEX tier_records_by_access ON tier_records (namespace_id, tier, last_access_at) WHERE NOT pinned;
CREATE INDEX tier_records_by_heat ON tier_records (namespace_id, tier, heat_log)
    WHERE heat_log IS NOT NULL AND tier < 3 AND NOT pinned;
CREATE INDEX tier_records_by_cold_age ON tier_records (namespace_id, greatest(last_access_at, moved_at))
    WHERE tier = 1 AND NOT pinned;
CREATE INDEX tier_records_unindexed ON tier_records (bank_id, created_at DESC) WHERE NOT indexed;

-- Words of every record, newest last within a word: the index that finds records by their text.
CREATE TABLE tier_postings (
    bank_id bigint NOT NULL,
    term bigint NOT NULL,
    record_key bigint NOT NULL,
    namespace_id bigint NOT NULL,
    PRIMARY KEY (bank_id, term, record_key) INCLUDE (namespace_id)
);

-- Bodies of cold records whose summary is not the whole text.
CREATE TABLE cold_bodies (
    record_key bigint PRIMARY KEY REFERENCES tier_records (key) ON DELETE CASCADE,
    body bytea NOT NULL,
    codec text NOT NULL CHECK (codec IN ('zstd')),
    raw_bytes integer NOT NULL CHECK (raw_bytes >= 0),
    stored_at timestamptz NOT NULL DEFAULT now()
);
-- Bodies are compressed already.
ALTER TABLE cold_bodies ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE tier_moves (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    record_key bigint NOT NULL REFERENCES tier_records (key) ON DELETE CASCADE,
    namespace_id bigint NOT NULL,
    operation_id uuid NOT NULL,
    source smallint NOT NULL,
    target smallint NOT NULL,
    reason text NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tier_moves_by_record ON tier_moves (record_key, id DESC);
CREATE INDEX tier_moves_by_namespace ON tier_moves (namespace_id, id DESC);

-- Batches of counted accesses that are already in tier_records: applying one twice changes nothing.
CREATE TABLE touch_batches (
    id text PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX touch_batches_by_age ON touch_batches (applied_at);
