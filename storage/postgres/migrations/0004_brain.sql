-- Objects of the knowledge base and their parts. An id belongs to its namespace: the same id elsewhere is another object.
CREATE TABLE brain_objects (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL,
    bank_id bigint NOT NULL,
    id uuid NOT NULL,
    kind text NOT NULL,
    title text NOT NULL,
    summary text NOT NULL,
    content text NOT NULL,
    content_type text NOT NULL,
    properties jsonb NOT NULL,
    parent_id uuid,
    position integer,
    revision bigint NOT NULL DEFAULT 1 CHECK (revision >= 1),
    index_sha256 bytea NOT NULL CHECK (octet_length(index_sha256) = 32),
    terms bigint[] NOT NULL,                               -- the words now in brain_postings, none of a deleted object
    length integer NOT NULL CHECK (length >= 0),           -- how many words it has, repeated ones too
    vector halfvec,
    vector_model text,
    vector_dim integer,
    -- none: nobody asked for one; pending: a step is on its way; failed: its model refused the text.
    vector_state text NOT NULL CHECK (vector_state IN ('none', 'pending', 'done', 'failed')),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    deleted_at timestamptz,
    FOREIGN KEY (namespace_id, bank_id) REFERENCES namespaces (id, bank_id) ON DELETE CASCADE,
    UNIQUE (namespace_id, id),
    FOREIGN KEY (namespace_id, parent_id) REFERENCES brain_objects (namespace_id, id) ON DELETE CASCADE,
    CHECK (parent_id <> id),
    CHECK ((vector_state = 'done') = (vector IS NOT NULL)),
    CHECK ((vector IS NULL) = (vector_model IS NULL)),
    CHECK ((vector IS NULL) = (vector_dim IS NULL)),
    CHECK (vector_dims(vector) = vector_dim)
);
-- A vector is read with every exact scan, and cannot be compressed: long texts leave the row first.
ALTER TABLE brain_objects ALTER COLUMN vector SET STORAGE MAIN;
CREATE INDEX brain_objects_by_kind ON brain_objects (namespace_id, kind) WHERE deleted_at IS NULL;
CREATE INDEX brain_objects_parts ON brain_objects (namespace_id, parent_id, position, id)
    WHERE parent_id IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX brain_objects_by_model ON brain_objects (namespace_id, vector_model)
    WHERE vector_model IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX brain_objects_by_property ON brain_objects USING gin (properties jsonb_path_ops) WHERE deleted_at IS NULL;
-- One index for each usual length; an index without rows costs nothing. Other lengths are compared one by one.
CREATE INDEX brain_objects_vector_384 ON brain_objects USING hnsw ((vector::halfvec(384)) halfvec_cosine_ops)
    WHERE vector_dim = 384 AND deleted_at IS NULL;
CREATE INDEX brain_objects_vector_768 ON brain_objects USING hnsw ((vector::halfvec(768)) halfvec_cosine_ops)
    WHERE vector_dim = 768 AND deleted_at IS NULL;
CREATE INDEX brain_objects_vector_1024 ON brain_objects USING hnsw ((vector::halfvec(1024)) halfvec_cosine_ops)
    WHERE vector_dim = 1024 AND deleted_at IS NULL;
CREATE INDEX brain_objects_vector_1536 ON brain_objects USING hnsw ((vector::halfvec(1536)) halfvec_cosine_ops)
    WHERE vector_dim = 1536 AND deleted_at IS NULL;

-- Words of every live object with what BM25 needs of them, so that scoring reads this index alone.
CREATE TABLE brain_postings (
    namespace_id bigint NOT NULL REFERENCES namespaces (id) ON DELETE CASCADE,
    term bigint NOT NULL,
    object_key bigint NOT NULL,
    tf integer NOT NULL CHECK (tf >= 1),
    length integer NOT NULL CHECK (length >= 1),
    PRIMARY KEY (namespace_id, term, object_key) INCLUDE (tf, length)
);

-- Statistics are appended to by writes and folded by a tick: counters in the write path make writers wait for each other.
CREATE TABLE brain_stats_deltas (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL REFERENCES namespaces (id) ON DELETE CASCADE,
    documents integer NOT NULL,
    length bigint NOT NULL,
    terms bigint[] NOT NULL,
    counts integer[] NOT NULL,                             -- documents that got each of the terms, less those that lost it
    CHECK (cardinality(terms) = cardinality(counts))
);
CREATE INDEX brain_stats_deltas_by_namespace ON brain_stats_deltas (namespace_id) INCLUDE (documents, length);

CREATE TABLE brain_stats (
    namespace_id bigint PRIMARY KEY REFERENCES namespaces (id) ON DELETE CASCADE,
    documents bigint NOT NULL,
    length bigint NOT NULL
);

CREATE TABLE brain_terms (
    namespace_id bigint NOT NULL REFERENCES namespaces (id) ON DELETE CASCADE,
    term bigint NOT NULL,
    documents bigint NOT NULL,
    PRIMARY KEY (namespace_id, term) INCLUDE (documents)
);

-- The truth of all relations but containment. Unlinked edges stay as tombstones, so that the graph cannot bring one back.
CREATE TABLE brain_edges (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id bigint NOT NULL,
    source uuid NOT NULL,
    target uuid NOT NULL,
    label text COLLATE "C" NOT NULL,
    note text NOT NULL,
    status text NOT NULL,
    role text NOT NULL,
    confidence double precision CHECK (confidence BETWEEN 0 AND 1),
    evidence_id uuid,
    revision bigint NOT NULL DEFAULT 1 CHECK (revision >= 1),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz,
    UNIQUE (namespace_id, source, target, label),
    FOREIGN KEY (namespace_id, source) REFERENCES brain_objects (namespace_id, id) ON DELETE CASCADE,
    FOREIGN KEY (namespace_id, target) REFERENCES brain_objects (namespace_id, id) ON DELETE CASCADE,
    CHECK (source <> target)
);
CREATE INDEX brain_edges_by_target ON brain_edges (namespace_id, target);

-- PostgreSQL's own graph: a projection of the tables above that can be emptied and filled again. Rows of what is gone stay
-- as tombstones with their revision, so that a late message cannot bring it back.
CREATE TABLE graph_nodes (
    namespace uuid NOT NULL,
    id uuid NOT NULL,
    revision bigint NOT NULL,
    kind text NOT NULL,
    title text NOT NULL,
    deleted boolean NOT NULL,
    PRIMARY KEY (namespace, id)
);

CREATE TABLE graph_edges (
    namespace uuid NOT NULL,
    source uuid NOT NULL,
    target uuid NOT NULL,
    label text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    properties jsonb NOT NULL,
    deleted boolean NOT NULL,
    PRIMARY KEY (namespace, source, target, label)
);
CREATE INDEX graph_edges_out ON graph_edges (namespace, source, lower(label), target) WHERE NOT deleted;
CREATE INDEX graph_edges_in ON graph_edges (namespace, target, lower(label), source) WHERE NOT deleted;
