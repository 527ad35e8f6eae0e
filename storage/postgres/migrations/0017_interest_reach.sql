-- A bank may have a million interests: each is found by its vector and by its rarer words without looking at the others.
ALTER TABLE interest_points ALTER COLUMN embedding SET STORAGE MAIN;
CREATE INDEX interest_points_by_model ON interest_points (bank_id, embedding_model) WHERE embedding_model IS NOT NULL;
-- One index for each usual length; an index without rows costs nothing. Other lengths are compared one by one.
CREATE INDEX interest_points_vector_384 ON interest_points USING hnsw ((embedding::halfvec(384)) halfvec_cosine_ops)
    WHERE embedding_dim = 384;
CREATE INDEX interest_points_vector_768 ON interest_points USING hnsw ((embedding::halfvec(768)) halfvec_cosine_ops)
    WHERE embedding_dim = 768;
CREATE INDEX interest_points_vector_1024 ON interest_points USING hnsw ((embedding::halfvec(1024)) halfvec_cosine_ops)
    WHERE embedding_dim = 1024;
CREATE INDEX interest_points_vector_1536 ON interest_points USING hnsw ((embedding::halfvec(1536)) halfvec_cosine_ops)
    WHERE embedding_dim = 1536;

-- The words of every point that is not archived. Triggers keep them, so that no writer can forget to.
CREATE TABLE interest_postings (
    bank_id bigint NOT NULL REFERENCES banks (id),
    term bigint NOT NULL,
    point_id uuid NOT NULL REFERENCES interest_points (id) ON DELETE CASCADE,
    PRIMARY KEY (bank_id, term, point_id)
);
CREATE INDEX interest_postings_by_point ON interest_postings (point_id);

CREATE FUNCTION interest_points_posted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM interest_postings WHERE point_id = NEW.id
            AND (NEW.status = 'archived' OR term <> ALL (NEW.terms));
    END IF;
    IF NEW.status <> 'archived' THEN
        INSERT INTO interest_postings (bank_id, term, point_id)
        SELECT DISTINCT NEW.bank_id, t.term, NEW.id FROM unnest(NEW.terms) AS t (term) ORDER BY 2 ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER interest_points_posted_new AFTER INSERT ON interest_points
    FOR EACH ROW EXECUTE FUNCTION interest_points_posted();
CREATE TRIGGER interest_points_posted_anew AFTER UPDATE OF terms, status ON interest_points FOR EACH ROW
    WHEN (OLD.terms IS DISTINCT FROM NEW.terms OR (OLD.status = 'archived') <> (NEW.status = 'archived'))
    EXECUTE FUNCTION interest_points_posted();
INSERT INTO interest_postings (bank_id, term, point_id)
SELECT DISTINCT p.bank_id, t.term, p.id FROM interest_points AS p, unnest(p.terms) AS t (term) WHERE p.status <> 'archived';

-- Which theme a point belongs to. Beside the points, since all of it changes when themes are found anew, and the index of
-- vectors takes in every new version of a point.
CREATE TABLE interest_theme_points (
    point_id uuid PRIMARY KEY REFERENCES interest_points (id) ON DELETE CASCADE,
    theme_id uuid NOT NULL REFERENCES interest_themes (id) ON DELETE CASCADE
);
CREATE INDEX interest_theme_points_by_theme ON interest_theme_points (theme_id);
INSERT INTO interest_theme_points (point_id, theme_id) SELECT id, theme_id FROM interest_points WHERE theme_id IS NOT NULL;
ALTER TABLE interest_points DROP COLUMN theme_id;

-- What the graph should hold of a bank's points (kind '') and edges, gone ones too, and how much of it the graph was brought.
-- Ids and numbers only. Triggers keep it in the transaction of the change: it is the mirror's outbox, and the truth that a
-- graph is compared with.
CREATE TABLE interest_mirror (
    bank_id bigint NOT NULL REFERENCES banks (id),
    source_id uuid NOT NULL,
    kind text COLLATE "C" NOT NULL DEFAULT '',
    target_id uuid NOT NULL,                               -- of a point: itself
    revision bigint NOT NULL DEFAULT 1,
    gone boolean NOT NULL DEFAULT false,
    mirrored bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (bank_id, source_id, kind, target_id)
);
CREATE INDEX interest_mirror_due ON interest_mirror (bank_id) WHERE mirrored < revision;

CREATE FUNCTION interest_points_mirrored() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    one interest_points := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO interest_mirror AS m (bank_id, source_id, kind, target_id, gone)
    VALUES (one.bank_id, one.id, '', one.id, TG_OP = 'DELETE')
    ON CONFLICT (bank_id, source_id, kind, target_id)
    DO UPDATE SET revision = m.revision + 1, gone = excluded.gone;
    RETURN NULL;
END $$;
CREATE TRIGGER interest_points_mirrored AFTER INSERT OR DELETE ON interest_points
    FOR EACH ROW EXECUTE FUNCTION interest_points_mirrored();
CREATE TRIGGER interest_points_mirrored_anew AFTER UPDATE ON interest_points FOR EACH ROW
    WHEN (OLD.version <> NEW.version OR OLD.embedding_model IS DISTINCT FROM NEW.embedding_model OR OLD.status <> NEW.status)
    EXECUTE FUNCTION interest_points_mirrored();

CREATE FUNCTION interest_edges_mirrored() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    one interest_edges := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO interest_mirror AS m (bank_id, source_id, kind, target_id, gone)
    VALUES (one.bank_id, one.source_id, one.kind, one.target_id, TG_OP = 'DELETE')
    ON CONFLICT (bank_id, source_id, kind, target_id)
    DO UPDATE SET revision = m.revision + 1, gone = excluded.gone;
    RETURN NULL;
END $$;
CREATE TRIGGER interest_edges_mirrored AFTER INSERT OR UPDATE OR DELETE ON interest_edges
    FOR EACH ROW EXECUTE FUNCTION interest_edges_mirrored();

INSERT INTO interest_mirror (bank_id, source_id, kind, target_id) SELECT bank_id, id, '', id FROM interest_points;
INSERT INTO interest_mirror (bank_id, source_id, kind, target_id)
SELECT bank_id, source_id, kind, target_id FROM interest_edges;

-- When the graph of a bank's interests was last compared with the truth, and what was found.
ALTER TABLE interest_banks
    ADD COLUMN compared_at timestamptz,
    ADD COLUMN differing_points bigint NOT NULL DEFAULT 0,
    ADD COLUMN differing_edges bigint NOT NULL DEFAULT 0;
