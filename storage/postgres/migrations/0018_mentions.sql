-- What objects are called, as folded words. A name that is not linked yet was not looked for in the texts that were there
-- before it. `anchor` is the term of its longest word: names are found by the words of a text, and texts by those of a name.
CREATE TABLE brain_names (
    namespace_id bigint NOT NULL REFERENCES namespaces (id) ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    object_key bigint NOT NULL REFERENCES brain_objects (key) ON DELETE CASCADE,
    object_id uuid NOT NULL,
    anchor bigint NOT NULL,
    terms bigint[] NOT NULL,
    linked boolean NOT NULL DEFAULT false,
    PRIMARY KEY (namespace_id, name, object_key)
);
CREATE INDEX brain_names_by_anchor ON brain_names (namespace_id, anchor) INCLUDE (name, object_key, object_id);
CREATE INDEX brain_names_by_object ON brain_names (object_key);

-- How often the source's text has a name of the target; NULL for an edge that somebody made, 0 for one that is gone because
-- the text has none any more.
ALTER TABLE brain_edges ADD COLUMN mentions integer CHECK (mentions >= 0);
-- Walks from many objects read these alone.
CREATE INDEX brain_edges_out ON brain_edges (namespace_id, source) INCLUDE (target, mentions) WHERE deleted_at IS NULL;
CREATE INDEX brain_edges_in ON brain_edges (namespace_id, target) INCLUDE (source, mentions) WHERE deleted_at IS NULL;

-- Objects that were there before names were kept; a tick asks for theirs and takes them out.
CREATE TABLE brain_unnamed (object_key bigint PRIMARY KEY REFERENCES brain_objects (key) ON DELETE CASCADE);
INSERT INTO brain_unnamed SELECT key FROM brain_objects WHERE parent_id IS NULL AND deleted_at IS NULL;
