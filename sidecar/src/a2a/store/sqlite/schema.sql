-- Times are microseconds since 1970. States are numbers in the order of their declaration: from 4 on a task has ended.

CREATE TABLE tasks (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    -- Row of its context.
    c INTEGER NOT NULL,
    caller TEXT NOT NULL,
    context TEXT NOT NULL,
    version INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    owner TEXT,
    state INTEGER NOT NULL,
    since INTEGER NOT NULL,
    revealed INTEGER NOT NULL,
    -- Key that it was created with.
    key TEXT,
    -- Rows in push.
    receivers INTEGER NOT NULL DEFAULT 0,
    -- Version of its snapshot, and its bytes; 0 while there is none.
    snapshot INTEGER NOT NULL DEFAULT 0,
    snapshot_bytes INTEGER NOT NULL DEFAULT 0,
    -- Version of the first event that is kept.
    first INTEGER NOT NULL DEFAULT 1,
    -- Bytes of the events that are kept, and of those after the snapshot.
    logged INTEGER NOT NULL,
    fresh INTEGER NOT NULL
);
CREATE INDEX ended ON tasks (since) WHERE state >= 4;
CREATE INDEX listed ON tasks (caller, since DESC, id) WHERE revealed = 1;

-- The number of an event is that of its task, shifted left by 24 bits, and its version: events of a task lie together.
CREATE TABLE events (
    e INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    -- Who wrote it; nothing if it was the task's owner before it.
    writer TEXT,
    change TEXT NOT NULL
);

CREATE TABLE snapshots (n INTEGER PRIMARY KEY, task TEXT NOT NULL);

CREATE TABLE contexts (
    c INTEGER PRIMARY KEY,
    caller TEXT NOT NULL,
    context TEXT NOT NULL,
    memo TEXT,
    messages TEXT NOT NULL,
    touched INTEGER NOT NULL,
    -- Its tasks.
    tasks INTEGER NOT NULL,
    UNIQUE (caller, context)
);
CREATE INDEX idle ON contexts (touched) WHERE tasks = 0;

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    turn TEXT NOT NULL,
    task TEXT NOT NULL,
    message TEXT,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX keys_at ON keys (at);

CREATE TABLE push (
    n INTEGER NOT NULL,
    id TEXT NOT NULL,
    json TEXT NOT NULL,
    dialect INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    next INTEGER NOT NULL,
    dead TEXT,
    -- The claim that holds; 0 is none.
    claim INTEGER NOT NULL,
    -- next, if there is something to deliver.
    due INTEGER,
    PRIMARY KEY (n, id)
) WITHOUT ROWID;
CREATE INDEX push_due ON push (due) WHERE due IS NOT NULL;
