-- A word is read within a session as well as within the whole bank: the namespace stands between the word and the record.
-- A bank's records come newest session first. The index has every column, so nothing is included.
ALTER TABLE tier_postings
    DROP CONSTRAINT tier_postings_pkey,
    ADD PRIMARY KEY (bank_id, term, namespace_id, record_key);

-- How many records and bytes each tier of a namespace has: the sum of its rows. Whatever changes a tier appends to it in its
-- own transaction, so that a sum is exact and writers do not wait for each other; a pass folds what has come together.
CREATE TABLE tier_depth (
    namespace_id bigint NOT NULL,
    tier smallint NOT NULL,
    records bigint NOT NULL,
    bytes bigint NOT NULL
);
CREATE INDEX tier_depth_by_namespace ON tier_depth (namespace_id, tier) INCLUDE (records, bytes);
INSERT INTO tier_depth SELECT namespace_id, tier, count(*), sum(size_bytes) FROM tier_records GROUP BY namespace_id, tier;

CREATE FUNCTION tier_depth_grown() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tier_depth SELECT namespace_id, tier, count(*), sum(size_bytes) FROM come GROUP BY namespace_id, tier;
    RETURN NULL;
END $$;
CREATE FUNCTION tier_depth_shrunk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tier_depth SELECT namespace_id, tier, -count(*), -sum(size_bytes) FROM gone GROUP BY namespace_id, tier;
    RETURN NULL;
END $$;
CREATE FUNCTION tier_depth_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tier_depth SELECT namespace_id, tier, sum(n), sum(n * size_bytes) FROM (
        SELECT namespace_id, tier, size_bytes, -1 AS n FROM gone
        UNION ALL SELECT namespace_id, tier, size_bytes, 1 FROM come) AS changes
    GROUP BY namespace_id, tier HAVING sum(n) <> 0 OR sum(n * size_bytes) <> 0;
    RETURN NULL;
END $$;
CREATE FUNCTION tier_depth_emptied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    TRUNCATE tier_depth;
    RETURN NULL;
END $$;
CREATE TRIGGER tier_records_come AFTER INSERT ON tier_records
    REFERENCING NEW TABLE AS come FOR EACH STATEMENT EXECUTE FUNCTION tier_depth_grown();
CREATE TRIGGER tier_records_gone AFTER DELETE ON tier_records
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION tier_depth_shrunk();
CREATE TRIGGER tier_records_moved AFTER UPDATE ON tier_records
    REFERENCING OLD TABLE AS gone NEW TABLE AS come FOR EACH STATEMENT EXECUTE FUNCTION tier_depth_moved();
CREATE TRIGGER tier_records_emptied AFTER TRUNCATE ON tier_records EXECUTE FUNCTION tier_depth_emptied();
