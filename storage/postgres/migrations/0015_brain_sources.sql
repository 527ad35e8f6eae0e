-- When what an object says was so, as its source tells: an import does not make old texts look fresh.
ALTER TABLE brain_objects ADD COLUMN source_time timestamptz;

-- Files that were accepted and are not objects yet; each row goes with the step that made its file one.
CREATE TABLE brain_imports (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation_id uuid NOT NULL REFERENCES operations (id) ON DELETE CASCADE,
    namespace_id bigint NOT NULL REFERENCES namespaces (id) ON DELETE CASCADE,
    object_id uuid NOT NULL,
    name text NOT NULL,
    content text NOT NULL,
    kind text NOT NULL,
    title text,
    content_type text NOT NULL,
    source_time timestamptz
);
CREATE INDEX brain_imports_by_operation ON brain_imports (operation_id);
CREATE INDEX brain_imports_by_namespace ON brain_imports (namespace_id);

-- What a name is compared with: the title, and where a text begins. Trigrams cost by the character, at every comparison and
-- every write, and the longer a text is the more often it has those of a query by chance.
DROP INDEX brain_objects_alike;
CREATE INDEX brain_objects_alike ON brain_objects USING gin (
    namespace_id,
    (left(title, 96) || E'\n' || left(CASE WHEN summary = '' THEN content ELSE summary END, 40)) gin_trgm_ops
) WHERE deleted_at IS NULL;
