-- Kinds are the schema of an installation: no tenant's data, so they have no namespace.
CREATE TABLE brain_kinds (
    kind text COLLATE "C" PRIMARY KEY,
    spec jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    retired_at timestamptz
);

-- Equal and alike: both are asked within a namespace, which is the first column of both.
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE EXTENSION IF NOT EXISTS btree_gin;
CREATE INDEX brain_objects_by_title ON brain_objects (namespace_id, md5(lower(btrim(title)))) WHERE deleted_at IS NULL;
-- A name stands at the beginning; comparing and indexing longer texts would cost more than all else here.
CREATE INDEX brain_objects_alike ON brain_objects
    USING gin (namespace_id, (left(title || E'\n' || summary || E'\n' || content, 160)) gin_trgm_ops)
    WHERE deleted_at IS NULL;

-- Times as bounds of a search.
CREATE INDEX brain_objects_by_change ON brain_objects (namespace_id, updated_at) WHERE deleted_at IS NULL;

-- Rows whose vectors another model made, or nobody yet.
CREATE INDEX brain_objects_by_stamp ON brain_objects (vector_model, key) WHERE vector_state = 'done' AND deleted_at IS NULL;
CREATE INDEX brain_objects_without_vector ON brain_objects (key) WHERE vector_state = 'none' AND deleted_at IS NULL;

-- The words of what an edge says.
ALTER TABLE brain_edges ADD COLUMN terms bigint[] NOT NULL DEFAULT '{}';
CREATE INDEX brain_edges_by_words ON brain_edges USING gin (namespace_id, terms) WHERE deleted_at IS NULL;
CREATE INDEX brain_edges_by_label ON brain_edges (namespace_id, lower(label)) WHERE deleted_at IS NULL;
