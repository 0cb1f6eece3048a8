//! Push notifications, to real receivers on loopback.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod outbound_support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Validation, crypto, decode, jwk::Jwk};
use outbound_support::{Got, Names, Server, fixture, status, text, until};
use outrigger_protocol::a2a::errors::Kind;
use outrigger_protocol::a2a::extensions::DELIVERY;
use outrigger_protocol::a2a::operation::{Binding, Dialect};
use outrigger_protocol::a2a::push::Config;
use outrigger_protocol::a2a::raw::Raw;
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::a2a::task::{Artifact, ArtifactUpdate, Change, Task};
use outrigger_protocol::config::{Limits, Live, Push};
use outrigger_sidecar::a2a::call::{Answer, Call, Caller, Used};
use outrigger_sidecar::a2a::ids::Trace;
use outrigger_sidecar::a2a::metrics::Metrics as StoreMetrics;
use outrigger_sidecar::a2a::push::{Configs, Metrics, Outlet, Sender, Timing};
use outrigger_sidecar::a2a::signer::Keys;
use outrigger_sidecar::a2a::store::{Memory, Store};
use outrigger_sidecar::folder::Watched;
use outrigger_sidecar::outbound::Waits;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

struct Under {
    store: Arc<dyn Store>,
    outlet: Arc<Outlet>,
    configs: Configs,
    metrics: Metrics,
    live: watch::Sender<Arc<Live>>,
    names: Arc<Names>,
}

struct Running {
    sender: Arc<Sender>,
    _stop: DropGuard,
}

fn quick() -> Timing {
    let ms = Duration::from_millis;
    Timing { first: ms(10), longest: ms(50), attempts: 1000, poll: ms(10) }
}

fn push(allow: &[&str]) -> Push {
    Push { enabled: true, allow: allow.iter().map(|&a| a.to_owned()).collect(), ..Push::default() }
}

impl Under {
    fn test(push: Push, names: &[(&str, &[&[&str]])]) -> Self {
        let (live, rx) = watch::channel(Arc::new(Live { push, ..Live::new(Value::Null) }));
        let registry = prometheus::Registry::new();
        let store: Arc<dyn Store> = Arc::new(Memory::new(rx.clone(), StoreMetrics::register(&registry).unwrap()));
        let names = Names::new(names);
        let waits = Waits { connect: Duration::from_secs(2), total: Duration::from_secs(3), ..Waits::default() };
        let outlet = Arc::new(Outlet::new(rx, Arc::clone(&names) as _, waits));
        let configs = Configs::new(Arc::clone(&outlet), Arc::clone(&store));
        Self { store, outlet, configs, metrics: Metrics::register(&registry).unwrap(), live, names }
    }

    /// To receivers on loopback.
    fn local() -> Self {
        Self::test(push(&["127.0.0.0/8"]), &[])
    }

    fn send(&self, timing: Timing) -> Running {
        let stop = CancellationToken::new();
        let sender = Sender::start(
            Arc::clone(&self.outlet),
            Arc::clone(&self.store),
            self.metrics.clone(),
            timing,
            stop.clone(),
        );
        Running { sender, _stop: stop.drop_guard() }
    }

