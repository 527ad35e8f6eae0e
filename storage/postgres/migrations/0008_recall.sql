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
    INSERT INTO tier_depth
    VALUES (OLD.namespace_id, OLD.tier, -1, -OLD.size_bytes), (NEW.namespace_id, NEW.tier, 1, NEW.size_bytes);
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
-- For each row, since accesses and words are written far more often than tiers, and must not pay for this.
CREATE TRIGGER tier_records_moved AFTER UPDATE ON tier_records FOR EACH ROW
    WHEN ((OLD.tier, OLD.size_bytes, OLD.namespace_id) IS DISTINCT FROM (NEW.tier, NEW.size_bytes, NEW.namespace_id))
    EXECUTE FUNCTION tier_depth_moved();
CREATE TRIGGER tier_records_emptied AFTER TRUNCATE ON tier_records EXECUTE FUNCTION tier_depth_emptied();
