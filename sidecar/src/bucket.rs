//! How often something may happen: for each caller, or for each tool.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Most buckets that are remembered.
pub const MAX_BUCKETS: usize = 10_000;

/// One bucket of tokens for each name.
#[derive(Default)]
pub struct Buckets(Mutex<HashMap<Arc<str>, Bucket>>);

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Buckets {
    /// Takes a token, of which `rate` come back in a second, or says in how many seconds there is one.
    pub fn take(&self, who: &Arc<str>, rate: f64, burst: u32) -> Result<(), u32> {
        let most = f64::from(burst.max(1));
        let now = Instant::now();
        let filled = |b: Bucket| (b.tokens + (now - b.at).as_secs_f64() * rate).min(most);
        let mut buckets = self.0.lock();
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(who) {
            // Whoever has all tokens back is as good as new.
            buckets.retain(|_, b| filled(*b) < most);
            if buckets.len() >= MAX_BUCKETS {
                forget_oldest(&mut buckets);
            }
        }
        let bucket = buckets.entry(Arc::clone(who)).or_insert(Bucket { tokens: most, at: now });
        let tokens = filled(*bucket);
        let (left, verdict) = if tokens >= 1.0 { (tokens - 1.0, Ok(())) } else { (tokens, Err(tokens)) };
        *bucket = Bucket { tokens: left, at: now };
        verdict.map_err(|tokens| seconds((1.0 - tokens) / rate))
    }
}

fn forget_oldest(buckets: &mut HashMap<Arc<str>, Bucket>) {
    let mut ages: Vec<Instant> = buckets.values().map(|b| b.at).collect();
    let (_, border, _) = ages.select_nth_unstable(MAX_BUCKETS / 8);
    let border = *border;
    buckets.retain(|_, b| b.at > border);
}

/// Whole seconds, at least one.
fn seconds(wait: f64) -> u32 {
    let mut whole = 1;
    while f64::from(whole) < wait && whole < 3600 {
        whole += 1;
    }
    whole
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_the_rate() {
        let buckets = Buckets::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        for _ in 0..3 {
            assert_eq!(buckets.take(&a, 2.0, 3), Ok(()));
        }
        assert_eq!(buckets.take(&a, 2.0, 3), Err(1));
        assert_eq!(buckets.take(&b, 2.0, 3), Ok(()), "another caller has its own");
        tokio::time::advance(Duration::from_millis(499)).await;
        assert_eq!(buckets.take(&a, 2.0, 3), Err(1));
        tokio::time::advance(Duration::from_millis(2)).await;
        assert_eq!(buckets.take(&a, 2.0, 3), Ok(()));
        assert_eq!(buckets.take(&a, 2.0, 3), Err(1));
        tokio::time::advance(Duration::from_secs(3600)).await;
        for _ in 0..3 {
            assert_eq!(buckets.take(&a, 2.0, 3), Ok(()));
        }
        assert_eq!(buckets.take(&a, 2.0, 3), Err(1), "a quiet hour saves up no more than the burst");
        assert_eq!((seconds(0.1), seconds(1.0), seconds(1.1)), (1, 1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn callers_are_bounded() {
        let buckets = Buckets::default();
        for i in 0..MAX_BUCKETS + 5 {
            assert_eq!(buckets.take(&i.to_string().into(), 1.0, 1), Ok(()));
            tokio::time::advance(Duration::from_micros(10)).await;
        }
        assert!(buckets.0.lock().len() <= MAX_BUCKETS);
        let newest: Arc<str> = (MAX_BUCKETS + 4).to_string().into();
        assert_eq!(buckets.take(&newest, 1.0, 1), Err(1), "the newest are remembered");
    }
}
