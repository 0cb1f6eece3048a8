//! A client that follows one task while a test takes the pod away that serves it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result};
use outrigger_e2e::ensure;
use serde_json::Value;

use crate::bed::root;

/// `e2e/fixtures/follow.py` at work in the client pod. It ends by itself when its time is over.
pub struct Follower {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Follower {
    /// Starts it with a plan; see the program for its members.
    pub fn start(plan: &Value) -> Result<Self> {
        let program = std::fs::read_to_string(format!("{}/e2e/fixtures/follow.py", root()))?;
        let plan = plan.to_string();
        let mut child = Command::new("kubectl")
            .args(["-n", "e2e-client", "exec", "-i", "client", "--", "python3", "-", &plan])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // Smaller than a pipe: nobody has to read meanwhile.
        child.stdin.take().context("no stdin")?.write_all(program.as_bytes())?;
        let output = BufReader::new(child.stdout.take().context("no stdout")?);
        Ok(Self { child, output })
    }

    /// Waits until it has read so much that the pod may go.
    pub fn wait_for_sign(&mut self) -> Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.trim() != "now" {
            let words = self.words();
            anyhow::bail!("no sign: {line}{words}");
        }
        Ok(())
    }

    /// What it saw, when the task has ended.
    pub fn report(mut self) -> Result<Value> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        ensure(status.success(), || format!("the client failed: {text}{}", self.words()))?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    fn words(&mut self) -> String {
        let mut words = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut words);
        }
        words
    }
}
