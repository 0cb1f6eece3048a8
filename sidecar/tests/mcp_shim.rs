//! The shim by itself: command line, control channel, signals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mcp_support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use mcp_support::{Rig, SHIM, Shim, alive, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

const HELLO: &str = r#"{"hello":{"protocol":1,"version":"t","pid":1}}"#;

struct Conn {
    lines: std::io::Lines<BufReader<UnixStream>>,
    stream: UnixStream,
}

impl Conn {
    fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(mcp_support::PATIENCE)).unwrap();
        Self { lines: BufReader::new(stream.try_clone().unwrap()).lines(), stream }
    }

    fn say(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("a line").unwrap()).unwrap()
    }

    /// Hello both ways; the generation.
    fn greet(socket: &Path) -> (Self, Value) {
        let mut conn = Self::open(socket);
        conn.say(HELLO);
        let hello = conn.hear();
        assert_eq!(hello["hello"]["protocol"], 1, "{hello}");
        (conn, hello["hello"]["generation"].clone())
    }

    fn spawn(socket: &Path) -> (Self, Value) {
        let (mut conn, _) = Self::greet(socket);
        conn.say(r#"{"spawn":{}}"#);
        let answer = conn.hear();
        (conn, answer)
    }
}

async fn shim(max: u32, command: &[&str]) -> (tempfile::TempDir, Shim) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("shim.sock");
    let shim = Shim::start(&socket, max, command);
    eventually("the socket is there", || socket.exists()).await;
    (dir, shim)
}

