-- Edges that say which of two objects is the newer one. Few edges are of these kinds, so a search that asks for them among
-- what it found reads two small indexes. The list of labels is that of `isotherm.pipeline.brain.renewing`.
CREATE INDEX brain_edges_newer_out ON brain_edges (namespace_id, source) INCLUDE (target, label)
    WHERE deleted_at IS NULL
      AND lower(label) IN ('supersedes', 'replaces', 'updates', 'superseded_by', 'replaced_by', 'sequel', 'contradicts');
CREATE INDEX brain_edges_newer_in ON brain_edges (namespace_id, target) INCLUDE (source, label)
    WHERE deleted_at IS NULL
      AND lower(label) IN ('supersedes', 'replaces', 'updates', 'superseded_by', 'replaced_by', 'sequel', 'contradicts');
