-- What happens to interests after they were written: people settle contradictions and take merges back, points grow old.
ALTER TABLE interest_log DROP CONSTRAINT interest_log_action_check;
ALTER TABLE interest_log ADD CONSTRAINT interest_log_action_check CHECK (
    action IN ('create', 'update', 'archive', 'contradict', 'resolve', 'reopen', 'undo', 'age'));
-- What a person did belongs to no operation.
ALTER TABLE interest_log ALTER COLUMN operation_id DROP NOT NULL;

-- How fresh a point was when a tick last looked; a reader computes it for the moment of reading.
ALTER TABLE interest_points ADD COLUMN freshness text NOT NULL DEFAULT 'fresh'
    CHECK (freshness IN ('fresh', 'aging', 'stale'));
-- When a tick has to look at it again; whatever is said for a point is a reason to look.
ALTER TABLE interest_points ADD COLUMN look_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX interest_points_by_look ON interest_points (look_at) WHERE status <> 'archived';
CREATE INDEX interest_points_pending ON interest_points (bank_id) WHERE status = 'pending_review';

-- What an entry of the log joined to a point, so that it can be taken out again; `before` are the point's words until then.
CREATE TABLE interest_merges (
    log_id bigint PRIMARY KEY REFERENCES interest_log (id) ON DELETE CASCADE,
    bank_id bigint NOT NULL REFERENCES banks (id),
    point_id uuid NOT NULL REFERENCES interest_points (id) ON DELETE CASCADE,
    words jsonb NOT NULL,
    before jsonb,
    evidence bigint[] NOT NULL DEFAULT '{}',
    undone_at timestamptz
);
CREATE INDEX interest_merges_by_point ON interest_merges (point_id);
CREATE INDEX interest_merges_by_bank ON interest_merges (bank_id);

-- Groups of points that are about one thing. They are made from the points, and made anew when something is forgotten.
CREATE TABLE interest_themes (
    id uuid PRIMARY KEY,
    bank_id bigint NOT NULL REFERENCES banks (id),
    name text NOT NULL,
    middle halfvec NOT NULL,
    model text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX interest_themes_by_bank ON interest_themes (bank_id);
ALTER TABLE interest_points ADD COLUMN theme_id uuid REFERENCES interest_themes (id) ON DELETE SET NULL;
-- NULL until somebody looked whether it belongs to a theme.
ALTER TABLE interest_points ADD COLUMN placed_at timestamptz;
CREATE INDEX interest_points_by_theme ON interest_points (theme_id) WHERE theme_id IS NOT NULL;
CREATE INDEX interest_points_unplaced ON interest_points (bank_id) WHERE placed_at IS NULL AND status <> 'archived';
ALTER TABLE interest_banks ADD COLUMN grouped_points integer NOT NULL DEFAULT 0;

-- Answers of models by what was asked, so that one question is paid once, and vectors by model and text. They are copies:
-- whatever of a bank is forgotten takes all of its copies along.
CREATE TABLE interest_answers (
    bank_id bigint NOT NULL REFERENCES banks (id),
    key bytea NOT NULL,
    answer jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (bank_id, key)
);
CREATE TABLE interest_vectors (
    bank_id bigint NOT NULL REFERENCES banks (id),
    key bytea NOT NULL,
    vector bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (bank_id, key)
);
CREATE INDEX interest_answers_by_age ON interest_answers (created_at);
CREATE INDEX interest_vectors_by_age ON interest_vectors (created_at);
