-- Whether a record has a vector, and the only word on it: one that is left over from an older text does not count.
-- none: nobody asked for one; pending: a step is on its way; failed: its model refused the text.
ALTER TABLE tier_records
    ADD COLUMN vector_state text NOT NULL DEFAULT 'none' CHECK (vector_state IN ('none', 'pending', 'done', 'failed'));

-- What a record is about as a vector, beside the words it is found by. Half precision: recall compares, it does not compute.
-- Beside the record, not in it: accesses and moves write a new version of the record's row, and would put its vector into
-- the index again each time. The stamp says which model made it, since vectors of two models say nothing to each other.
CREATE TABLE tier_vectors (
    record_key bigint PRIMARY KEY REFERENCES tier_records (key) ON DELETE CASCADE,
    bank_id bigint NOT NULL,                               -- of the record: a search has its scope without leaving the table
    namespace_id bigint NOT NULL,
    model text NOT NULL,
    dim smallint NOT NULL,                                 -- beside the vector, for the predicates of partial indexes
    vector halfvec NOT NULL,                               -- unit length, of whatever dimension its model has
    CHECK (vector_dims(vector) = dim)
);
-- Every comparison reads it: it stays in the row as long as it fits.
ALTER TABLE tier_vectors ALTER COLUMN vector SET STORAGE MAIN;

-- One index for each dimension, as pgvector needs; 384 is that of the offline model.
CREATE INDEX tier_vectors_near_384 ON tier_vectors USING hnsw ((vector::halfvec(384)) halfvec_cosine_ops)
    WITH (m = 16, ef_construction = 64) WHERE dim = 384;
