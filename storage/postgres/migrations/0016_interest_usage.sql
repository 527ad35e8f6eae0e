-- What the models of a run cost, by step: added up as answers come, so that a killed runner and a retry are counted too.
CREATE TABLE interest_usage (
    operation_id uuid NOT NULL REFERENCES operations (id) ON DELETE CASCADE,
    stage text NOT NULL,
    unit text NOT NULL,
    model text NOT NULL,
    calls integer NOT NULL DEFAULT 0,
    repairs integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    input_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    estimated_tokens bigint NOT NULL DEFAULT 0,
    cost double precision NOT NULL DEFAULT 0,
    model_ms bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (operation_id, stage, unit, model)
);

-- A budget that somebody gave a run of its own, over the one of the settings.
CREATE TABLE interest_budgets (
    operation_id uuid PRIMARY KEY REFERENCES operations (id) ON DELETE CASCADE,
    tokens bigint CHECK (tokens >= 0),
    money double precision CHECK (money >= 0)
);
