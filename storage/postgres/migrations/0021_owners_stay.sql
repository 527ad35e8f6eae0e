-- The owner of a row stays, whatever statement writes it: no upsert, import or repair moves a row to another namespace. Of
-- records and namespaces 0014 says so already.
DO $$
DECLARE
    owned record;
BEGIN
    FOR owned IN
        SELECT c.table_name, string_agg(c.column_name, ', ') AS columns,
               string_agg(format('OLD.%1$I IS DISTINCT FROM NEW.%1$I', c.column_name), ' OR ') AS differs
        FROM information_schema.columns AS c JOIN information_schema.tables AS t USING (table_schema, table_name)
        WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE'
          AND (c.column_name IN ('namespace_id', 'bank_id') OR (c.table_name LIKE 'graph%' AND c.column_name = 'namespace'))
          AND c.table_name NOT IN ('tier_records', 'namespaces')
          AND NOT EXISTS (SELECT 1 FROM pg_trigger AS g WHERE g.tgrelid = c.table_name::regclass AND g.tgname = c.table_name || '_stay')
        GROUP BY c.table_name
    LOOP
        EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OF %s ON %I FOR EACH ROW WHEN (%s) EXECUTE FUNCTION refuse_other_owner()',
                       owned.table_name || '_stay', owned.columns, owned.table_name, owned.differs);
    END LOOP;
END $$;

-- What hangs on an interest belongs to the bank of that interest.
DO $$
DECLARE
    hanging record;
BEGIN
    FOR hanging IN
        SELECT k.conrelid::regclass AS of, k.conname, a.attname
        FROM pg_constraint AS k JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1]
        WHERE k.contype = 'f' AND k.confrelid = 'interest_points'::regclass AND cardinality(k.conkey) = 1
          AND EXISTS (SELECT 1 FROM pg_attribute AS b WHERE b.attrelid = k.conrelid AND b.attname = 'bank_id')
    LOOP
        EXECUTE format('ALTER TABLE %1$s DROP CONSTRAINT %2$I, ADD CONSTRAINT %2$I FOREIGN KEY (%3$I, bank_id) '
                       'REFERENCES interest_points (id, bank_id) ON DELETE CASCADE', hanging.of, hanging.conname, hanging.attname);
    END LOOP;
END $$;

-- Where the blobs of what was forgotten were: keys, or what the keys of a namespace begin with. Both are hashes and random
-- numbers; the rows that knew them are gone.
ALTER TABLE erasures ADD COLUMN blobs text[] NOT NULL DEFAULT '{}';
