-- How often an object has each of its terms, so that its node takes both as they are. Only where a node has the words of the
-- whole object: parts have none, and a long text has more words than its node. Rows that were there before go by their text.
ALTER TABLE brain_objects ADD COLUMN counts smallint[] CHECK (cardinality(counts) = cardinality(terms));
