//! A child's stdin: written at once when the pipe has room, else by a task behind a bounded queue.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

/// Messages that may wait for a child that does not read.
const MAX_QUEUED: usize = 1024;
/// Bytes that may wait for a child that does not read, but for a single message.
const MAX_QUEUED_BYTES: usize = 32 << 20;

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The queue is full: the child does not read.
    Full,
    /// The pipe is closed.
    Closed,
}

/// The writing end.
#[derive(Clone, Debug)]
pub struct Stdin {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Debug)]
struct Queue {
    /// `None` once closed. The task holds another reference while it waits.
    pipe: Option<Arc<pipe::Sender>>,
    waiting: VecDeque<Vec<u8>>,
    /// Bytes of the first waiting message that were written.
    written: usize,
    bytes: usize,
}

impl Stdin {
    /// Takes the pipe and starts its task.
    pub fn start(pipe: pipe::Sender) -> Self {
        let queue = Queue { pipe: Some(Arc::new(pipe)), waiting: VecDeque::new(), written: 0, bytes: 0 };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), wake: Notify::new() });
        tokio::spawn(drive(Arc::clone(&shared)));
        Self { shared }
    }

    /// Writes one message, to which the newline is added, or queues it. Never waits: what was taken is written whole,
    /// whatever becomes of the caller.
    pub fn send(&self, mut line: Vec<u8>) -> Result<(), Refused> {
        line.push(b'\n');
        let mut q = self.shared.queue.lock();
        let Some(pipe) = &q.pipe else { return Err(Refused::Closed) };
        let mut written = 0;
        if q.waiting.is_empty() {
            match pipe.try_write(&line) {
                Ok(n) if n == line.len() => return Ok(()),
                Ok(n) => written = n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    q.pipe = None;
                    self.shared.wake.notify_one();
                    return Err(Refused::Closed);
                }
            }
            q.written = written;
        } else if q.waiting.len() >= MAX_QUEUED || q.bytes + line.len() > MAX_QUEUED_BYTES {
            return Err(Refused::Full);
        }
        q.bytes += line.len();
        q.waiting.push_back(line);
        drop(q);
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Whether the child has left something in the pipe.
    pub fn unread(&self) -> bool {
        let q = self.shared.queue.lock();
        let in_pipe = |pipe: &Arc<pipe::Sender>| rustix::io::ioctl_fionread(pipe).is_ok_and(|bytes| bytes > 0);
        !q.waiting.is_empty() || q.pipe.as_ref().is_some_and(in_pipe)
    }

    /// Closes the pipe; what still waits is lost.
    pub fn close(&self) {
        let mut q = self.shared.queue.lock();
        q.pipe = None;
        q.waiting.clear();
        q.bytes = 0;
        drop(q);
        self.shared.wake.notify_one();
    }
}

/// Writes what waits whenever the pipe has room, until it is closed.
async fn drive(shared: Arc<Shared>) {
    loop {
        let pipe = {
            let q = shared.queue.lock();
            match &q.pipe {
                None => return,
                Some(pipe) => (!q.waiting.is_empty()).then(|| Arc::clone(pipe)),
            }
        };
        match pipe {
            None => shared.wake.notified().await,
            Some(pipe) => {
                tokio::select! {
                    ready = pipe.writable() => if ready.is_err() { shared.queue.lock().pipe = None },
                    () = shared.wake.notified() => {}
                }
                pump(&shared);
            }
        }
    }
}

fn pump(shared: &Shared) {
    let mut guard = shared.queue.lock();
    let q = &mut *guard;
    while let (Some(pipe), Some(line)) = (&q.pipe, q.waiting.front()) {
        match pipe.try_write(&line[q.written..]) {
            Ok(n) => {
                q.written += n;
                if q.written == line.len() {
                    q.bytes -= line.len();
                    q.written = 0;
                    q.waiting.pop_front();
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => q.pipe = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn every_byte_arrives_in_order_and_the_queue_is_bounded() {
        let (tx, mut rx) = pipe::pipe().unwrap();
        let stdin = Stdin::start(tx);
        let message = vec![b'a'; 100_000];
        let taken = (0..10_000).take_while(|_| stdin.send(message.clone()) == Ok(())).count();
        assert!((taken + 1) * 100_001 > MAX_QUEUED_BYTES && taken < 1000);
        assert_eq!(stdin.send(message), Err(Refused::Full));
        let mut got = vec![0; taken * 100_001];
        rx.read_exact(&mut got[..1]).await.unwrap();
        assert!(stdin.unread());
        rx.read_exact(&mut got[1..]).await.unwrap();
        assert!(got.chunks(100_001).all(|c| c[100_000] == b'\n' && c[..100_000].iter().all(|b| *b == b'a')));
        stdin.close();
        assert_eq!(rx.read(&mut got).await.unwrap(), 0);
        assert_eq!(stdin.send(vec![b'x']), Err(Refused::Closed));
    }
}
