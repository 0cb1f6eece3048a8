-- Times are microseconds since 1970 by the database's clock. States are numbers in the order of their declaration:
-- from 4 on a task has ended. All of it stands in one schema, the first one of the session's search path.

-- The only clock.
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';

CREATE TABLE leases (
    owner text PRIMARY KEY,
    until bigint NOT NULL
);

CREATE TABLE contexts (
    c bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    caller text NOT NULL,
    context text NOT NULL,
    memo text,
    messages text[] NOT NULL,
    touched bigint NOT NULL,
    -- Its tasks.
    tasks bigint NOT NULL,
    UNIQUE (caller, context)
);
CREATE INDEX contexts_idle ON contexts (touched) WHERE tasks = 0;

CREATE TABLE tasks (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    c bigint NOT NULL,
    caller text NOT NULL,
    context text NOT NULL,
    version bigint NOT NULL,
    epoch bigint NOT NULL,
    owner text,
    state smallint NOT NULL,
    since bigint NOT NULL,
    revealed boolean NOT NULL,
    -- Key that it was created with.
    key text,
    -- Rows in push.
    receivers bigint NOT NULL DEFAULT 0,
    -- Version of its snapshot, and its bytes; 0 while there is none.
    snapshot bigint NOT NULL DEFAULT 0,
    snapshot_bytes bigint NOT NULL DEFAULT 0,
    -- Version of the first event that is kept.
    first bigint NOT NULL DEFAULT 1,
    -- Bytes of the events that are kept, and of those after the snapshot.
    logged bigint NOT NULL,
    fresh bigint NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX tasks_ended ON tasks (since) WHERE state >= 4;
CREATE INDEX tasks_listed ON tasks (caller, since DESC, id) WHERE revealed;
CREATE INDEX tasks_owned ON tasks (owner) WHERE owner IS NOT NULL;
CREATE INDEX tasks_open ON tasks (caller) WHERE state < 4;

CREATE TABLE events (
    n bigint NOT NULL,
    version bigint NOT NULL,
    at bigint NOT NULL,
    -- Who wrote it; nothing if it was the task's owner before it.
    writer text,
    change text NOT NULL,
    PRIMARY KEY (n, version)
);

CREATE TABLE snapshots (n bigint PRIMARY KEY, task text NOT NULL);

CREATE TABLE keys (
    id text PRIMARY KEY,
    hash text NOT NULL,
    turn text NOT NULL,
    task text NOT NULL,
    message text,
    at bigint NOT NULL
);
CREATE INDEX keys_at ON keys (at);

CREATE SEQUENCE claims;
CREATE TABLE push (
    n bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    json text NOT NULL,
    dialect smallint NOT NULL,
    delivered bigint NOT NULL,
    attempts bigint NOT NULL,
    next bigint NOT NULL,
    dead text,
    -- The claim that holds; 0 is none.
    claim bigint NOT NULL DEFAULT 0,
    -- next, if there is something to deliver.
    due bigint,
    PRIMARY KEY (n, id)
);
CREATE INDEX push_due ON push (due) WHERE due IS NOT NULL;

-- Messages of a context, bounded roughly; readers apply the exact rule. One that is larger than all may be leaves none.
CREATE FUNCTION with_message(messages text[], message text) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN message IS NULL THEN messages
        WHEN octet_length(message) > 65536 THEN '{}'
        ELSE messages[greatest(1, cardinality(messages) - 18):] || message
    END
$$;

-- Each function below says how it went: 0 done, 1 not as it was seen, 2 the key was used, 3 there is no such task,
-- 4 the task has ended.

CREATE FUNCTION use_key(p_id text, p_hash text, p_turn text, p_task text, p_at bigint, p_oldest bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_id IS NULL THEN
        RETURN true;
    END IF;
    DELETE FROM keys WHERE id = p_id AND at < p_oldest;
    INSERT INTO keys (id, hash, turn, task, at) VALUES (p_id, p_hash, p_turn, p_task, p_at)
        ON CONFLICT (id) DO NOTHING;
    RETURN FOUND;
END
$$;

CREATE FUNCTION create_task(
    p_id text, p_caller text, p_context text, p_epoch bigint, p_owner text, p_state smallint, p_revealed boolean,
    p_change text, p_bytes bigint, p_message text, p_key text, p_hash text, p_turn text, p_key_retention bigint,
    p_push text, p_json text, p_dialect smallint, p_delivered bigint, p_next bigint,
    OUT outcome integer, OUT at bigint
) LANGUAGE plpgsql AS $$
DECLARE
    row_c bigint;
    row_n bigint;
BEGIN
    at := now_us();
    IF EXISTS (SELECT 1 FROM tasks t WHERE t.id = p_id) THEN
        outcome := 1;
        RETURN;
    END IF;
    IF NOT use_key(p_key, p_hash, p_turn, p_id, at, at - p_key_retention) THEN
        outcome := 2;
        RETURN;
    END IF;
    INSERT INTO contexts AS x (caller, context, messages, touched, tasks)
        VALUES (p_caller, p_context, with_message('{}', p_message), at, 1)
        ON CONFLICT (caller, context) DO UPDATE
        SET messages = with_message(x.messages, p_message), touched = excluded.touched, tasks = x.tasks + 1
        RETURNING c INTO row_c;
    INSERT INTO tasks (id, c, caller, context, version, epoch, owner, state, since, revealed, key, receivers, logged, fresh)
        VALUES (p_id, row_c, p_caller, p_context, 1, p_epoch, p_owner, p_state, at, p_revealed, p_key,
                (p_push IS NOT NULL)::integer, p_bytes, p_bytes)
        RETURNING n INTO row_n;
    INSERT INTO events (n, version, at, writer, change) VALUES (row_n, 1, at, p_owner, p_change);
    IF p_push IS NOT NULL THEN
        INSERT INTO push (n, id, json, dialect, delivered, attempts, next, due)
            VALUES (row_n, p_push, p_json, p_dialect, p_delivered, 0, p_next, CASE WHEN p_delivered < 1 THEN p_next END);
    END IF;
    outcome := 0;
END
$$;

CREATE FUNCTION append_task(
    p_id text, p_version bigint, p_epoch bigint, p_owner text,
    p_new_epoch bigint, p_new_owner text, p_new_state smallint, p_moves boolean, p_revealed boolean,
    p_writer text, p_change text, p_bytes bigint, p_message text, p_memo text,
    p_key text, p_hash text, p_turn text, p_key_retention bigint, p_channel text,
    OUT outcome integer, OUT at bigint, OUT row_n bigint, OUT has_receivers boolean,
    OUT was_snapshot bigint, OUT was_snapshot_bytes bigint, OUT was_first bigint, OUT is_logged bigint, OUT is_fresh bigint
) LANGUAGE plpgsql AS $$
DECLARE
    row_c bigint;
    found_task tasks%ROWTYPE;
BEGIN
    SELECT * INTO found_task FROM tasks t WHERE t.id = p_id FOR UPDATE;
    IF NOT FOUND THEN
        outcome := 3;
        RETURN;
    END IF;
    IF found_task.version <> p_version OR found_task.epoch <> p_epoch OR found_task.owner IS DISTINCT FROM p_owner THEN
        outcome := 1;
        RETURN;
    END IF;
    at := now_us();
    IF NOT use_key(p_key, p_hash, p_turn, p_id, at, at - p_key_retention) THEN
        outcome := 2;
        RETURN;
    END IF;
    -- A rule of tasks forbids the change: it was only asked whether something else stands before that.
    IF p_change IS NULL THEN
        RAISE EXCEPTION 'refused' USING ERRCODE = 'OR001';
    END IF;
    UPDATE tasks t SET
        version = p_version + 1, epoch = p_new_epoch, owner = p_new_owner, state = p_new_state,
        since = CASE WHEN p_moves THEN append_task.at ELSE t.since END, revealed = p_revealed,
        logged = t.logged + p_bytes, fresh = t.fresh + p_bytes
        WHERE t.n = found_task.n
        RETURNING t.n, t.c, t.receivers > 0, t.snapshot, t.snapshot_bytes, t.first, t.logged, t.fresh
        INTO row_n, row_c, has_receivers, was_snapshot, was_snapshot_bytes, was_first, is_logged, is_fresh;
    INSERT INTO events (n, version, at, writer, change)
        VALUES (row_n, p_version + 1, append_task.at, p_writer, p_change);
    IF p_message IS NOT NULL OR p_memo IS NOT NULL THEN
        UPDATE contexts x SET messages = with_message(x.messages, p_message), touched = append_task.at,
            memo = CASE WHEN p_memo IS NULL THEN x.memo WHEN p_memo = 'null' THEN NULL ELSE p_memo END
            WHERE x.c = row_c;
    END IF;
    IF has_receivers THEN
        UPDATE push p SET due = p.next
            WHERE p.n = row_n AND p.dead IS NULL AND p.due IS NULL AND p.delivered < p_version + 1;
    END IF;
    PERFORM pg_notify(p_channel, p_id || ' ' || (p_version + 1));
    outcome := 0;
END
$$;

-- Forgets a task; its context stays.
CREATE FUNCTION delete_task(p_n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    row_c bigint;
BEGIN
    DELETE FROM tasks t WHERE t.n = p_n RETURNING t.c INTO row_c;
    DELETE FROM events e WHERE e.n = p_n;
    DELETE FROM snapshots s WHERE s.n = p_n;
    DELETE FROM push p WHERE p.n = p_n;
    UPDATE contexts x SET tasks = x.tasks - 1 WHERE x.c = row_c;
END
$$;

CREATE FUNCTION withdraw_task(
    p_id text, p_version bigint, p_epoch bigint, p_owner text, p_memo text, p_message text, p_channel text
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    t tasks%ROWTYPE;
BEGIN
    SELECT * INTO t FROM tasks WHERE id = p_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 3;
    ELSIF t.version <> p_version OR t.epoch <> p_epoch OR t.owner IS DISTINCT FROM p_owner THEN
        RETURN 1;
    ELSIF t.state >= 4 THEN
        RETURN 4;
    END IF;
    IF p_memo IS NOT NULL THEN
        UPDATE contexts x SET memo = nullif(p_memo, 'null'), touched = now_us() WHERE x.c = t.c;
    END IF;
    UPDATE keys k SET message = p_message WHERE k.id = t.key AND k.task = p_id;
    PERFORM delete_task(t.n);
    PERFORM pg_notify(p_channel, p_id || ' 0');
    RETURN 0;
END
$$;

CREATE FUNCTION put_receiver(
    p_task text, p_id text, p_json text, p_dialect smallint, p_delivered bigint, p_attempts bigint, p_next bigint,
    p_dead text
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    t tasks%ROWTYPE;
    is_due bigint;
BEGIN
    SELECT * INTO t FROM tasks WHERE id = p_task FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 3;
    END IF;
    is_due := CASE WHEN p_dead IS NULL AND t.version > p_delivered THEN p_next END;
    IF NOT EXISTS (SELECT 1 FROM push p WHERE p.n = t.n AND p.id = p_id) THEN
        UPDATE tasks x SET receivers = x.receivers + 1 WHERE x.n = t.n;
    END IF;
    INSERT INTO push (n, id, json, dialect, delivered, attempts, next, dead, due)
        VALUES (t.n, p_id, p_json, p_dialect, p_delivered, p_attempts, p_next, p_dead, is_due)
        ON CONFLICT (n, id) DO UPDATE SET json = excluded.json, dialect = excluded.dialect,
            delivered = excluded.delivered, attempts = excluded.attempts, next = excluded.next, dead = excluded.dead,
            claim = 0, due = excluded.due;
    RETURN 0;
END
$$;

CREATE FUNCTION delete_receiver(p_task text, p_id text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    row_n bigint;
BEGIN
    SELECT n INTO row_n FROM tasks WHERE id = p_task FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 3;
    END IF;
    DELETE FROM push WHERE n = row_n AND id = p_id;
    IF NOT FOUND THEN
        RETURN 1;
    END IF;
    UPDATE tasks SET receivers = receivers - 1 WHERE n = row_n;
    RETURN 0;
END
$$;

-- Receivers that are due, as they were before they are claimed.
CREATE FUNCTION claim_receivers(p_limit bigint, p_hold bigint)
RETURNS TABLE (
    task text, id text, json text, dialect smallint, delivered bigint, attempts bigint, next bigint, dead text, claim bigint,
    again boolean
) LANGUAGE plpgsql AS $$
DECLARE
    now_is bigint := now_us();
    r record;
BEGIN
    FOR r IN
        SELECT p.*, t.id AS task_id FROM push p JOIN tasks t ON t.n = p.n
            WHERE p.due IS NOT NULL AND p.due <= now_is
            ORDER BY p.due, t.id, p.id LIMIT p_limit FOR UPDATE OF p SKIP LOCKED
    LOOP
        again := r.claim <> 0;
        claim := nextval('claims');
        UPDATE push p SET claim = claim_receivers.claim, next = now_is + p_hold, due = now_is + p_hold
            WHERE p.n = r.n AND p.id = r.id;
        task := r.task_id;
        id := r.id;
        json := r.json;
        dialect := r.dialect;
        delivered := r.delivered;
        attempts := r.attempts;
        next := r.next;
        dead := r.dead;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Forgets some ended tasks, the oldest end first; says how many, and how many of them had ended since p_young or later.
CREATE FUNCTION forget_ended(p_before bigint, p_limit bigint, p_young bigint, OUT gone bigint, OUT early bigint)
LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    gone := 0;
    early := 0;
    FOR r IN
        SELECT t.n, t.since FROM tasks t WHERE t.state >= 4 AND t.since < p_before
            ORDER BY t.since, t.n LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM delete_task(r.n);
        gone := gone + 1;
        early := early + (r.since >= p_young)::integer;
    END LOOP;
END
$$;
