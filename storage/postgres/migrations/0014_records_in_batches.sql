-- A record belongs to a namespace of its bank. A foreign key looks that up and locks it for every row, a fifth of what storing
-- a batch takes; these triggers hold the same once per statement. They lock what the key locked, so a namespace that is being
-- erased waits for the writers it has, and whoever comes later is refused.
ALTER TABLE tier_records DROP CONSTRAINT tier_records_namespace_id_bank_id_fkey;
DROP TRIGGER tier_records_not_forgotten ON tier_records;
DROP TRIGGER tier_records_come ON tier_records;
DROP FUNCTION tier_depth_grown();

CREATE FUNCTION tier_records_come() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    strays bigint;
BEGIN
    WITH grown AS MATERIALIZED (
        SELECT namespace_id, bank_id, tier, count(*) AS records, sum(size_bytes) AS bytes FROM come GROUP BY 1, 2, 3
    ), depth AS (
        INSERT INTO tier_depth SELECT namespace_id, tier, records, bytes FROM grown
    )
    SELECT count(*) INTO strays FROM (SELECT DISTINCT namespace_id, bank_id FROM grown ORDER BY 1) AS g LEFT JOIN LATERAL (
        SELECT true AS held FROM namespaces AS n JOIN banks AS b ON b.id = n.bank_id
        WHERE n.id = g.namespace_id AND n.bank_id = g.bank_id AND n.forgotten_at IS NULL AND b.forgotten_at IS NULL
        FOR KEY SHARE OF n) AS owner ON true
    WHERE owner.held IS NULL;
    IF strays > 0 THEN
        RAISE foreign_key_violation USING MESSAGE = 'a record needs a namespace that was not forgotten',
            CONSTRAINT = 'tier_records_namespace_id_bank_id_fkey';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER tier_records_come AFTER INSERT ON tier_records
    REFERENCING NEW TABLE AS come FOR EACH STATEMENT EXECUTE FUNCTION tier_records_come();

CREATE FUNCTION namespaces_in_use() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM gone AS g CROSS JOIN LATERAL (
        SELECT 1 FROM tier_records AS r WHERE r.namespace_id = g.id LIMIT 1) AS left_over
    ) THEN
        RAISE foreign_key_violation USING MESSAGE = 'the namespace has records',
            CONSTRAINT = 'tier_records_namespace_id_bank_id_fkey';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER namespaces_in_use AFTER DELETE ON namespaces
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION namespaces_in_use();

CREATE FUNCTION namespaces_emptied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tier_records) THEN
        RAISE foreign_key_violation USING MESSAGE = 'namespaces have records',
            CONSTRAINT = 'tier_records_namespace_id_bank_id_fkey';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER namespaces_emptied AFTER TRUNCATE ON namespaces EXECUTE FUNCTION namespaces_emptied();

-- Nothing moves a record to another namespace, or a namespace to another bank.
CREATE FUNCTION refuse_other_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE foreign_key_violation USING MESSAGE = 'the owner of a row stays',
        CONSTRAINT = 'tier_records_namespace_id_bank_id_fkey';
END $$;
CREATE TRIGGER tier_records_stay BEFORE UPDATE OF namespace_id, bank_id ON tier_records FOR EACH ROW
    WHEN ((OLD.namespace_id, OLD.bank_id) IS DISTINCT FROM (NEW.namespace_id, NEW.bank_id))
    EXECUTE FUNCTION refuse_other_owner();
CREATE TRIGGER namespaces_stay BEFORE UPDATE OF id, bank_id ON namespaces FOR EACH ROW
    WHEN ((OLD.id, OLD.bank_id) IS DISTINCT FROM (NEW.id, NEW.bank_id))
    EXECUTE FUNCTION refuse_other_owner();

-- A batch of new records is an upsert, so that this is called with nothing to count.
CREATE OR REPLACE FUNCTION tier_depth_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM come) THEN
        INSERT INTO tier_depth SELECT namespace_id, tier, sum(n), sum(n * size_bytes) FROM (
            SELECT namespace_id, tier, size_bytes, -1 AS n FROM gone
            UNION ALL SELECT namespace_id, tier, size_bytes, 1 FROM come) AS changes
        GROUP BY namespace_id, tier HAVING sum(n) <> 0 OR sum(n * size_bytes) <> 0;
    END IF;
    RETURN NULL;
END $$;
