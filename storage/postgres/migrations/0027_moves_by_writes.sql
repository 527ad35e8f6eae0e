-- A write that gives a record another text puts it into the tier where that text starts. The statement calls this for a row
-- that is about to move, and for no others, so that the move is logged with it and new rows do not pay for that.
CREATE FUNCTION tier_came_again(record_key bigint, operation_id uuid, target smallint) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tier_moves (record_key, namespace_id, operation_id, source, target, reason)
    SELECT r.key, r.namespace_id, $2, r.tier, $3, 'restore' FROM tier_records AS r WHERE r.key = $1;
    RETURN now();
END $$;
