//! The executor for agents that speak A2A themselves, with a scripted agent in each binding and version.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod upstream_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use outrigger_protocol::a2a::errors::{Error, Kind};
use outrigger_protocol::a2a::fault::Fault;
use outrigger_protocol::a2a::operation::{Binding, Operation};
use outrigger_protocol::a2a::state::State;
use outrigger_protocol::config::{Limits, Runtime};
use outrigger_sidecar::a2a::executor::{Executor, TurnEvent};
use outrigger_sidecar::a2a::upstream::executor::A2a;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use upstream_support::{Agent, PATIENCE, Says, Seen, Step, Way, executor, follow_up, input, quick, unknown};

const JSONRPC: Way = Way { binding: Binding::JsonRpc, version: "1.0", streaming: true };
const UNARY: Way = Way { streaming: false, ..JSONRPC };

#[allow(clippy::needless_pass_by_value, reason = "what is given is made for it")]
fn task(state: &str, more: Value) -> Value {
    let mut task = json!({"id": "their-task", "contextId": "their-context", "status": {"state": state}});
    for (key, value) in more.as_object().unwrap() {
        task[key] = value.clone();
    }
    task
}

fn status(state: &str, text: Option<&str>) -> Step {
    let mut status = json!({"state": state});
    if let Some(text) = text {
        status["message"] = json!({"messageId": format!("s-{text}"), "taskId": "their-task", "contextId": "their-context",
            "role": "ROLE_AGENT", "parts": [{"text": text}]});
    }
    Step::Event(json!({"statusUpdate": {"taskId": "their-task", "contextId": "their-context", "status": status}}))
}

fn chunk(text: &str, append: bool) -> Step {
    let artifact = json!({"artifactId": "a", "name": "Order", "parts": [{"text": text}]});
    Step::Event(json!({"artifactUpdate": {"taskId": "their-task", "contextId": "their-context", "append": append,
        "artifact": artifact}}))
}

fn begin() -> Step {
    Step::Event(json!({"task": task("TASK_STATE_SUBMITTED", json!({}))}))
}

/// A seller: asks, then sells in two chunks.
fn seller(operation: Operation, params: &Value) -> Says {
    let confirmed = params["message"]["taskId"] == "their-task";
    match operation {
        Operation::SendStreamingMessage if confirmed => Says::Events(vec![
            Step::Event(json!({"task": task("TASK_STATE_WORKING", json!({}))})),
            chunk("two ", false),
            chunk("burgers", true),
            status("TASK_STATE_COMPLETED", None),
        ]),
        Operation::SendStreamingMessage => Says::Events(vec![
            begin(),
            status("TASK_STATE_WORKING", Some("looking")),
            status("TASK_STATE_INPUT_REQUIRED", Some("which?")),
        ]),
        _ => unknown(params),
    }
}

