-- Single objects of the knowledge base and single interests can be forgotten too. Row keys and ids mean nothing once the rows
-- are gone; the edges are what the graph is told to forget, and go when it has.
ALTER TABLE erasures DROP CONSTRAINT erasures_level_check;
ALTER TABLE erasures ADD CONSTRAINT erasures_level_check
    CHECK (level IN ('records', 'objects', 'interests', 'namespace', 'session', 'agent', 'tenant'));
ALTER TABLE erasures ADD COLUMN objects uuid[] NOT NULL DEFAULT '{}', ADD COLUMN object_keys bigint[] NOT NULL DEFAULT '{}',
    ADD COLUMN edges jsonb NOT NULL DEFAULT '[]', ADD COLUMN interests uuid[] NOT NULL DEFAULT '{}';