#[test]
fn bad_use_is_told_and_ends_with_64() {
    for (args, env, why) in [
        (&["--"][..], Some("/s"), "no command to start"),
        (&[][..], Some("/s"), "no command to start"),
        (&["--", "x"], None, "OUTRIGGER_SOCKET is not set"),
        (&["x"], Some("/s"), "unknown argument x"),
    ] {
        let mut command = Command::new(SHIM);
        command.args(args).env_remove("OUTRIGGER_SOCKET");
        if let Some(socket) = env {
            command.env("OUTRIGGER_SOCKET", socket);
        }
        let out = command.output().unwrap();
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(why), "{stderr}");
    }
    let out = Command::new(SHIM).args(["--", "x"]).env("OUTRIGGER_SOCKET", "/no/such/folder/s").output().unwrap();
    assert_eq!(out.status.code(), Some(71));
    assert!(String::from_utf8(out.stderr).unwrap().contains("/no/such/folder/s"));
    let out = Command::new(SHIM).arg("version").output().unwrap();
    assert_eq!(String::from_utf8(out.stdout).unwrap(), format!("outrigger-shim {}\n", env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn the_socket_is_for_the_group_and_a_stale_one_is_replaced() {
    let (dir, mut first) = shim(2, &["cat"]).await;
    let socket = dir.path().join("shim.sock");
    let (_, one) = Conn::greet(&socket);
    let (_, same) = Conn::greet(&socket);
    assert_eq!(one, same);
    let meta = std::fs::metadata(&socket).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o660);
    first.process.kill().unwrap();
    first.process.wait().unwrap();
    let _second = Shim::start(&socket, 2, &["cat"]);
    eventually("the socket is a new one", || std::fs::metadata(&socket).is_ok_and(|m| m.ino() != meta.ino())).await;
    let (_, other) = Conn::greet(&socket);
    assert_ne!(one, other);
}

#[tokio::test]
async fn the_channel_refuses_what_it_does_not_know() {
    let (_dir, shim) = shim(1, &["cat"]).await;
    for (lines, reason, why) in [
        (vec![r#"{"spawn":{}}"#], "BadMessage", "say hello first"),
        (vec![HELLO, "nonsense"], "BadMessage", "not a message"),
        (vec![r#"{"hello":{"protocol":9,"version":"t","pid":1}}"#], "ShimVersionMismatch", "protocol 1, the sidecar 9"),
    ] {
        let mut conn = Conn::open(&shim.socket);
        conn.hear();
        for line in lines {
            conn.say(line);
        }
        let error = conn.hear();
        assert_eq!(error["error"]["reason"], reason, "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(why), "{error}");
        assert!(conn.lines.next().is_none(), "the connection ends");
    }
    // An endless line ends the connection, not the shim.
    let mut conn = Conn::open(&shim.socket);
    let _ = conn.stream.write_all(&vec![b'x'; 1 << 20]);
    let (_conn, spawned) = Conn::spawn(&shim.socket);
    assert!(spawned["spawned"]["pid"].is_u64(), "{spawned}");
}

#[tokio::test]
async fn one_connection_is_one_child_and_children_are_bounded() {
    let (_dir, shim) = shim(2, &["sleep", "3600"]).await;
    let (mut a, first) = Conn::spawn(&shim.socket);
    let (b, second) = Conn::spawn(&shim.socket);
    let pid = |v: &Value| u32::try_from(v["spawned"]["pid"].as_u64().unwrap()).unwrap();
    assert_ne!(pid(&first), pid(&second));
    let (_, third) = Conn::spawn(&shim.socket);
    assert_eq!(third["error"]["reason"], "TooManyProcesses", "{third}");
    // `sleep` reads no stdin: it takes the second step of the ladder.
    a.say(r#"{"stop":{"graceMs":10}}"#);
    let exit = a.hear();
    assert_eq!(exit["exit"]["signal"], 15, "{exit}");
    assert!(!alive(pid(&first)));
    let (mut c, again) = Conn::spawn(&shim.socket);
    assert!(again["spawned"].is_object(), "{again}");
    c.say(r#"{"spawn":{}}"#);
    assert_eq!(c.hear()["error"]["reason"], "BadMessage");
    // A connection that closes takes its child along, a sidecar that died all of its own.
    let pids = [pid(&second), pid(&again)];
    drop((b, c));
    eventually("both are gone", || pids.iter().all(|p| !alive(*p))).await;
}

#[tokio::test]
async fn what_can_not_be_started_is_told_and_the_shim_stays() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data.txt");
    std::fs::write(&file, "x").unwrap();
    let script = dir.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (command, why) in [
        ("no-such-program-anywhere", "command not found: no-such-program-anywhere"),
        (file.to_str().unwrap(), "permission denied"),
        (script.to_str().unwrap(), "interpreter"),
    ] {
        let (_dir, shim) = shim(1, &[command]).await;
        for _ in 0..3 {
            let (_, answer) = Conn::spawn(&shim.socket);
            assert_eq!(answer["error"]["reason"], "SpawnFailed", "{answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(why), "{answer}");
        }
    }
}

#[tokio::test]
async fn exit_and_stderr_are_reported() {
    let (_dir, shim) =
        shim(1, &["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' 'e' >&2; echo end >&2; exit 5"]).await;
    let (mut conn, _) = Conn::spawn(&shim.socket);
    let exit = conn.hear();
    assert_eq!(exit["exit"]["code"], 5);
    let tail = exit["exit"]["tail"].as_str().unwrap();
    assert_eq!(tail.len(), 16 << 10);
    assert!(tail.ends_with("eeend\n"));
    assert!(conn.lines.next().is_none());
    // While it runs, too.
    let (_dir, shim) = self::shim(1, &["sh", "-c", "echo working >&2; exec sleep 60"]).await;
    let (mut conn, _) = Conn::spawn(&shim.socket);
    let deadline = tokio::time::Instant::now() + mcp_support::PATIENCE;
    loop {
        conn.say(r#"{"stderr":{}}"#);
        let tail = conn.hear();
        if tail == json!({"stderr": {"tail": "working\n"}}) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{tail}");
    }
}

#[tokio::test]
async fn sigterm_ends_all_children_then_the_shim() {
    let (dir, mut shim) = shim(4, &["sleep", "3600"]).await;
    let (mut conn, spawned) = Conn::spawn(&shim.socket);
    let pid = u32::try_from(spawned["spawned"]["pid"].as_u64().unwrap()).unwrap();
    shim.signal(Signal::TERM);
    assert_eq!(conn.hear(), json!({"stopping": {}}));
    let exit = conn.hear();
    assert_eq!(exit["exit"]["signal"], 15, "{exit}");
    eventually("the shim ended", || shim.process.try_wait().unwrap().is_some()).await;
    assert_eq!(shim.process.wait().unwrap().code(), Some(0));
    assert!(!alive(pid) && !dir.path().join("shim.sock").exists());
}

#[tokio::test]
async fn a_killed_shim_takes_its_children_along() {
    let (_dir, shim) = shim(4, &["sleep", "3600"]).await;
    let (_conn, spawned) = Conn::spawn(&shim.socket);
    let pid = u32::try_from(spawned["spawned"]["pid"].as_u64().unwrap()).unwrap();
    assert!(alive(pid));
    shim.signal(Signal::KILL);
    eventually("the child is gone", || !alive(pid)).await;
}

#[tokio::test]
async fn a_child_gets_the_environment_less_ours_its_own_group_and_a_higher_memory_score() {
    let rig = Rig::ready(&[]).await;
    let session = rig.session().await;
    let got: Value = serde_json::from_str(&rig.text(&session, "env", json!({})).await).unwrap();
    let env = got["env"].as_object().unwrap();
    assert_eq!(env["FIXTURE_ENV"], "kept");
    assert!(env.keys().all(|k| !k.starts_with("OUTRIGGER_")), "{env:?}");
    assert_eq!(got["cwd"], std::env::current_dir().unwrap().to_str().unwrap());
    let pid = rig.pid(&session).await;
    let group = rustix::process::getpgid(rustix::process::Pid::from_raw(i32::try_from(pid).unwrap())).unwrap();
    assert_eq!(group.as_raw_pid().unsigned_abs(), pid);
    let score = |pid: u32| -> i32 {
        std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
    };
    assert!(score(pid) > score(rig.shim().pid()));
    // Nothing of the shim's stays open in the child: neither its sockets nor its pipes.
    let open = |pid: u32| -> Vec<String> {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let fds = fds.filter(|f| !["0", "1", "2"].map(Some).contains(&f.file_name().to_str()));
        fds.filter_map(|f| Some(std::fs::read_link(f.path()).ok()?.to_str()?.to_owned())).collect()
    };
    let of_shim = open(rig.shim().pid());
    // What the test's own parents left open, the shim has before it opens anything.
    let inherited = open(std::process::id());
    let leaked: Vec<_> = open(pid).into_iter().filter(|f| of_shim.contains(f) && !inherited.contains(f)).collect();
    assert_eq!(leaked, Vec::<String>::new());
}

#[tokio::test]
async fn a_slow_container_log_never_holds_up_a_child() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("shim.sock");
    // Nobody reads this pipe.
    let (_read, write) = std::io::pipe().unwrap();
    let mut process = Command::new(SHIM)
        .args(["--", "sh", "-c", "head -c 8000000 /dev/zero >&2; exit 4"])
        .env("OUTRIGGER_SOCKET", &socket)
        .stderr(write)
        .spawn()
        .unwrap();
    eventually("the socket is there", || socket.exists()).await;
    let (mut conn, _) = Conn::spawn(&socket);
    assert_eq!(conn.hear()["exit"]["code"], 4);
    process.kill().unwrap();
    process.wait().unwrap();
}
