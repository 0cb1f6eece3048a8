//! Ids and trace context.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue};
use rand::Rng;
use uuid::{Builder, Uuid};

/// A new random UUID (version 4), from the thread's own generator: no system call per id.
pub fn uuid() -> String {
    text(Builder::from_random_bytes(rand::rng().random()))
}

/// A new UUID of version 7, for tasks and contexts: its first 48 bits are the time in milliseconds, 74 more are random.
/// Rows of one time lie together in a database's indexes, so a write touches fewer pages.
pub fn ordered() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    text(Builder::from_unix_timestamp_millis(u64::try_from(time).unwrap_or(u64::MAX), &rand::rng().random()))
}

fn text(uuid: Builder) -> String {
    uuid.into_uuid().hyphenated().encode_lower(&mut Uuid::encode_buffer()).to_owned()
}

/// Last bytes of a task's id, which follow from the others.
const MARK: usize = 2;

/// A new id of a task: [`ordered`], with an end that follows from the rest, so that one that is forgotten is told from one
/// that never was without a list of either. 58 random bits are left in each millisecond. It proves nothing to anybody:
/// only a metric rests on it.
pub fn task_id() -> String {
    let mut bytes = Uuid::parse_str(&ordered()).unwrap_or_default().into_bytes();
    let end = mark(&bytes);
    bytes[16 - MARK..].copy_from_slice(&end);
    Uuid::from_bytes(bytes).hyphenated().to_string()
}

/// Whether a text is an id that [`task_id`] made, here or elsewhere; one of 65536 others is taken for one.
pub fn is_task_id(id: &str) -> bool {
    let read = Uuid::try_parse(id).ok().filter(|read| read.get_version_num() == 7);
    let read = read.filter(|read| read.hyphenated().to_string() == id);
    read.is_some_and(|read| read.as_bytes()[16 - MARK..] == mark(read.as_bytes()))
}

/// FNV-1a of what is not the mark.
fn mark(bytes: &[u8; 16]) -> [u8; MARK] {
    let hash = bytes[..16 - MARK].iter().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_be_bytes();
    [a ^ c, b ^ d]
}

/// A new name for this process as an owner of tasks: its pod, a slash, and what no other process has. A process finds by
/// it what another one in the same pod, and so beside the same agent, has left.
pub fn owner() -> String {
    owner_in(pod().as_deref().unwrap_or("pod"))
}

/// A new name for a process of a pod as an owner of tasks.
pub fn owner_in(pod: &str) -> String {
    format!("{}/{}", pod.replace('/', "-"), uuid())
}

/// The pod that this process is in, by its environment: its UID, else its name.
pub fn pod() -> Option<String> {
    ["POD_UID", "POD_NAME"].iter().find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
}

/// W3C trace context of a request, as the handler gets it.
#[derive(Clone, Debug)]
pub struct Trace {
    /// `traceparent`: the caller's trace with a span of ours, or a new trace.
    pub parent: HeaderValue,
    /// `tracestate`, if the caller's trace goes on.
    pub state: Option<HeaderValue>,
}

impl Trace {
    /// Continues the caller's trace; begins one when there is none or it is malformed.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut random = rand::rng();
        let span: u64 = random.random_range(1..=u64::MAX);
        let given = headers.get("traceparent").and_then(|v| v.to_str().ok()).and_then(trace_and_flags);
        let mut parent = *b"00-00000000000000000000000000000000-0000000000000000-01";
        let mut state = None;
        if let Some((trace, flags)) = given {
            parent[3..35].copy_from_slice(trace.as_bytes());
            parent[53..].copy_from_slice(flags.as_bytes());
            state = headers.get("tracestate").cloned();
        } else {
            write_hex(random.random_range(1..=u128::MAX), &mut parent[3..35]);
        }
        write_hex(span.into(), &mut parent[36..52]);
        let parent = HeaderValue::from_bytes(&parent).unwrap_or_else(|_| HeaderValue::from_static(""));
        Self { parent, state }
    }

    /// Goes on with a trace that was kept as text: the values of `traceparent` and `tracestate`. What is malformed begins
    /// a new one.
    pub fn again(parent: &str, state: Option<&str>) -> Self {
        let mut headers = HeaderMap::new();
        for (name, value) in [("traceparent", Some(parent)), ("tracestate", state)] {
            if let Some(value) = value.and_then(|v| HeaderValue::from_str(v).ok()) {
                headers.insert(name, value);
            }
        }
        Self::of(&headers)
    }

    /// The trace id, for logs.
    pub fn id(&self) -> &str {
        self.parent.to_str().ok().and_then(|p| p.get(3..35)).unwrap_or_default()
    }
}

