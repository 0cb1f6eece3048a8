//! Every wait of the MCP side that the configuration does not name. One place, so that tests can shorten them.

use std::time::Duration;

/// Waits and intervals.
#[derive(Clone, Debug)]
pub struct Timing {
    /// A response that has not begun by then becomes an event stream with keep-alive comments.
    pub stream_after: Duration,
    /// Silence on an event stream before a keep-alive comment.
    pub keep_alive: Duration,
    /// First and longest pause between attempts to reach a shim.
    pub reconnect: (Duration, Duration),
    /// First and longest pause between starts of a child that fails to start.
    pub restart: (Duration, Duration),
    /// A server that was ready stays so for this long without its shim: a container restart takes about as long.
    pub restart_grace: Duration,
    /// From connecting to a shim to its hello, and from a request to it to its answer.
    pub shim: Duration,
    /// A process that has said nothing by then does not know requests without a handshake.
    pub probe_cold: Duration,
    /// The same for one that has said something.
    pub probe_warm: Duration,
    /// Between pings of a child.
    pub ping_every: Duration,
    /// From a ping to its answer.
    pub ping_limit: Duration,
    /// A request of a child that no client could be given by then is answered with an error.
    pub undelivered: Duration,
    /// Grace time of the stop ladder for a child that only answered a handshake.
    pub probe_grace: Duration,
    /// Grace time of the stop ladder for others.
    pub grace: Duration,
    /// After a child's exit, what it wrote is still read for this long; other processes may hold its stdout open.
    pub last_words: Duration,
    /// How long a call waits for its client to come back with answers.
    pub parked: Duration,
    /// A cancelled request without an answer is closed by then.
    pub cancelled: Duration,
    /// A session without request or stream for this long may be ended for a new one when all places are taken.
    pub evict_idle: Duration,
    /// How long a new session waits for the place of one that is being ended.
    pub place: Duration,
    /// How long a request waits for a container that is about to be restarted.
    pub held: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            stream_after: ms(10_000),
            keep_alive: ms(15_000),
            reconnect: (ms(50), ms(2_000)),
            restart: (ms(200), ms(30_000)),
            restart_grace: ms(30_000),
            shim: ms(5_000),
            probe_cold: ms(10_000),
            probe_warm: ms(3_000),
            ping_every: ms(10_000),
            ping_limit: ms(5_000),
            undelivered: ms(30_000),
            probe_grace: ms(1_000),
            grace: ms(2_000),
            last_words: ms(500),
            parked: ms(300_000),
            cancelled: ms(5_000),
            evict_idle: ms(30_000),
            place: ms(5_000),
            held: ms(30_000),
        }
    }
}
