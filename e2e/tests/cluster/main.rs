//! The product on a real cluster, used as a platform engineer and an agent author use it.
//!
//! `make e2e` brings the test bed up, loads the images and runs these; `shared::` tests may run side by side, `alone::`
//! tests disturb the whole cluster and run one after the other.

// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod alone;
mod bed;
mod database;
mod follow;
mod shared;
