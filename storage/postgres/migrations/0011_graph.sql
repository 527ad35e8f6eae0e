-- What the graph shows of an object changes with its revision and with its vector; messages that overtake each other are
-- told apart by a number that rises with both.
ALTER TABLE brain_objects ADD COLUMN projected bigint NOT NULL DEFAULT 1;
UPDATE brain_objects SET projected = revision + 1;

CREATE FUNCTION brain_objects_projected() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.projected := OLD.projected + 1;
    RETURN NEW;
END $$;
CREATE TRIGGER brain_objects_projected BEFORE UPDATE OF revision, vector, vector_model, deleted_at ON brain_objects
    FOR EACH ROW
    WHEN (OLD.revision <> NEW.revision OR OLD.vector_model IS DISTINCT FROM NEW.vector_model
          OR (OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL))
    EXECUTE FUNCTION brain_objects_projected();

-- Words and vectors by which PostgreSQL's graph finds objects, and words by which it finds edges.
ALTER TABLE graph_nodes
    ADD COLUMN terms bigint[] NOT NULL DEFAULT '{}',
    ADD COLUMN counts integer[] NOT NULL DEFAULT '{}',
    ADD COLUMN length integer NOT NULL DEFAULT 0,
    ADD COLUMN vector halfvec,
    ADD COLUMN vector_model text,
    ADD CHECK (cardinality(terms) = cardinality(counts)),
    ADD CHECK ((vector IS NULL) = (vector_model IS NULL));
ALTER TABLE graph_nodes ALTER COLUMN vector SET STORAGE MAIN;
CREATE INDEX graph_nodes_by_term ON graph_nodes USING gin (terms) WHERE NOT deleted;
CREATE INDEX graph_nodes_by_model ON graph_nodes (namespace, vector_model) WHERE vector_model IS NOT NULL AND NOT deleted;

ALTER TABLE graph_edges
    ADD COLUMN terms bigint[] NOT NULL DEFAULT '{}',
    ADD COLUMN counts integer[] NOT NULL DEFAULT '{}',
    ADD COLUMN length integer NOT NULL DEFAULT 0,
    ADD CHECK (cardinality(terms) = cardinality(counts));
CREATE INDEX graph_edges_by_term ON graph_edges USING gin (terms) WHERE NOT deleted;
-- Notes without words are written again by the next check.
DELETE FROM graph_edges WHERE properties ? 'note';

-- When the graph of a namespace was last compared with the truth, and what was found.
CREATE TABLE brain_drift (
    namespace_id bigint PRIMARY KEY REFERENCES namespaces (id) ON DELETE CASCADE,
    checked_at timestamptz NOT NULL,
    nodes bigint NOT NULL DEFAULT 0,
    edges bigint NOT NULL DEFAULT 0
);
