-- Vectors of another model than the present one, found without reading the others; one stamp for nearly all rows is packed
-- into a few bytes each.
CREATE INDEX tier_vectors_by_model ON tier_vectors (model);

-- How far records were looked through for those that nobody asked a vector for, since there was no model when they came.
-- Their state has no index: every change of it would then write to all the indexes of a record.
CREATE TABLE tier_embedding (
    model text PRIMARY KEY,
    looked_to bigint NOT NULL DEFAULT 0,                   -- record key
    finished_at timestamptz
);

-- How often something of a bank was erased: what a model says to a question from before is not kept.
ALTER TABLE banks ADD COLUMN erasures bigint NOT NULL DEFAULT 0;