#[tokio::test]
async fn a_question_and_its_answer_in_every_binding_and_version() {
    for way in Way::all() {
        let agent = Agent::start(way, |o, p| seller(o, &p)).await;
        let executor = executor(agent.port);
        let asked = Seen::turn(&executor, input("burgers")).await;
        assert_eq!(asked.fault, None, "{way:?}");
        assert_eq!(executor.interface().unwrap(), format!("{} {}", way.binding.name(), way.version));
        assert!(asked.started);
        assert_eq!(asked.states, [State::Working, State::InputRequired], "{way:?}");
        let said = asked.said();
        assert_eq!(
            (&said["parts"][0]["text"], &said["taskId"], &said["contextId"]),
            (&json!("which?"), &json!("our-task"), &json!("our-context"))
        );
        assert_eq!(
            asked.attachment.as_ref().unwrap().as_str(),
            r#"{"taskId":"their-task","contextId":"their-context"}"#
        );
        assert_eq!(asked.memo.as_ref().unwrap().as_str(), r#"{"contextId":"their-context"}"#);

        let sold = Seen::turn(&executor, follow_up("two", &asked)).await;
        assert_eq!((sold.fault.as_ref(), sold.last_state()), (None, Some(State::Completed)), "{way:?}");
        assert_eq!(sold.artifact()["parts"], json!([{"text": "two "}, {"text": "burgers"}]), "{way:?}");
        assert_eq!((sold.updates, sold.artifact()["name"].as_str()), (2, Some("Order")));

        let got = agent.got(Operation::SendStreamingMessage);
        assert_eq!(got.len(), 2);
        assert!(got.iter().all(|g| g.binding == way.binding && g.dialect.version() == way.version));
        assert!(got[0].params["message"].get("taskId").is_none(), "a new task there too: {}", got[0].params);
        assert!(got[0].params["message"].get("contextId").is_none(), "our context is nothing to them");
        let message = &got[1].params["message"];
        assert_eq!(
            (&message["taskId"], &message["contextId"]),
            (&json!("their-task"), &json!("their-context")),
            "{way:?}"
        );
        assert_eq!(got[0].trace, "0af7651916cd43dd8448eb211c80319c", "the caller's trace");
    }
}

#[tokio::test]
async fn an_agent_that_does_not_stream_is_looked_at_until_its_task_rests() {
    for way in Way::all() {
        let looks = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&looks);
        let agent = Agent::start(Way { streaming: false, ..way }, move |operation, params| match operation {
            Operation::SendMessage => Says::Json(json!({"task": task("TASK_STATE_SUBMITTED", json!({}))})),
            Operation::GetTask if params["id"] == "their-task" => {
                let n = count.fetch_add(1, Ordering::SeqCst);
                let parts: Vec<_> = (0..=n).map(|i| json!({"text": i.to_string()})).collect();
                let artifacts = json!([{"artifactId": "a", "parts": parts}]);
                let state = if n < 2 { "TASK_STATE_WORKING" } else { "TASK_STATE_COMPLETED" };
                Says::Json(task(state, json!({"artifacts": artifacts})))
            }
            _ => unknown(&params),
        })
        .await;
        let seen = Seen::turn(&executor(agent.port), input("slowly")).await;
        assert_eq!((seen.fault.as_ref(), seen.last_state()), (None, Some(State::Completed)), "{way:?}");
        assert_eq!(seen.artifact()["parts"], json!([{"text": "0"}, {"text": "1"}, {"text": "2"}]), "{way:?}");
        assert_eq!((seen.updates, looks.load(Ordering::SeqCst)), (3, 3), "each part once");
        let sent = &agent.got(Operation::SendMessage)[0].params;
        assert_eq!(sent["configuration"]["returnImmediately"], true, "{way:?}: {sent}");
    }
}

#[tokio::test]
async fn a_direct_message_passes_with_its_content() {
    for streaming in [true, false] {
        for way in Way::all() {
            let agent = Agent::start(Way { streaming, ..way }, |operation, params| {
                let message = json!({"message": {"messageId": "d", "contextId": "their-context", "role": "ROLE_AGENT",
                    "parts": [{"text": "hi"}, {"data": {"n": 7}}]}});
                match operation {
                    Operation::SendMessage => Says::Json(message),
                    Operation::SendStreamingMessage => Says::Events(vec![Step::Event(message)]),
                    _ => unknown(&params),
                }
            })
            .await;
            let executor = executor(agent.port);
            let seen = Seen::turn(&executor, input("hello")).await;
            let message: Value = serde_json::from_str(seen.message.as_ref().unwrap().as_str()).unwrap();
            assert_eq!(message["parts"], json!([{"text": "hi"}, {"data": {"n": 7}}]), "{way:?}");
            assert_eq!((&message["messageId"], &message["contextId"]), (&json!("d"), &json!("our-context")));
            assert!(seen.states.is_empty() && seen.attachment.is_none());
            // The next task of the context goes on in theirs.
            let mut next = input("again");
            next.conversation.memo = seen.memo;
            Seen::turn(&executor, next).await;
            let operation = if streaming { Operation::SendStreamingMessage } else { Operation::SendMessage };
            assert_eq!(agent.got(operation)[1].params["message"]["contextId"], "their-context", "{way:?}");
        }
    }
}

