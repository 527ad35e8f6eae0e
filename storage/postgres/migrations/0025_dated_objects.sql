-- Whether anything of a namespace says when it was so. Where nothing does, a search need not look at what it found for the
-- newer one of two.
CREATE INDEX brain_objects_dated ON brain_objects (namespace_id) WHERE source_time IS NOT NULL AND deleted_at IS NULL;
