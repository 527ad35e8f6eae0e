-- A posting is the commonest row by far, and most of a small record's bytes. Banks and namespaces are counted in four bytes
-- there (2,147,483,647 of each), and columns stand so that the row holds no padding. The key keeps a bank's words together.
CREATE TABLE narrow_postings (
    term bigint NOT NULL,
    record_key bigint NOT NULL,
    bank_id integer NOT NULL,
    namespace_id integer NOT NULL
);
INSERT INTO narrow_postings SELECT term, record_key, bank_id, namespace_id FROM tier_postings
ORDER BY bank_id, term, namespace_id, record_key;
DROP TABLE tier_postings;
ALTER TABLE narrow_postings RENAME TO tier_postings;
ALTER TABLE tier_postings ADD CONSTRAINT tier_postings_pkey PRIMARY KEY (bank_id, term, namespace_id, record_key);
