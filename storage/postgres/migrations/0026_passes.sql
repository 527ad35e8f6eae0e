-- Passes over a namespace, the newest first: how often it failed by now, and what a model answered that was not used.
CREATE INDEX operations_passes ON operations (namespace_id, id DESC) WHERE kind = 'tier.reconcile';
-- What is under way is not planned again.
CREATE INDEX operations_moving ON operations (namespace_id)
    WHERE finished_at IS NULL AND kind IN ('tier.reconcile', 'tier.quota', 'tier.restore');