#[tokio::test]
async fn what_the_caller_sent_reaches_the_agent() {
    let agent = Agent::start(UNARY, |operation, params| match operation {
        Operation::SendMessage => {
            Says::Json(json!({"task": task("TASK_STATE_COMPLETED", json!({"artifacts": [{"artifactId": "e", "parts": params["message"]["parts"]}]}))}))
        }
        _ => unknown(&params),
    })
    .await;
    let mut turn = input("x");
    let parts = r#"[{"data":{"big":12345678901234567890,"one":1},"metadata":{"k":7},"unknown":[null]}]"#;
    let message = format!(r#"{{"messageId":"m","role":"ROLE_USER","parts":{parts},"metadata":{{"z":1,"a":2}}}}"#);
    turn.message = message.into();
    turn.metadata = Some(outrigger_protocol::a2a::raw::Raw::parse(r#"{"request":1}"#).unwrap());
    turn.accepted_output_modes = vec!["text/plain".into(), "a\"b".into()];
    turn.extensions = vec!["urn:x".into(), "urn:y".into()];
    let seen = Seen::turn(&executor(agent.port), turn).await;
    assert_eq!(seen.last_state(), Some(State::Completed));
    assert!(seen.artifacts[0].to_json().as_str().contains(r#""big":12345678901234567890"#), "{:?}", seen.artifacts);
    let got = &agent.got(Operation::SendMessage)[0];
    assert_eq!(got.params["metadata"], json!({"request": 1}));
    assert_eq!(got.params["configuration"]["acceptedOutputModes"], json!(["text/plain", "a\"b"]));
    assert_eq!(got.extensions, ["urn:x", "urn:y"]);
    assert_eq!(got.params["message"]["metadata"], json!({"z": 1, "a": 2}));
}

#[tokio::test]
async fn errors_are_faults() {
    for (error, want) in [
        (Error::new(Kind::ContentTypeNotSupported, "no images"), "CONTENT_TYPE_NOT_SUPPORTED"),
        (Error::invalid_field("message.parts", "is empty"), "INVALID_PARAMS"),
        (Error::new(Kind::Internal, "broken"), "INTERNAL_ERROR"),
    ] {
        for way in Way::all() {
            let error = error.clone();
            let agent = Agent::start(way, move |operation, params| match operation {
                Operation::SendStreamingMessage => Says::Error(error.clone()),
                _ => unknown(&params),
            })
            .await;
            let seen = Seen::turn(&executor(agent.port), input("x")).await;
            let Some(Fault::Agent { reason: Some(reason), text }) = &seen.fault else { panic!("{way:?}: {seen:?}") };
            if way.version == "1.0" {
                assert_eq!((reason.as_str(), text.is_empty()), (want, false), "{way:?}");
            }
        }
    }
    let (_, port) = {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    };
    let seen = Seen::turn(&executor(port), input("x")).await;
    assert!(matches!(seen.fault, Some(Fault::Unreachable(_))), "{seen:?}");
}

#[tokio::test]
async fn a_busy_agent_is_asked_again_until_the_time_is_up() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let agent = Agent::start(UNARY, move |operation, params| match operation {
        Operation::SendMessage if count.fetch_add(1, Ordering::SeqCst) == 0 => {
            Says::Error(Error::new(Kind::Busy, "later").retry_after(0))
        }
        Operation::SendMessage => Says::Json(json!({"task": task("TASK_STATE_COMPLETED", json!({}))})),
        _ => unknown(&params),
    })
    .await;
    let seen = Seen::turn(&executor(agent.port), input("x")).await;
    assert_eq!((seen.last_state(), asked.load(Ordering::SeqCst)), (Some(State::Completed), 2), "{seen:?}");
    let always = Agent::start(UNARY, |operation, params| match operation {
        Operation::SendMessage => Says::Error(Error::new(Kind::Busy, "later").retry_after(1)),
        _ => unknown(&params),
    })
    .await;
    let mut turn = input("x");
    turn.busy_until = tokio::time::Instant::now();
    assert_eq!(Seen::turn(&executor(always.port), turn).await.fault, Some(Fault::Busy(429)));
}

#[tokio::test]
async fn a_stream_that_ends_early_is_taken_up_again_without_a_chunk_lost_or_doubled() {
    for way in Way::all() {
        let agent = Agent::start(way, |operation, params| {
            let whole =
                json!([{"artifactId": "a", "name": "Order", "parts": [{"text": "1"}, {"text": "2"}, {"text": "3"}]}]);
            match operation {
                Operation::SendStreamingMessage => Says::Events(vec![begin(), chunk("1", false)]),
                Operation::SubscribeToTask => Says::Events(vec![
                    Step::Event(json!({"task": task("TASK_STATE_WORKING", json!({"artifacts":
                        [{"artifactId": "a", "name": "Order", "parts": [{"text": "1"}, {"text": "2"}]}]}))})),
                    chunk("3", true),
                ]),
                Operation::GetTask if params["id"] == "their-task" => {
                    Says::Json(task("TASK_STATE_COMPLETED", json!({"artifacts": whole})))
                }
                _ => unknown(&params),
            }
        })
        .await;
        let seen = Seen::turn(&executor(agent.port), input("x")).await;
        assert_eq!((seen.fault.as_ref(), seen.last_state()), (None, Some(State::Completed)), "{way:?}");
        assert_eq!(seen.artifact()["parts"], json!([{"text": "1"}, {"text": "2"}, {"text": "3"}]), "{way:?}");
        assert!(!agent.got(Operation::SubscribeToTask).is_empty());
    }
}

#[tokio::test]
async fn an_agent_whose_card_promises_streams_that_it_does_not_have() {
    let agent = Agent::start(JSONRPC, |operation, params| match operation {
        Operation::SendStreamingMessage => Says::Error(Error::new(Kind::UnsupportedOperation, "no streams")),
        Operation::SendMessage => Says::Json(json!({"task": task("TASK_STATE_COMPLETED", json!({}))})),
        _ => unknown(&params),
    })
    .await;
    let seen = Seen::turn(&executor(agent.port), input("x")).await;
    assert_eq!((seen.fault.as_ref(), seen.last_state()), (None, Some(State::Completed)));
}

#[tokio::test]
async fn a_sidecar_that_comes_back_finds_the_task_again() {
    for streaming in [true, false] {
        for way in Way::all() {
            let agent = Agent::start(Way { streaming, ..way }, |operation, params| {
                let whole = json!([{"artifactId": "a", "parts": [{"text": "1"}, {"text": "2"}]}]);
                match operation {
                    Operation::SubscribeToTask => Says::Events(vec![
                        Step::Event(json!({"task": task("TASK_STATE_WORKING", json!({"artifacts": whole}))})),
                        status("TASK_STATE_COMPLETED", None),
                    ]),
                    Operation::GetTask if params["id"] == "their-task" => {
                        Says::Json(task("TASK_STATE_COMPLETED", json!({"artifacts": whole})))
                    }
                    _ => unknown(&params),
                }
            })
            .await;
            let stored = json!({"artifactId": "a", "parts": [{"text": "1"}]}).to_string();
            let before = Seen {
                attachment: outrigger_protocol::a2a::raw::Raw::parse(r#"{"taskId":"their-task"}"#).ok(),
                artifacts: vec![outrigger_protocol::a2a::task::Artifact::whole(
                    "a".into(),
                    None,
                    outrigger_protocol::a2a::raw::Raw::parse(&stored).unwrap(),
                )],
                ..Seen::default()
            };
            let executor = executor(agent.port);
            let turn = executor.reattach(follow_up("x", &before), false).unwrap();
            let seen = Seen::all(turn).await;
            assert_eq!((seen.fault.as_ref(), seen.last_state()), (None, Some(State::Completed)), "{way:?} {streaming}");
            assert_eq!(seen.artifact()["parts"], json!([{"text": "2"}]), "only what is new: {way:?}");
            assert!(
                agent.got(Operation::SendMessage).is_empty() && agent.got(Operation::SendStreamingMessage).is_empty()
            );
        }
    }
    assert!(executor(1).reattach(input("x"), false).is_none(), "a task that the agent never named");
}

#[tokio::test]
async fn a_message_that_is_handed_over_again_begins_no_second_task() {
    for forgot in [false, true] {
        let agent = Agent::start(JSONRPC, move |operation, params| match operation {
            Operation::SendStreamingMessage => {
                Says::Events(vec![begin(), chunk("new", false), status("TASK_STATE_COMPLETED", None)])
            }
            Operation::GetTask if params["id"] == "their-old" && !forgot => {
                let artifacts = json!([{"artifactId": "a", "parts": [{"text": "old"}]}]);
                let mut old = task("TASK_STATE_COMPLETED", json!({"artifacts": artifacts}));
                old["id"] = json!("their-old");
                Says::Json(old)
            }
            _ => unknown(&params),
        })
        .await;
        let mut again = input("x");
        again.attempt = 2;
        again.attachment = outrigger_protocol::a2a::raw::Raw::parse(r#"{"taskId":"their-old"}"#).ok();
        let seen = Seen::turn(&executor(agent.port), again).await;
        assert_eq!((seen.fault.as_ref(), seen.last_state()), (None, Some(State::Completed)), "{forgot}");
        let want = if forgot { "new" } else { "old" };
        assert_eq!(seen.artifact()["parts"][0]["text"], want);
        let sent = agent.got(Operation::SendStreamingMessage);
        assert_eq!(sent.len(), usize::from(forgot));
        assert!(sent.iter().all(|g| g.params["message"].get("taskId").is_none()));
    }
}

#[tokio::test]
async fn cancel_reaches_the_agents_task() {
    for way in Way::all() {
        let gate = Arc::new(Semaphore::new(0));
        let hold = Arc::clone(&gate);
        let agent = Agent::start(way, move |operation, params| match operation {
            Operation::SendStreamingMessage => Says::Events(vec![begin(), Step::Gate(Arc::clone(&hold))]),
            Operation::CancelTask if params["id"] == "their-task" => Says::Json(task("TASK_STATE_CANCELED", json!({}))),
            _ => unknown(&params),
        })
        .await;
        let executor = executor(agent.port);
        let mut turn = executor.turn(input("x"));
        let attachment = tokio::time::timeout(PATIENCE, async {
            loop {
                if let TurnEvent::Change(change) = turn.next().await.unwrap()
                    && change.attachment.is_some()
                {
                    return change.attachment;
                }
            }
        })
        .await
        .unwrap();
        drop(turn);
        executor.cancel("turn", attachment.as_ref()).await;
        assert_eq!(agent.got(Operation::CancelTask).len(), 1, "{way:?}");
        executor.cancel("another", None).await;
        assert_eq!(agent.got(Operation::CancelTask).len(), 1, "nothing to cancel there");
        gate.add_permits(1);
    }
}

#[tokio::test]
async fn a_cancel_that_comes_before_the_agents_first_word_reaches_its_task() {
    let gate = Arc::new(Semaphore::new(0));
    let hold = Arc::clone(&gate);
    let agent = Agent::start(JSONRPC, move |operation, params| match operation {
        Operation::SendStreamingMessage => {
            Says::Events(vec![Step::Gate(Arc::clone(&hold)), begin(), Step::Gate(Arc::clone(&hold))])
        }
        Operation::CancelTask if params["id"] == "their-task" => Says::Json(task("TASK_STATE_CANCELED", json!({}))),
        _ => unknown(&params),
    })
    .await;
    let executor = executor(agent.port);
    let mut turn = executor.turn(input("x"));
    tokio::time::timeout(PATIENCE, async {
        while agent.got(Operation::SendStreamingMessage).is_empty() {
            assert!(futures::poll!(turn.next()).is_pending(), "nothing is said yet");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .unwrap();
    drop(turn);
    gate.add_permits(1);
    executor.cancel("turn", None).await;
    assert_eq!(agent.got(Operation::CancelTask).len(), 1);
}

#[tokio::test]
async fn time_limits() {
    let hold = Arc::new(Semaphore::new(0));
    let (first, second) = (Arc::clone(&hold), Arc::clone(&hold));
    let silent = Agent::start(JSONRPC, move |operation, params| match operation {
        // Heartbeats are signs of life; the task is not looked at as long as there are some.
        Operation::SendStreamingMessage => {
            Says::Events(vec![begin(), Step::Gate(Arc::clone(&first)), status("TASK_STATE_COMPLETED", None)])
        }
        _ => unknown(&params),
    })
    .await;
    let mut turn = input("x");
    turn.limits = Arc::new(Limits { stream_idle_timeout_ms: 200, ..Limits::default() });
    let executor = executor(silent.port);
    let seen = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        second.add_permits(1);
    };
    let (seen, ()) = tokio::join!(Seen::turn(&executor, turn), seen);
    assert_eq!((seen.fault, seen.states.last()), (None, Some(&State::Completed)));

    let stuck = Agent::start(UNARY, |operation, params| match operation {
        Operation::SendMessage => Says::Json(json!({"task": task("TASK_STATE_WORKING", json!({}))})),
        Operation::GetTask if params["id"] == "their-task" => Says::Json(task("TASK_STATE_WORKING", json!({}))),
        _ => unknown(&params),
    })
    .await;
    let mut turn = input("x");
    turn.limits = Arc::new(Limits { async_idle_timeout_ms: 300, ..Limits::default() });
    let seen = Seen::turn(&upstream_support::executor(stuck.port), turn).await;
    assert_eq!(seen.fault, Some(Fault::AsyncIdle(300)));

    let mut turn = input("x");
    turn.limits = Arc::new(Limits { max_answer_bytes: 40, ..Limits::default() });
    let seen = Seen::turn(&upstream_support::executor(stuck.port), turn).await;
    assert_eq!(seen.fault, Some(Fault::TooLarge(40)));
}

#[tokio::test]
async fn odd_agents_are_put_right() {
    // A status before any task, another's task, a task that is submitted again, a message at the end.
    let agent = Agent::start(JSONRPC, |operation, params| match operation {
        Operation::SendStreamingMessage => Says::Events(vec![
            status("TASK_STATE_WORKING", None),
            Step::Event(json!({"statusUpdate": {"taskId": "another", "status": {"state": "TASK_STATE_FAILED"}}})),
            status("TASK_STATE_SUBMITTED", None),
            Step::Event(json!({"message": {"messageId": "d", "role": "ROLE_AGENT", "parts": [{"text": "done"}]}})),
        ]),
        _ => unknown(&params),
    })
    .await;
    let seen = Seen::turn(&executor(agent.port), input("x")).await;
    assert_eq!((seen.fault.as_ref(), seen.repairs, seen.states.as_slice()), (None, 1, &[State::Completed][..]));
    assert_eq!(seen.said()["parts"][0]["text"], "done");
    // Nothing at all.
    let agent = Agent::start(JSONRPC, |operation, params| match operation {
        Operation::SendStreamingMessage => Says::Events(vec![]),
        _ => unknown(&params),
    })
    .await;
    let seen = Seen::turn(&executor(agent.port), input("x")).await;
    assert!(seen.fault.is_some(), "{seen:?}");
}

#[tokio::test]
async fn readiness_and_card() {
    let agent = Agent::start(JSONRPC, |_, p| unknown(&p)).await;
    let there = executor(agent.port);
    let (cards, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let stop = tokio_util::sync::CancellationToken::new();
    let follow = tokio::spawn(there.follow_card(stop.clone(), move |card| cards.send(card).unwrap()));
    assert!(seen.try_recv().is_err(), "none before the agent was asked");
    there.probe().await.unwrap();
    there.probe().await.unwrap();
    let card = tokio::time::timeout(PATIENCE, seen.recv()).await.unwrap().unwrap();
    assert_eq!(card["skills"], json!([{"id": "s"}]));
    stop.cancel();
    tokio::time::timeout(PATIENCE, follow).await.unwrap().unwrap();
    assert!(seen.recv().await.is_none(), "the same card is told once");

    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    assert_eq!(executor(nobody).probe().await.unwrap_err().reason, "Unreachable");
    let plain = |card: &'static str| async move {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        let app =
            axum::Router::new().route("/.well-known/agent-card.json", axum::routing::get(move || async move { card }));
        tokio::spawn(async move { axum::serve(socket, app).await.unwrap() });
        executor(port).probe().await.unwrap_err()
    };
    assert_eq!(plain("no card").await.reason, "BadCard");
    assert_eq!(plain("{}").await.reason, "BadCard");
    let none =
        plain(r#"{"supportedInterfaces":[{"url":"http://h/x","protocolBinding":"JSONRPC","protocolVersion":"1.0"}]}"#)
            .await;
    assert_eq!(none.reason, "NoInterface");
    assert!(
        none.message.contains("JSONRPC 1.0 at http://h/x: the agent answered with HTTP status 404"),
        "{}",
        none.message
    );
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let timing = outrigger_sidecar::a2a::executor::Timing { probe: Duration::from_millis(100), ..quick() };
    let executor = A2a::new(&Runtime::A2a { port, path: "/".into() }, timing).unwrap();
    assert_eq!(executor.probe().await.unwrap_err().reason, "NoAnswer");
    for path in ["a", "/a?b", "/a b", ""] {
        assert!(A2a::new(&Runtime::A2a { port, path: path.into() }, timing).is_err(), "{path:?}");
    }
}

#[tokio::test]
async fn a_card_that_says_one_version_and_means_the_other() {
    // The card names 1.0, the wire is 0.3.
    let old = Agent::start(Way { version: "0.3", ..JSONRPC }, |o, p| seller(o, &p)).await;
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let card = Way { version: "1.0", ..JSONRPC }.card(old.port).to_string();
    let app =
        axum::Router::new().route("/.well-known/agent-card.json", axum::routing::get(move || async move { card }));
    tokio::spawn(async move { axum::serve(socket, app).await.unwrap() });
    let executor = executor(port);
    let seen = Seen::turn(&executor, input("x")).await;
    assert_eq!((seen.fault.as_ref(), seen.last_state()), (None, Some(State::InputRequired)));
    assert_eq!(executor.interface().unwrap(), "JSONRPC 0.3");
}
