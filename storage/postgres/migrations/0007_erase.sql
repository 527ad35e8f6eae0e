-- Pinned records are few: counting those of a namespace reads this alone.
CREATE INDEX tier_records_pinned ON tier_records (namespace_id) WHERE pinned;

-- An erasure finds the operations of its scope by these, and so does the check of every name that is deleted.
CREATE INDEX operations_by_namespace ON operations (namespace_id) WHERE namespace_id IS NOT NULL;
CREATE INDEX operations_by_bank ON operations (bank_id) WHERE bank_id IS NOT NULL;
CREATE INDEX operations_of_many ON operations (bank_id) WHERE namespace_id IS NULL;

-- Whose names are erased already, and whose rows follow. Nothing finds such a row by a name any more.
ALTER TABLE namespaces ADD COLUMN forgotten_at timestamptz;
ALTER TABLE banks ADD COLUMN forgotten_at timestamptz;

-- What was asked to be forgotten: row ids that mean nothing once the rows are gone, a hash of the scope's names, and counts
-- by kind of what was erased. This is the receipt, and it stays.
CREATE TABLE erasures (
    operation_id uuid PRIMARY KEY,
    level text NOT NULL CHECK (level IN ('records', 'namespace', 'session', 'agent', 'tenant')),
    scope_sha256 bytea NOT NULL CHECK (octet_length(scope_sha256) = 32),
    bank_ids bigint[] NOT NULL,
    namespace_ids bigint[] NOT NULL,
    record_keys bigint[] NOT NULL DEFAULT '{}',
    graphs uuid[] NOT NULL DEFAULT '{}',
    counts jsonb NOT NULL DEFAULT '{}',
    requested_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
);

-- A process may remember the ids of a namespace that was erased meanwhile. What it writes there would vanish: it is told to
-- ask for the ids again, by an error that looks like the one it gets once the namespace's row is gone too.
CREATE FUNCTION refuse_forgotten() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM (SELECT DISTINCT namespace_id, bank_id FROM fresh) AS f
        JOIN namespaces AS n ON n.id = f.namespace_id JOIN banks AS b ON b.id = f.bank_id
        WHERE n.forgotten_at IS NOT NULL OR b.forgotten_at IS NOT NULL
    ) THEN
        RAISE foreign_key_violation USING MESSAGE = 'the namespace was forgotten', CONSTRAINT = 'forgotten_namespace_id_fkey';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER tier_records_not_forgotten AFTER INSERT ON tier_records
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION refuse_forgotten();
CREATE TRIGGER brain_objects_not_forgotten AFTER INSERT ON brain_objects
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION refuse_forgotten();
