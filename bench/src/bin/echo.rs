//! The MCP server behind every proxy of the benchmark: stdio, one message a line, two tools.
//!
//! `echo {text}` answers the text; `big {bytes}` answers that many bytes. Nothing else is worth its time, so that what
//! is measured is the way to it. It ends when stdin does.

use std::borrow::Cow;
use std::io::{self, BufRead as _, BufReader, Write as _};

use serde::Deserialize;
use serde_json::value::RawValue;

/// Revision it answers in `initialize` to a client that names none of its own.
const REVISION: &str = "2025-11-25";
/// Most bytes `big` gives.
const MOST_BYTES: usize = 64 << 20;
/// Longest request it takes.
const BUFFER: usize = 256 << 10;
/// What a big answer is made of: letters, a line feed that JSON must escape, and two bytes of UTF-8.
const FILLER: &str = "The quick brown fox orders a burger with fries, a crêpe and one more burger\\n";

const TOOLS: &str = r#"{"tools":[
{"name":"echo","description":"Answers the text","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}},
{"name":"big","description":"Answers that many bytes","inputSchema":{"type":"object","properties":{"bytes":{"type":"integer"}},"required":["bytes"]}}]}"#;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    params: Params<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    protocol_version: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Arguments<'a>,
}

#[derive(Default, Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    bytes: Option<usize>,
}

fn main() -> io::Result<()> {
    let mut input = BufReader::with_capacity(BUFFER, io::stdin().lock());
    // Standard output of the library flushes at line feeds and copies; a message is one write here.
    let mut output = std::fs::File::from(std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?);
    let (mut line, mut answer) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        answer.clear();
        match serde_json::from_slice::<Message<'_>>(&line) {
            Ok(message) => respond(&message, &mut answer)?,
            Err(e) => eprintln!("not a message: {e}"),
        }
        if !answer.is_empty() {
            answer.push(b'\n');
            output.write_all(&answer)?;
        }
    }
}

fn respond(message: &Message<'_>, out: &mut Vec<u8>) -> io::Result<()> {
    let Some(id) = message.id else { return Ok(()) };
    write!(out, "{{\"jsonrpc\":\"2.0\",\"id\":{id},")?;
    match (&*message.method, &*message.params.name) {
        ("tools/call", "echo") => {
            let text = message.params.arguments.text.map_or("\"\"", RawValue::get);
            write!(out, "\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"isError\":false}}}}")
        }
        ("tools/call", "big") => {
            let bytes = message.params.arguments.bytes.unwrap_or(0).min(MOST_BYTES);
            write!(out, "\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":\"")?;
            let end = out.len() + bytes;
            while out.len() < end {
                out.extend_from_slice(FILLER.as_bytes());
            }
            write!(out, "\"}}],\"isError\":false}}}}")
        }
        ("tools/list", _) => write!(out, "\"result\":{}}}", TOOLS.replace('\n', "")),
        ("ping", _) => write!(out, "\"result\":{{}}}}"),
        ("initialize", _) => {
            let own = format!("\"{REVISION}\"");
            let revision = message.params.protocol_version.map_or(&*own, RawValue::get);
            write!(
                out,
                "\"result\":{{\"protocolVersion\":{revision},\"capabilities\":{{\"tools\":{{}}}},\
                 \"serverInfo\":{{\"name\":\"bench-echo\",\"version\":\"1\"}}}}}}"
            )
        }
        _ => write!(out, "\"error\":{{\"code\":-32601,\"message\":\"no such method or tool\"}}}}"),
    }
}