/// The last digits of a number: as many as there is room for.
fn write_hex(mut number: u128, out: &mut [u8]) {
    for place in out.iter_mut().rev() {
        *place = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// Trace id and flags of a `traceparent`; later versions may have more after the flags.
fn trace_and_flags(value: &str) -> Option<(&str, &str)> {
    let hex = |s: &str, len| s.len() == len && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let mut fields = value.split('-');
    let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let zero = |s: &str| s.bytes().all(|b| b == b'0');
    let good = hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    let good = good && version != "ff" && !zero(trace) && !zero(span) && (version != "00" || fields.next().is_none());
    good.then_some((trace, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Trace {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", value.parse().unwrap());
        headers.insert("tracestate", "a=1".parse().unwrap());
        Trace::of(&headers)
    }

    #[test]
    fn a_good_trace_goes_on_and_a_bad_one_is_replaced() {
        let trace = of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
        let parent = trace.parent.to_str().unwrap();
        assert!(parent.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && parent.ends_with("-00"));
        assert!(!parent.contains("b7ad6b7169203331") && trace.state.is_some());
        assert!(trace_and_flags(parent).is_some() && trace.id() == "0af7651916cd43dd8448eb211c80319c", "{parent}");
        let mut hex = [0; 4];
        write_hex(0x000f_02ab, &mut hex);
        assert_eq!(&hex, b"02ab");
        for bad in [
            "",
            "00-0-0-0",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-00",
        ] {
            let trace = of(bad);
            assert!(trace_and_flags(trace.parent.to_str().unwrap()).is_some() && trace.state.is_none(), "{bad}");
            assert_eq!(trace.id().len(), 32);
        }
    }

    #[test]
    fn ids_of_tasks_are_known_again() {
        for _ in 0..100 {
            let id = task_id();
            assert_eq!(Uuid::parse_str(&id).unwrap().get_version_num(), 7);
            assert!(is_task_id(&id) && !is_task_id(&format!("{{{id}}}")) && !is_task_id(&id[1..]), "{id}");
            assert!(!is_task_id(&uuid()));
        }
        assert!((0..1_000).filter(|_| is_task_id(&ordered())).count() < 10, "one in 65536");
        assert!(!is_task_id("") && !is_task_id("task-1"));
    }

    #[test]
    fn uuids_are_of_version_4() {
        let id = uuid();
        assert_eq!(Uuid::parse_str(&id).unwrap().get_version_num(), 4);
        assert_ne!(id, uuid());
    }

    #[test]
    fn ids_of_tasks_are_in_order_of_time_and_cannot_be_guessed() {
        const MANY: usize = 4096;
        let now = || u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        let before = now();
        let ids: Vec<Uuid> = (0..MANY).map(|_| Uuid::parse_str(&ordered()).unwrap()).collect();
        let after = now();
        let time = |id: &Uuid| u64::try_from(id.as_u128() >> 80).unwrap();
        assert!(ids.iter().all(|id| (before..=after).contains(&time(id))));
        assert!(ids.is_sorted_by_key(time), "a clock that does not go back gives ids in order");
        assert!(ids.iter().all(|id| id.get_version_num() == 7 && id.get_variant() == uuid::Variant::RFC4122));
        assert_eq!(ids.iter().collect::<std::collections::HashSet<_>>().len(), MANY);
        // Each bit that is neither time, version nor variant is one as often as not: the count of ones in 4096 tosses
        // has a standard deviation of 32, and seven of them is a chance of one in ten thousand million.
        let random = ((1u128 << 74) - 1) >> 62 << 64 | ((1 << 62) - 1);
        assert_eq!(random.count_ones(), 74);
        for bit in (0..128).filter(|bit| random >> bit & 1 == 1) {
            let ones = ids.iter().filter(|id| id.as_u128() >> bit & 1 == 1).count();
            assert!(ones.abs_diff(MANY / 2) < 7 * 32, "bit {bit}: {ones}");
        }
    }
}
