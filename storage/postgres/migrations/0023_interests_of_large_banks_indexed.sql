-- To put a vector into the index costs more than to write the rest of its point, and small banks are compared whole anyway.
-- Only points of banks that have grown large are in the index.
ALTER TABLE interest_banks ADD COLUMN indexed boolean NOT NULL DEFAULT false;
ALTER TABLE interest_points ADD COLUMN indexed boolean NOT NULL DEFAULT false;

DROP INDEX interest_points_vector_384, interest_points_vector_768, interest_points_vector_1024, interest_points_vector_1536;
UPDATE interest_banks AS b SET indexed = true
WHERE 20000 < (SELECT count(*) FROM interest_points AS p WHERE p.bank_id = b.bank_id AND p.embedding IS NOT NULL);
UPDATE interest_points AS p SET indexed = true FROM interest_banks AS b WHERE b.bank_id = p.bank_id AND b.indexed;
CREATE INDEX interest_points_vector_384 ON interest_points USING hnsw ((embedding::halfvec(384)) halfvec_cosine_ops)
    WHERE embedding_dim = 384 AND indexed;
CREATE INDEX interest_points_vector_768 ON interest_points USING hnsw ((embedding::halfvec(768)) halfvec_cosine_ops)
    WHERE embedding_dim = 768 AND indexed;
CREATE INDEX interest_points_vector_1024 ON interest_points USING hnsw ((embedding::halfvec(1024)) halfvec_cosine_ops)
    WHERE embedding_dim = 1024 AND indexed;
CREATE INDEX interest_points_vector_1536 ON interest_points USING hnsw ((embedding::halfvec(1536)) halfvec_cosine_ops)
    WHERE embedding_dim = 1536 AND indexed;

-- A new point of a bank that is indexed is indexed, whoever writes it. The bank cannot become indexed before it is committed.
CREATE FUNCTION interest_points_indexed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    SELECT b.indexed INTO NEW.indexed FROM interest_banks AS b WHERE b.bank_id = NEW.bank_id FOR SHARE;
    NEW.indexed := coalesce(NEW.indexed, false);
    RETURN NEW;
END $$;
CREATE TRIGGER interest_points_indexed BEFORE INSERT ON interest_points
    FOR EACH ROW EXECUTE FUNCTION interest_points_indexed();