    /// A new task with a receiver, as a message makes it.
    async fn task(&self, id: &str, config: Value, dialect: Dialect, revealed: bool) -> Arc<Task> {
        let raw = RawValue::from_string(config.to_string()).unwrap();
        let config = Config::inline(&raw, "c", &mut Vec::new()).unwrap();
        let record = self.configs.inline(&config, &id.into(), 0, &call(me(), dialect)).await.unwrap();
        let message = Raw::parse(r#"{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"hi"}]}"#).unwrap();
        let task = Task::new(id.into(), "c1".into(), "me".into(), message, revealed, Timestamp::now());
        self.store.create(task, None, Some(record)).await.unwrap()
    }

    async fn change(&self, id: &str, change: Change) {
        let seen = self.store.get(id).await.unwrap();
        self.store.append(&seen, change, None).await.unwrap();
    }

    async fn state(&self, id: &str, state: State) {
        self.change(id, Change { state: Some(state), ..Change::default() }).await;
    }

    fn count(&self, outcome: &str) -> u64 {
        self.metrics.deliveries.with_label_values(&[outcome]).get()
    }
}

fn me() -> Caller {
    Caller { key: "me".into(), identity: None }
}

/// A request of a caller, in a trace of its own.
fn call(caller: Caller, dialect: Dialect) -> Call {
    Call {
        caller,
        trace: Trace::again(TRACE, Some("vendor=1")),
        binding: Binding::JsonRpc,
        dialect,
        extensions: Vec::new(),
        idempotency_key: None,
        last_event_id: None,
        used: Used::default(),
    }
}

fn chunk(text: &str) -> Change {
    let json = Raw::parse(&format!(r#"{{"artifactId":"a","parts":[{{"text":"{text}","n":1.0}}]}}"#)).unwrap();
    let mut update = ArtifactUpdate::whole(Artifact::whole("a".into(), None, json));
    update.append = true;
    Change { artifacts: vec![update], ..Change::default() }
}

fn hook(port: u16) -> Value {
    json!({"url": format!("http://127.0.0.1:{port}/hook")})
}

/// What a notification says, in one word.
fn word(got: &Got) -> String {
    let body = got.json();
    let short = |s: &Value| s.as_str().unwrap().trim_start_matches("TASK_STATE_").to_lowercase();
    if let Some(update) = body.get("artifactUpdate") {
        return update["artifact"]["parts"][0]["text"].as_str().unwrap().to_owned();
    }
    match body.get("statusUpdate") {
        Some(update) => short(&update["status"]["state"]),
        None => format!("task {}", short(&body["task"]["status"]["state"])),
    }
}

fn words(server: &Server) -> Vec<String> {
    server.got().iter().map(word).collect()
}

async fn accepting() -> Server {
    Server::http(|_| async { status(204) }).await
}

#[tokio::test]
async fn events_come_in_order_with_their_headers() {
    let under = Under::local();
    let server = accepting().await;
    let mut config = hook(server.port);
    config["token"] = json!("tok-1");
    config["authentication"] = json!({"scheme": "Bearer", "credentials": "secret"});
    under.task("t1", config, Dialect::V10, true).await;
    let _running = under.send(quick());
    under.state("t1", State::Working).await;
    under.change("t1", chunk("one")).await;
    under.change("t1", Change { state: Some(State::Completed), ..chunk("two") }).await;
    until("all events", || server.count() == 5).await;
    assert_eq!(words(&server), ["task submitted", "working", "one", "two", "completed"]);
    let got = server.got();
    let ids: Vec<_> = got.iter().map(|g| g.header("idempotency-key").to_owned()).collect();
    assert_eq!(ids, ["t1.1.0", "t1.2.0", "t1.3.0", "t1.4.0", "t1.4.1"]);
    for got in &got {
        assert_eq!(got.path, "/hook");
        assert_eq!(got.header("content-type"), "application/a2a+json");
        assert_eq!(got.header("authorization"), "Bearer secret");
        assert_eq!(got.header("x-a2a-notification-token"), "tok-1");
        assert_eq!(got.header("a2a-version"), "1.0");
        // The trace of the request that named the receiver, each time with a span of its own.
        assert_eq!(got.header("traceparent")[..36], TRACE[..36]);
        assert_eq!(got.header("tracestate"), "vendor=1");
        let signature = got.header("outrigger-signature");
        let (time, mac) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
        let key = EncodingKey::from_secret(b"tok-1").unwrap();
        let signed = format!("{time}.{}", std::str::from_utf8(&got.body).unwrap());
        assert_eq!(crypto::sign(signed.as_bytes(), &key, Algorithm::HS256).unwrap(), mac);
    }
    assert!(std::str::from_utf8(&got[2].body).unwrap().contains(r#""n":1.0"#), "content passes as it is");
    assert_eq!(got[0].json()["task"]["history"][0]["messageId"], "m1");
}

#[tokio::test]
async fn old_receivers_get_tasks() {
    let under = Under::local();
    let server = accepting().await;
    under.task("t1", hook(server.port), Dialect::V03Proto, true).await;
    under.state("t1", State::Working).await;
    for i in 0..20 {
        under.change("t1", chunk(&i.to_string())).await;
    }
    under.state("t1", State::Completed).await;
    let _running = under.send(quick());
    until("the end", || server.got().last().is_some_and(|g| g.json()["status"]["state"] == "completed")).await;
    let got = server.got();
    assert!(got.len() <= 5, "chunks of the past are in one task: {}", got.len());
    for got in &got {
        assert_eq!((got.json()["kind"].as_str(), got.header("a2a-version")), (Some("task"), "0.3"));
        assert_eq!(got.json()["history"][0]["parts"][0]["kind"], "text");
    }
    assert_eq!(got.last().unwrap().json()["artifacts"][0]["parts"].as_array().unwrap().len(), 20);
}

#[tokio::test]
async fn a_receiver_that_is_down_gets_everything_when_it_is_back() {
    let under = Under::local();
    let reserved = tokio::net::TcpSocket::new_v4().unwrap();
    reserved.set_reuseaddr(true).unwrap();
    reserved.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = reserved.local_addr().unwrap().port();
    under.task("t1", hook(port), Dialect::V10, true).await;
    let running = under.send(quick());
    under.state("t1", State::Working).await;
    until("some attempts", || under.count("unreachable") >= 5).await;
    let config = under.store.push_configs("t1").await.unwrap().remove(0);
    assert!(config.attempts > 0 && config.delivered == 0);
    under.change("t1", chunk("late")).await;
    under.state("t1", State::Completed).await;
    let server = Server::start(reserved.listen(16).unwrap(), false, |_| async { status(200) });
    until("all events", || server.count() == 4).await;
    assert_eq!(words(&server), ["task submitted", "working", "late", "completed"]);
    let deadline = tokio::time::Instant::now() + outbound_support::PATIENCE;
    loop {
        let config = under.store.push_configs("t1").await.unwrap().remove(0);
        if (config.attempts, config.delivered) == (0, 4) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{config:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(running.sender.dead_letters(), 0);
}

#[tokio::test]
async fn failures_are_repeated_and_retry_after_is_honoured() {
    let under = Under::local();
    let number = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&number);
    let server = Server::http(move |_| {
        let n = counter.fetch_add(1, Ordering::Relaxed);
        async move {
            match n {
                0..3 => status(500),
                3 => {
                    let mut response = status(503);
                    response.headers_mut().insert("retry-after", "1".parse().unwrap());
                    response
                }
                _ => status(202),
            }
        }
    })
    .await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    let _running = under.send(quick());
    under.state("t1", State::Completed).await;
    until("both events", || under.count("delivered") == 2).await;
    let got = server.got();
    let ids: Vec<_> = got.iter().map(|g| g.header("idempotency-key").to_owned()).collect();
    assert_eq!(ids, ["t1.1.0", "t1.1.0", "t1.1.0", "t1.1.0", "t1.1.0", "t1.2.0"], "the same event keeps its id");
    assert!(got[4].at - got[3].at >= Duration::from_millis(990), "not before the receiver wants it");
    assert_eq!(under.count("rejected"), 4);
}

#[tokio::test]
async fn a_slow_receiver_holds_up_nobody_else() {
    let under = Under::local();
    let slow = Server::http(|_| async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        status(200)
    })
    .await;
    let quick_one = accepting().await;
    for i in 0..40 {
        under.task(&format!("slow-{i}"), hook(slow.port), Dialect::V10, true).await;
    }
    let _running = under.send(quick());
    until("the slow server is busy", || slow.count() >= 8).await;
    for i in 0..20 {
        let id = format!("quick-{i}");
        under.task(&id, hook(quick_one.port), Dialect::V10, true).await;
        under.state(&id, State::Completed).await;
    }
    until("all of the quick ones", || quick_one.count() == 40).await;
    let mut by_task: HashMap<String, Vec<String>> = HashMap::new();
    for got in quick_one.got() {
        let id = got.header("idempotency-key").split('.').next().unwrap().to_owned();
        by_task.entry(id).or_default().push(word(&got));
    }
    assert!(by_task.values().all(|w| *w == ["task submitted", "completed"]), "{by_task:?}");
    assert!(slow.count() <= 8, "one server gets so many at once");
}

/// Reads notifications as a receiver does that knows each by its id and applies it.
fn artifact_of(got: &[Got]) -> Vec<String> {
    let (mut seen, mut parts) = (std::collections::HashSet::new(), Vec::new());
    for got in got.iter().filter(|g| seen.insert(g.header("idempotency-key").to_owned())) {
        let body = got.json();
        let Some(update) = body.get("artifactUpdate") else { continue };
        if update.get("append").is_none() {
            parts.clear();
        }
        let new = update["artifact"]["parts"].as_array().unwrap();
        parts.extend(new.iter().map(|p| p["text"].as_str().unwrap().to_owned()));
    }
    parts
}

#[tokio::test]
async fn chunks_for_a_receiver_that_is_behind_go_together() {
    let under = Under::local();
    let server = accepting().await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    for i in 0..20 {
        under.change("t1", chunk(&i.to_string())).await;
    }
    under.state("t1", State::Working).await;
    under.change("t1", chunk("20")).await;
    under.change("t1", chunk("21")).await;
    under.state("t1", State::Completed).await;
    let _running = under.send(quick());
    until("the end", || server.got().last().is_some_and(|g| word(g) == "completed")).await;
    let got = server.got();
    let ids: Vec<_> = got.iter().map(|g| g.header("idempotency-key").to_owned()).collect();
    assert_eq!(ids, ["t1.1.0", "t1.21.0", "t1.22.0", "t1.24.0", "t1.25.0"]);
    assert_eq!(got[1].json()["artifactUpdate"]["append"], true);
    assert_eq!(artifact_of(&got), (0..22).map(|i| i.to_string()).collect::<Vec<_>>());
    assert!(std::str::from_utf8(&got[1].body).unwrap().contains(r#""n":1.0"#), "content passes as it is");
}

#[tokio::test]
async fn chunks_that_may_have_come_are_not_doubled() {
    let under = Under::local();
    // It takes what comes, and says so only after four times.
    let number = Arc::new(AtomicU32::new(0));
    let (counter, gate) = (Arc::clone(&number), Arc::new(tokio::sync::Semaphore::new(2)));
    let door = Arc::clone(&gate);
    let server = Server::http(move |_| {
        let (n, door) = (counter.fetch_add(1, Ordering::Relaxed), Arc::clone(&door));
        async move {
            door.acquire().await.unwrap().forget();
            status(if (1..4).contains(&n) { 500 } else { 204 })
        }
    })
    .await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    under.change("t1", chunk("0")).await;
    under.change("t1", chunk("1")).await;
    let _running = under.send(quick());
    until("the chunks were refused", || under.count("rejected") == 1).await;
    // More come before they are sent again.
    for i in 2..6 {
        under.change("t1", chunk(&i.to_string())).await;
    }
    gate.add_permits(100);
    under.state("t1", State::Completed).await;
    until("the end", || under.count("delivered") >= 3 && server.got().last().is_some_and(|g| word(g) == "completed"))
        .await;
    let got = server.got();
    assert_eq!(got[1].header("idempotency-key"), "t1.3.0");
    assert_eq!(got[1].json()["artifactUpdate"]["append"], true);
    assert_eq!(artifact_of(&got), (0..6).map(|i| i.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn chunks_of_a_sender_that_vanished_are_not_doubled() {
    let under = Under::local();
    let server = accepting().await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    for i in 0..4 {
        under.change("t1", chunk(&i.to_string())).await;
    }
    // A sender that claimed it and wrote nothing down, whatever it delivered.
    let lost = under.store.push_due(1, Duration::ZERO).await.unwrap().remove(0);
    assert!(!lost.again);
    let _running = under.send(quick());
    until("the chunks", || server.count() == 2).await;
    let got = server.got();
    let update = &got[1].json()["artifactUpdate"];
    assert!(update.get("append").is_none(), "the artifact as a whole: {update}");
    assert_eq!(artifact_of(&got), ["0", "1", "2", "3"]);
    under.state("t1", State::Completed).await;
    until("the end", || server.count() == 3).await;
}

#[tokio::test]
async fn secrets_go_with_the_last_notification() {
    let under = Under::local();
    let server = accepting().await;
    let gone = Server::http(|_| async { status(410) }).await;
    let with_secrets = |port| {
        let mut config = hook(port);
        config["token"] = json!("tok-1");
        config["authentication"] = json!({"scheme": "Bearer", "credentials": "secret"});
        config
    };
    let stored = |id: &'static str| {
        let store = Arc::clone(&under.store);
        async move { store.push_configs(id).await.unwrap().remove(0) }
    };
    let running = under.send(quick());
    under.task("t1", with_secrets(server.port), Dialect::V10, true).await;
    until("the first event", || server.count() == 1).await;
    assert!(stored("t1").await.json.as_str().contains("secret"), "it has more to send");
    under.state("t1", State::Completed).await;
    under.task("t2", with_secrets(gone.port), Dialect::V10, true).await;
    until("the other one is given up", || running.sender.dead_letters() == 1).await;
    for id in ["t1", "t2"] {
        let deadline = tokio::time::Instant::now() + outbound_support::PATIENCE;
        loop {
            let json = stored(id).await.json;
            if !json.as_str().contains("secret") && !json.as_str().contains("tok-1") {
                assert!(json.as_str().contains("/hook") && json.as_str().contains("Bearer"), "{json:?}");
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "{id} keeps its secrets");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(server.got()[1].header("authorization"), "Bearer secret");
    // A receiver that comes when all is over gets nothing, so nothing of it is kept.
    let mut late = with_secrets(server.port);
    late["taskId"] = json!("t1");
    late["id"] = json!("late");
    let params = RawValue::from_string(late.to_string()).unwrap();
    under.configs.create(&call(me(), Dialect::V10), Some(&params)).await.unwrap();
    let all = under.store.push_configs("t1").await.unwrap();
    assert!(all.iter().all(|c| !c.json.as_str().contains("secret")), "{all:?}");
}

#[tokio::test]
async fn dead_letters_are_told_to_those_who_ask_for_the_extension() {
    let under = Under::local();
    let server = Server::http(|_| async { status(410) }).await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    let running = under.send(quick());
    until("it is given up", || running.sender.dead_letters() == 1).await;
    let params = RawValue::from_string(json!({"taskId": "t1"}).to_string()).unwrap();
    let list = |extensions: Vec<String>| {
        let (configs, params) = (&under.configs, &params);
        async move {
            let call = Call { extensions, ..call(me(), Dialect::V10) };
            match configs.list(&call, Some(params)).await.unwrap() {
                Answer::Json(json) => serde_json::from_str::<Value>(&json).unwrap()["configs"][0].clone(),
                other => panic!("{other:?}"),
            }
        }
    };
    let deadline = tokio::time::Instant::now() + outbound_support::PATIENCE;
    let told = loop {
        let told = list(vec![DELIVERY.to_owned()]).await;
        if told.get("deadLetter").is_some() {
            break told;
        }
        assert!(tokio::time::Instant::now() < deadline, "{told}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(told["deadLetter"], json!({"reason": "the receiver answers 410"}));
    assert!(list(vec![]).await.get("deadLetter").is_none(), "others get what the specification has");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let under = Under::local();
    let trap = accepting().await;
    let to = format!("http://127.0.0.1:{}/latest/meta-data", trap.port);
    let server = Server::http(move |_| {
        let mut response = status(307);
        response.headers_mut().insert("location", to.parse().unwrap());
        std::future::ready(response)
    })
    .await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    let running = under.send(Timing { attempts: 3, ..quick() });
    until("it is given up", || running.sender.dead_letters() == 1).await;
    assert_eq!((server.count(), trap.count()), (3, 0));
    let config = under.store.push_configs("t1").await.unwrap().remove(0);
    assert_eq!(config.dead.as_deref(), Some("the receiver answers 307"));
    assert_eq!(under.metrics.dead.get(), 1);
    under.state("t1", State::Completed).await;
    assert!(under.store.push_due(10, Duration::from_secs(1)).await.unwrap().is_empty(), "no more for the dead");
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_given_up_at_once() {
    let under = Under::local();
    let server = Server::http(|_| async { status(410) }).await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    let running = under.send(quick());
    until("it is given up", || running.sender.dead_letters() == 1).await;
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn a_name_that_changes_between_check_and_connection_leads_nowhere() {
    // The pod's own port: what an attacker would want to reach.
    let own = accepting().await;
    let url = format!("https://rebind.example:{}/hook", own.port);
    let names: &[(&str, &[&[&str]])] = &[
        // Checked when it is registered, then something else each time.
        (
            "rebind.example",
            &[&["8.8.8.8"], &["127.0.0.1"], &["169.254.169.254"], &["::ffff:127.0.0.1"], &["8.8.8.8", "10.0.0.1"]],
        ),
    ];
    let under = Under::test(push(&[]), names);
    under.task("t1", json!({"url": url}), Dialect::V10, true).await;
    let running = under.send(Timing { attempts: 5, ..quick() });
    until("it is given up", || running.sender.dead_letters() == 1).await;
    assert_eq!(own.count(), 0);
    assert_eq!(under.count("refused"), 5);
    assert_eq!(under.names.asked().len(), 6, "once to register and once for each attempt");
}

#[tokio::test]
async fn the_connection_goes_to_the_address_that_was_checked() {
    let server = Server::https(|_| async { text("ok") }).await;
    // A second look would give an address where nothing listens.
    let names: &[(&str, &[&[&str]])] = &[("hooks.example", &[&["127.0.0.1"], &["127.0.0.1"], &["127.0.0.9"]])];
    let push = Push { ca_file: Some(fixture("tls/ca.pem").to_string_lossy().into_owned()), ..push(&["127.0.0.1"]) };
    let under = Under::test(push, names);
    let url = format!("https://hooks.example:{}/", server.port);
    under.task("t1", json!({"url": url}), Dialect::V10, true).await;
    let _running = under.send(quick());
    until("the first event", || under.count("delivered") == 1).await;
    assert_eq!(server.got()[0].header("host"), format!("hooks.example:{}", server.port));
    under.state("t1", State::Completed).await;
    until("the second event", || server.count() == 2).await;
    assert_eq!(under.names.asked().len(), 2, "the second event goes over the same connection");
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let server = Server::https(|_| async { status(200) }).await;
    let under = Under::test(push(&["127.0.0.1"]), &[]);
    under.task("t1", json!({"url": format!("https://127.0.0.1:{}/", server.port)}), Dialect::V10, true).await;
    let _running = under.send(quick());
    until("attempts", || under.count("unreachable") >= 2).await;
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn a_task_that_nobody_knows_of_is_not_told() {
    let under = Under::local();
    let server = accepting().await;
    under.task("hidden", hook(server.port), Dialect::V10, false).await;
    let hidden = under.store.get("hidden").await.unwrap();
    under.task("shown", hook(server.port), Dialect::V10, true).await;
    let _running = under.send(quick());
    until("the other one", || server.count() == 1).await;
    assert_eq!(server.got()[0].header("idempotency-key"), "shown.1.0");
    under.store.withdraw(&hidden, None, &Raw::parse("{}").unwrap()).await.unwrap();
    under.task("later", hook(server.port), Dialect::V10, false).await;
    under.change("later", Change { reveal: true, state: Some(State::Working), ..Change::default() }).await;
    until("the revealed one", || server.count() == 3).await;
    let got = server.got();
    assert_eq!([got[1].header("idempotency-key"), got[2].header("idempotency-key")], ["later.1.0", "later.2.0"]);
}

#[tokio::test]
async fn another_sender_goes_on_where_the_first_was() {
    let under = Under::local();
    let server = accepting().await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    let first = under.send(quick());
    until("the first event", || server.count() == 1).await;
    let deadline = tokio::time::Instant::now() + outbound_support::PATIENCE;
    while under.store.push_configs("t1").await.unwrap()[0].delivered == 0 {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(first);
    under.state("t1", State::Working).await;
    under.state("t1", State::Completed).await;
    let _second = under.send(quick());
    until("the rest", || server.count() == 3).await;
    assert_eq!(words(&server), ["task submitted", "working", "completed"]);
}

#[tokio::test]
async fn a_signed_token_proves_sender_and_content() {
    let dir = tempfile::tempdir().unwrap();
    for (name, key) in [("2026-01", "rs256"), ("2026-02", "ed25519")] {
        std::fs::copy(fixture(&format!("keys/{key}.pem")), dir.path().join(name)).unwrap();
    }
    let signing = Some(dir.path().to_string_lossy().into_owned());
    let under = Under::test(Push { signing_keys: signing, ..push(&["127.0.0.0/8"]) }, &[]);
    let mut live = Live::clone(&under.live.borrow());
    live.offer.url = "http://agent.shop".into();
    under.live.send_replace(Arc::new(live));
    let server = accepting().await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    let _running = under.send(quick());
    until("an event", || server.count() == 1).await;
    let got = &server.got()[0];
    let jwt = got.header("authorization").strip_prefix("Bearer ").unwrap();
    assert_eq!(got.header("outrigger-notification-jwt"), jwt);

    let keys = Watched::new(dir.path(), Keys::read).get();
    assert_eq!(keys.faults, Vec::<String>::new());
    let public: Vec<&Value> = keys.public().collect();
    assert_eq!((public.len(), public[1]["kid"].as_str()), (2, Some("2026-02")));
    assert!(public.iter().all(|k| k.get("d").is_none() && k["use"] == "sig"));
    let jwk: Jwk = serde_json::from_value(public[1].clone()).unwrap();
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.set_audience(&[format!("http://127.0.0.1:{}", server.port)]);
    validation.set_issuer(&["http://agent.shop"]);
    let claims = decode::<Value>(jwt, &DecodingKey::from_jwk(&jwk).unwrap(), &validation).unwrap().claims;
    let digest = outrigger_protocol::digest::sha256(&got.body);
    assert_eq!((claims["jti"].as_str(), claims["bodySha256"].as_str()), (Some("t1.1.0"), Some(digest.as_str())));
}

#[tokio::test]
async fn configurations_are_their_callers_own() {
    let under = Under::local();
    let server = accepting().await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    let url = format!("http://127.0.0.1:{}/mine", server.port);
    let params = |value: Value| RawValue::from_string(value.to_string()).unwrap();
    let json_of = |answer: Answer| match answer {
        Answer::Json(json) => serde_json::from_str::<Value>(&json).unwrap(),
        other => panic!("{other:?}"),
    };
    let configs = &under.configs;
    let create = |config: Value| async move {
        configs.create(&call(me(), Dialect::V10), Some(&params(config))).await.map(json_of)
    };
    let whole = json!({"taskId": "t1", "id": "mine", "url": url, "token": "tok", "x": 1.0,
                       "authentication": {"scheme": "Basic", "credentials": "secret"}});
    let made = create(whole.clone()).await.unwrap();
    assert_eq!(
        made,
        json!({"taskId": "t1", "id": "mine", "url": url, "token": "tok", "x": 1.0,
                            "authentication": {"scheme": "Basic"}})
    );
    let again = create(whole).await.unwrap();
    assert_eq!(made, again, "a namesake is replaced");
    let a = create(json!({"taskId": "t1", "url": url})).await.unwrap();
    let b = create(json!({"taskId": "t1", "url": url})).await.unwrap();
    assert_ne!(a["id"], b["id"]);

    let list = json_of(configs.list(&call(me(), Dialect::V10), Some(&params(json!({"taskId": "t1"})))).await.unwrap());
    assert_eq!((list["configs"].as_array().unwrap().len(), list["nextPageToken"].as_str()), (4, Some("")));
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let asked = params(json!({"taskId": "t1", "pageSize": 3, "pageToken": token}));
        let page = json_of(configs.list(&call(me(), Dialect::V10), Some(&asked)).await.unwrap());
        seen.extend(page["configs"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap().to_owned()));
        page["nextPageToken"].as_str().unwrap().clone_into(&mut token);
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen.len(), 4);

    let named = params(json!({"taskId": "t1", "id": "mine"}));
    assert_eq!(json_of(configs.get(&call(me(), Dialect::V10), Some(&named)).await.unwrap()), made);
    let unnamed = params(json!({"taskId": "t1"}));
    json_of(configs.get(&call(me(), Dialect::V03), Some(&unnamed)).await.unwrap());
    assert_eq!(configs.get(&call(me(), Dialect::V10), Some(&unnamed)).await.unwrap_err().kind, Kind::InvalidParams);

    // Another caller sees what it would see without the task.
    let other = Caller { key: "other".into(), identity: None };
    for error in [
        configs
            .create(&call(other.clone(), Dialect::V10), Some(&params(json!({"taskId": "t1", "url": url}))))
            .await
            .unwrap_err(),
        configs.get(&call(other.clone(), Dialect::V10), Some(&named)).await.unwrap_err(),
        configs.list(&call(other.clone(), Dialect::V10), Some(&unnamed)).await.unwrap_err(),
        configs.delete(&call(other.clone(), Dialect::V10), Some(&named)).await.unwrap_err(),
        configs.get(&call(me(), Dialect::V10), Some(&params(json!({"taskId": "t9", "id": "mine"})))).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, Kind::TaskNotFound);
    }
    for _ in 0..2 {
        assert!(matches!(configs.delete(&call(me(), Dialect::V10), Some(&named)).await, Ok(Answer::Nothing)));
    }
    assert_eq!(configs.get(&call(me(), Dialect::V10), Some(&named)).await.unwrap_err().kind, Kind::TaskNotFound);

    let mut live = Live::clone(&under.live.borrow());
    live.limits = Limits { max_push_configs: 3, ..Limits::default() };
    under.live.send_replace(Arc::new(live.clone()));
    let full = create(json!({"taskId": "t1", "url": url})).await.unwrap_err();
    assert!(full.kind == Kind::InvalidParams && full.message.contains("at most 3"), "{}", full.message);
    live.push.enabled = false;
    under.live.send_replace(Arc::new(live));
    let off = configs.list(&call(me(), Dialect::V10), Some(&unnamed)).await.unwrap_err();
    assert_eq!(off.kind, Kind::PushNotificationNotSupported);
}

#[tokio::test]
async fn receivers_that_are_refused_are_named_at_once() {
    let names: &[(&str, &[&[&str]])] = &[
        ("inside.example", &[&["10.0.0.1"]]),
        ("metadata.example", &[&["169.254.169.254"]]),
        ("seller.shops.svc", &[&["10.96.0.7"]]),
    ];
    let under = Under::test(push(&["*.shops.svc"]), names);
    under.task("t1", json!({"url": "https://unknown.example/"}), Dialect::V10, true).await;
    for (url, ok) in [
        ("https://inside.example/", false),
        ("https://metadata.example/", false),
        ("http://unknown.example/", true),
        ("https://127.0.0.1:19900/", false),
        ("https://[::1]/", false),
        ("https://[::ffff:169.254.169.254]/", false),
        ("https://2130706433/", false),
        ("http://8.8.8.8/", false),
        ("https://user:pass@e.example/", false),
        ("http://seller.shops.svc:8080/hook", true),
        ("file:///etc/passwd", false),
    ] {
        let params = RawValue::from_string(json!({"taskId": "t1", "url": url}).to_string()).unwrap();
        let got = under.configs.create(&call(me(), Dialect::V10), Some(&params)).await;
        assert_eq!(got.is_ok(), ok, "{url}: {got:?}");
        if let Err(error) = got {
            assert_eq!((error.kind, error.violations[0].field.as_str()), (Kind::InvalidParams, "url"), "{url}");
        }
    }
}

#[tokio::test]
async fn nothing_is_sent_while_push_is_off() {
    let under = Under::local();
    let server = accepting().await;
    under.task("t1", hook(server.port), Dialect::V10, true).await;
    let mut live = Live::clone(&under.live.borrow());
    live.push.enabled = false;
    under.live.send_replace(Arc::new(live.clone()));
    let _running = under.send(quick());
    under.state("t1", State::Completed).await;
    assert_eq!(server.count(), 0);
    live.push.enabled = true;
    under.live.send_replace(Arc::new(live));
    until("what waited", || server.count() == 2).await;
}
