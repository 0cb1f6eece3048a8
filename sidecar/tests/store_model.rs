//! Every store does what the model says, under schedules of processes that crash and race: the same for each store.

mod store_support;

use store_support::memory::MemoryBed;
use store_support::postgres::{PostgresBed, Server};
use store_support::schedule;
use store_support::sqlite::SqliteBed;

/// Schedules per store: `OUTRIGGER_SEEDS` runs more.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    0..std::env::var("OUTRIGGER_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[tokio::test]
async fn memory_does_what_the_model_says() {
    for seed in seeds(100) {
        println!("seed {seed}");
        schedule::run(&mut MemoryBed::new(), seed).await;
    }
}

#[tokio::test]
async fn sqlite_does_what_the_model_says() {
    for seed in seeds(12) {
        println!("seed {seed}");
        schedule::run(&mut SqliteBed::new(), seed).await;
    }
}

#[tokio::test]
async fn postgres_does_what_the_model_says() {
    let Some(server) = Server::start().await else { return };
    for seed in seeds(8) {
        println!("seed {seed}");
        let mut bed = PostgresBed::new(&server, &format!("seed{seed}")).await;
        schedule::run(&mut bed, seed).await;
    }
}
