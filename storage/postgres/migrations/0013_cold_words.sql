-- The words of a cold record: one row for each record, under an inverted index that keeps what follows a word compressed,
-- instead of a row and an entry of a key for each word. A word stands there as its bank (31 bits) and the lower half of its
-- number, so that an entry belongs to one bank and a bank's entries lie together. Below zero stands the record's namespace.
CREATE TABLE cold_words (
    record_key bigint PRIMARY KEY REFERENCES tier_records (key) ON DELETE CASCADE,
    bank_id integer NOT NULL,
    namespace_id integer NOT NULL,
    words bigint[] NOT NULL
);
-- Read by every recall: a list of entries that wait to be merged would be searched whole each time.
CREATE INDEX cold_words_by_word ON cold_words USING gin (words) WITH (fastupdate = off);

INSERT INTO cold_words (record_key, bank_id, namespace_id, words)
SELECT r.key, r.bank_id, r.namespace_id,
       -r.namespace_id || ARRAY(SELECT DISTINCT (r.bank_id << 32) | (u.term & 4294967295) FROM unnest(r.terms) AS u (term))
FROM tier_records AS r WHERE r.tier = 1 AND r.terms <> '{}' ORDER BY r.key;
DELETE FROM tier_postings AS p USING cold_words AS c WHERE p.record_key = c.record_key;
UPDATE tier_records SET terms = '{}' WHERE tier = 1 AND terms <> '{}';
COMMENT ON COLUMN tier_records.terms IS 'the words now in tier_postings: none of a cold record, whose words are in cold_words';
