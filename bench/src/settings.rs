//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::load::Phases;
use crate::peers::Proxy;

/// Measures the sidecar against its peers and prints one table.
#[derive(Clone, Debug, Parser)]
pub struct Settings {
    /// Folder of the release binaries.
    #[arg(long)]
    pub programs: PathBuf,
    /// Folder with a folder for each installed peer.
    #[arg(long)]
    pub peers: PathBuf,
    /// Python interpreter of the peers that need one.
    #[arg(long)]
    pub python: PathBuf,
    /// Folder of this benchmark in the clone.
    #[arg(long)]
    pub sources: PathBuf,
    /// Folder for the logs of what is started.
    #[arg(long)]
    pub logs: PathBuf,
    /// File that gets the table too.
    #[arg(long)]
    pub output: PathBuf,
    /// Runs of each load; the table has their medians.
    #[arg(long, env = "BENCH_ROUNDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Seconds that each run is measured.
    #[arg(long, env = "BENCH_SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub seconds: u64,
    /// Leave the peers out: for changes of the sidecar, measured against each other.
    #[arg(long, env = "BENCH_ALONE", value_parser = clap::builder::FalseyValueParser::new())]
    pub alone: bool,
    /// Task stores of the section a2a.
    #[arg(long, env = "BENCH_STORES", value_delimiter = ',', default_value = "memory,sqlite,postgres")]
    pub stores: Vec<String>,
    /// Rounds of each case of the section kills.
    #[arg(long, env = "BENCH_KILLS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub kills: u32,
    /// Streams of the section streams.
    #[arg(long, env = "BENCH_STREAMS", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=15_000))]
    pub streams: u32,
    /// Sections to run: those of the default.
    #[arg(
        long,
        env = "BENCH_SECTIONS",
        value_delimiter = ',',
        default_value = "mcp,a2a,streams,events,latency,kills,memory,start,big"
    )]
    pub sections: Vec<String>,
}

impl Settings {
    /// Path of one of our programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// The proxies to compare with.
    pub fn proxies(&self) -> &'static [Proxy] {
        if self.alone { &[] } else { &Proxy::ALL }
    }

    /// How long the phases of a run last.
    pub fn phases(&self) -> Phases {
        Phases { warm: Duration::from_secs(1), measured: Duration::from_secs(self.seconds) }
    }
}
