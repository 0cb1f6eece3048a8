//! The container's log: a thread that writes to stderr behind a bounded queue. When the log is slower than the
//! children, whole chunks are dropped and counted; a child never waits for it.

use std::io::Write as _;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Chunks that may wait, each at most [`super::child::READ_BYTES`] long.
const QUEUED_CHUNKS: usize = 64;

/// Where children's stderr goes.
pub struct Log {
    queue: SyncSender<Vec<u8>>,
    dropped: usize,
}

impl Log {
    /// Starts the thread.
    pub fn start() -> std::io::Result<Self> {
        let (queue, chunks) = sync_channel(QUEUED_CHUNKS);
        std::thread::Builder::new().name("log".into()).stack_size(64 << 10).spawn(move || copy(&chunks))?;
        Ok(Self { queue, dropped: 0 })
    }

    /// Writes a chunk, or drops it when the queue is full.
    pub fn write(&mut self, chunk: &[u8]) {
        if self.dropped > 0 {
            let note =
                format!("outrigger-shim: the log was too slow, {} bytes of stderr are missing here\n", self.dropped);
            if self.queue.try_send(note.into_bytes()).is_ok() {
                self.dropped = 0;
            }
        }
        if let Err(TrySendError::Full(chunk) | TrySendError::Disconnected(chunk)) = self.queue.try_send(chunk.to_vec())
        {
            self.dropped += chunk.len();
        }
    }

    /// Writes a line of the shim's own.
    pub fn note(&mut self, message: &str) {
        self.write(format!("outrigger-shim: {message}\n").as_bytes());
    }
}

fn copy(chunks: &Receiver<Vec<u8>>) {
    let mut out = std::io::stderr();
    while let Ok(chunk) = chunks.recv() {
        // A closed log must not end the shim.
        let _ = out.write_all(&chunk);
    }
}
