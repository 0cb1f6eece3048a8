use super::*;

async fn body(inlet: &mut Inlet) -> (Bytes, u64) {
    match inlet.next().await {
        Some(Event::Message(body, place)) => (body, place),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_slow_reader_loses_messages_but_never_the_response() {
    let (tx, mut rx) = outlet();
    let taken = (0..200).filter(|_| tx.message(&Bytes::from_static(b"m"))).count();
    assert_eq!(taken, MAX_QUEUED - 1);
    assert!(tx.finish(Answer::result("f")) && !tx.finish(Answer::result("g")));
    let mut seen = 0;
    while let Some(Event::Message(..)) = rx.next().await {
        seen += 1;
    }
    assert_eq!(seen, taken);
    assert!(rx.next().await.is_none());
    let big = Bytes::from(vec![0; MAX_QUEUED_BYTES]);
    let (tx, rx) = outlet();
    assert!(tx.message(&big) && !tx.message(&Bytes::from_static(b"m")));
    drop(rx);
    assert!(!tx.open() && !tx.finish(Answer::result("")));
}

#[tokio::test]
async fn without_a_reader_messages_wait_and_questions_stay_longest() {
    let tx = Outlet::standing();
    assert!(!tx.message(&Bytes::from_static(b"m")));
    assert_eq!(tx.park(&Bytes::from_static(b"old"), 0), Sent::Taken);
    assert_eq!(tx.park(&Bytes::from_static(b"q"), 7), Sent::Taken);
    for _ in 2..MAX_QUEUED {
        assert_eq!(tx.park(&Bytes::from_static(b"x"), 0), Sent::Taken);
    }
    assert_eq!(tx.park(&Bytes::from_static(b"y"), 0), Sent::InPlaceOfAnother);
    assert_eq!(tx.unread_questions(), [7]);
    let mut rx = tx.attach(None);
    assert_eq!(body(&mut rx).await.0, "q");
    assert!(!tx.retract(7));
    // A place stays free for the response.
    assert_eq!(tx.park(&Bytes::from_static(b"q2"), 8), Sent::Refused);
    assert_eq!(body(&mut rx).await.0, "x");
    assert_eq!(tx.park(&Bytes::from_static(b"q2"), 8), Sent::Taken);
    assert_eq!(tx.take_questions(), [(8, Bytes::from_static(b"q2"))]);
    // Another reader goes on where the first one was.
    let mut second = tx.attach(None);
    assert!(rx.next().await.is_none());
    for _ in 3..MAX_QUEUED {
        assert_eq!(body(&mut second).await.0, "x");
    }
    assert_eq!(body(&mut second).await.0, "y");
    tx.end();
    assert!(second.next().await.is_none() && tx.over());
}

#[tokio::test]
async fn a_kept_stream_is_taken_up_where_it_was_cut() {
    let (tx, mut rx) = outlet();
    tx.keep();
    for m in ["1", "2", "3"] {
        assert!(tx.message(&Bytes::from(m)));
    }
    assert_eq!(body(&mut rx).await, ("1".into(), 1));
    assert_eq!(body(&mut rx).await, ("2".into(), 2));
    drop(rx);
    // Nobody reads, and still nothing is lost.
    assert!(tx.message(&Bytes::from_static(b"4")) && tx.finish(Answer::result("end")));
    for _ in 0..2 {
        let mut again = tx.attach(Some(1));
        for place in 2..=4 {
            assert_eq!(body(&mut again).await, (place.to_string().into(), place));
        }
        assert!(matches!(again.next().await, Some(Event::Final(a, 5)) if a.body == "end"));
        assert!(again.next().await.is_none());
    }
    let mut all = tx.attach(Some(u64::MAX));
    assert!(matches!(all.next().await, Some(Event::Final(_, 5))));
}

#[tokio::test]
async fn what_is_kept_is_bounded() {
    let (tx, mut rx) = outlet();
    tx.keep();
    for i in 0..MAX_KEPT * 3 {
        assert!(tx.message(&Bytes::from(i.to_string())));
        body(&mut rx).await;
    }
    let mut again = tx.attach(Some(0));
    assert_eq!(body(&mut again).await.1, (MAX_KEPT * 2 + 1) as u64);
    let (tx, mut rx) = outlet();
    tx.keep();
    for _ in 0..4 {
        assert!(tx.message(&Bytes::from(vec![0; MAX_KEPT_BYTES / 2])));
        body(&mut rx).await;
    }
    let mut again = tx.attach(Some(0));
    assert_eq!(body(&mut again).await.1, 3);
}

#[tokio::test]
async fn the_end_of_all_writers_is_the_end() {
    let (tx, mut rx) = outlet();
    let more = tx.clone();
    drop(tx);
    assert!(more.message(&Bytes::from_static(b"m")));
    drop(more);
    assert!(matches!(rx.first().await, First::Message));
    body(&mut rx).await;
    assert!(rx.next().await.is_none());
    let (tx, mut rx) = outlet();
    tx.finish(Answer::result("r"));
    assert!(matches!(rx.first().await, First::Answer(a) if a.body == "r"));
}
