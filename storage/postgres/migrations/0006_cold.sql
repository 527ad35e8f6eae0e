-- Large bodies of cold records are objects of a blob store. Their rows outlive the records: an object goes first, then its row.
-- writing: an upload is on its way, or was given up; live: a cold body refers to it; orphan: nothing does any more;
-- dead: collection has begun, and nothing may refer to it again.
CREATE TABLE cold_blobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    object_key text NOT NULL UNIQUE,
    bank_id bigint NOT NULL,
    namespace_id bigint NOT NULL,
    record_key bigint NOT NULL,
    stored_bytes integer NOT NULL CHECK (stored_bytes >= 0),
    state text NOT NULL DEFAULT 'writing' CHECK (state IN ('writing', 'live', 'orphan', 'dead')),
    changed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX cold_blobs_to_collect ON cold_blobs (changed_at) WHERE state <> 'live';
CREATE INDEX cold_blobs_by_namespace ON cold_blobs (namespace_id);

ALTER TABLE cold_bodies
    ALTER COLUMN body DROP NOT NULL,
    ADD COLUMN blob_id bigint UNIQUE REFERENCES cold_blobs (id),
    ADD CHECK (num_nonnulls(body, blob_id) = 1);

-- Whoever removes a body, and be it by removing its record, lets go of its object in the same transaction.
CREATE FUNCTION cold_blob_let_go() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cold_blobs SET state = 'orphan', changed_at = now() WHERE id = OLD.blob_id AND state = 'live';
    RETURN NULL;
END $$;
CREATE TRIGGER cold_bodies_removed AFTER DELETE ON cold_bodies
    FOR EACH ROW WHEN (OLD.blob_id IS NOT NULL) EXECUTE FUNCTION cold_blob_let_go();
CREATE TRIGGER cold_bodies_replaced AFTER UPDATE OF blob_id ON cold_bodies
    FOR EACH ROW WHEN (OLD.blob_id IS NOT NULL AND OLD.blob_id IS DISTINCT FROM NEW.blob_id)
    EXECUTE FUNCTION cold_blob_let_go();

-- Records that a pass could not move. It counts for one version of the record: whatever changes the record sets it free.
CREATE TABLE tier_set_aside (
    record_key bigint PRIMARY KEY REFERENCES tier_records (key) ON DELETE CASCADE,
    namespace_id bigint NOT NULL,
    version bigint NOT NULL,
    reason text NOT NULL,
    attempts integer NOT NULL DEFAULT 1 CHECK (attempts > 0),
    since timestamptz NOT NULL DEFAULT now(),
    held_until timestamptz NOT NULL                        -- infinity: until somebody restores it
);
CREATE INDEX tier_set_aside_by_namespace ON tier_set_aside (namespace_id, held_until);

-- Pinned means never below warm; who was pinned while cold is lifted by the next pass.
CREATE INDEX tier_records_pinned_cold ON tier_records (namespace_id) WHERE tier = 1 AND pinned;

-- A cold record keeps the signs of its vector. It is found by them, and gets the vector back by being embedded again; one
-- that this installation's model did not make is kept beside them, outside of the index.
ALTER TABLE tier_vectors
    ALTER COLUMN vector DROP NOT NULL,
    ADD COLUMN bits varbit,
    ADD COLUMN kept halfvec,
    ADD CHECK (num_nonnulls(vector, bits) = 1),
    ADD CHECK (length(bits) = dim),
    ADD CHECK (kept IS NULL OR bits IS NOT NULL);
CREATE INDEX tier_vectors_bits_384 ON tier_vectors USING hnsw ((bits::bit(384)) bit_hamming_ops)
    WITH (m = 6, ef_construction = 64) WHERE dim = 384 AND bits IS NOT NULL;

-- again: found by the signs that are left, and to be embedded again.
ALTER TABLE tier_records
    DROP CONSTRAINT tier_records_vector_state_check,
    ADD CONSTRAINT tier_records_vector_state_check
        CHECK (vector_state IN ('none', 'pending', 'done', 'failed', 'again'));

-- What a cold record costs beside its text. The log is read by record, in order; its namespace is that of the record.
DROP INDEX tier_moves_by_namespace, tier_moves_by_record;
ALTER TABLE tier_moves DROP CONSTRAINT tier_moves_pkey, ADD PRIMARY KEY (record_key, id);
