-- Pinned records are few: counting those of a namespace, and finding the cold ones among them, reads this alone.
CREATE INDEX tier_records_pinned ON tier_records (namespace_id, tier) WHERE pinned;
