//! Who calls: the token of a ServiceAccount, which the API server is asked about (`TokenReview`).
//!
//! What a token says of itself is believed only where it speaks against it: one for another audience or out of date is
//! refused without asking. Answers are kept for a short while, so that a pod that was deleted has no access for long.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::Client;
use kube::api::{Api, PostParams};
use outrigger_protocol::config::IDENTITY_AUDIENCE;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use super::refused::Refused;
use crate::apply::cut;
use crate::metrics::Metrics;

/// How long a good answer is believed.
pub const GOOD_FOR: Duration = Duration::from_secs(60);
/// How long a bad one is.
pub const BAD_FOR: Duration = Duration::from_secs(10);
/// How long it is believed that the API server does not answer.
const AWAY_FOR: Duration = Duration::from_secs(1);
/// Answers that are kept.
const MAX_KEPT: usize = 8192;
/// Questions at once.
const MAX_QUESTIONS: usize = 16;
/// Longest time for a place among them.
const PLACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for one question.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest token.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// What names of ServiceAccounts begin with.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The ServiceAccount that a token is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// Its name: that of an Agent, or of the objects of a Standalone `MCPServer`.
    pub name: String,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its ServiceAccount.
    pub account: Arc<Account>,
    /// When its token ends, seconds of Unix time.
    pub expires: i64,
}

type Verdict = Result<Arc<Account>, Refused>;

#[derive(Default)]
struct Answer(OnceCell<(Verdict, Instant)>);

impl Answer {
    fn is_old(&self) -> bool {
        self.0.get().is_some_and(|(_, until)| *until <= Instant::now())
    }
}

/// Asks the API server, and remembers for a while.
pub struct Reviewer {
    client: Client,
    metrics: Metrics,
    /// By the SHA-256 of the token.
    kept: Mutex<HashMap<String, Arc<Answer>>>,
    places: Semaphore,
    clock: fn() -> i64,
}

/// What a token says of itself.
#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    aud: Audiences,
    exp: i64,
    sub: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Many(Vec<String>),
}

impl Default for Audiences {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl Audiences {
    fn ours(&self) -> bool {
        match self {
            Self::One(one) => one == IDENTITY_AUDIENCE,
            Self::Many(many) => many.iter().any(|a| a == IDENTITY_AUDIENCE),
        }
    }
}

fn claims(token: &str) -> Option<Claims> {
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

impl Reviewer {
    /// A reviewer that remembers nothing yet. `clock`: seconds of Unix time.
    pub fn new(client: Client, metrics: Metrics, clock: fn() -> i64) -> Self {
        Self { client, metrics, kept: Mutex::default(), places: Semaphore::new(MAX_QUESTIONS), clock }
    }

    /// Whose token it is.
    pub async fn admit(&self, token: Option<&str>) -> Result<Caller, Refused> {
        let token = token.filter(|t| !t.is_empty()).ok_or(Refused::NoToken)?;
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refused::MalformedToken);
        }
        let claims = claims(token).ok_or(Refused::MalformedToken)?;
        if !claims.aud.ours() {
            return Err(Refused::WrongAudience);
        }
        let left = claims.exp - (self.clock)();
        if left <= 0 {
            return Err(Refused::ExpiredToken);
        }
        if !claims.sub.starts_with(SERVICE_ACCOUNT) {
            return Err(Refused::MalformedToken);
        }
        let answer = self.slot(token)?;
        let left = Duration::from_secs(left.unsigned_abs());
        // Who asks about the same token meanwhile waits for this answer; if the one who asks goes away, another does.
        let (verdict, _) = answer.0.get_or_init(|| self.ask(token, left)).await;
        let account = verdict.clone()?;
        Ok(Caller { account, expires: claims.exp })
    }

    fn slot(&self, token: &str) -> Result<Arc<Answer>, Refused> {
        let digest = crate::hash::hex(token.as_bytes());
        let mut kept = self.kept.lock();
        if let Some(answer) = kept.get(&digest).filter(|a| !a.is_old()) {
            return Ok(Arc::clone(answer));
        }
        if kept.len() >= MAX_KEPT {
            // Old ones, and questions that nobody waits for any more.
            kept.retain(|_, a| !a.is_old() && (a.0.initialized() || Arc::strong_count(a) > 1));
        }
        if kept.len() >= MAX_KEPT {
            // A flood of bad tokens makes room before anything else does.
            kept.retain(|_, a| a.0.get().is_none_or(|(verdict, _)| verdict.is_ok()));
        }
        if kept.len() >= MAX_KEPT {
            return Err(Refused::Busy);
        }
        let answer = Arc::<Answer>::default();
        kept.insert(digest, Arc::clone(&answer));
        Ok(answer)
    }

    async fn ask(&self, token: &str, left: Duration) -> (Verdict, Instant) {
        let verdict = self.review(token).await;
        let (outcome, lasts) = match &verdict {
            Ok(_) => ("ok", GOOD_FOR.min(left)),
            Err(Refused::Unavailable(_) | Refused::Busy) => ("error", AWAY_FOR),
            Err(_) => ("refused", BAD_FOR),
        };
        self.metrics.control.token_reviews.with_label_values(&[outcome]).inc();
        (verdict, Instant::now() + lasts)
    }

    async fn review(&self, token: &str) -> Verdict {
        let Ok(Ok(_place)) = tokio::time::timeout(PLACE_TIMEOUT, self.places.acquire()).await else {
            return Err(Refused::Busy);
        };
        let review = TokenReview {
            spec: TokenReviewSpec { audiences: Some(vec![IDENTITY_AUDIENCE.into()]), token: Some(token.into()) },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let asked = tokio::time::timeout(TIMEOUT, api.create(&PostParams::default(), &review)).await;
        match asked {
            Ok(Ok(answer)) => judge(answer.status.unwrap_or_default()),
            Ok(Err(error)) => Err(Refused::Unavailable(cut(&error.to_string()))),
            Err(_) => Err(Refused::Unavailable(format!("no answer within {} s", TIMEOUT.as_secs()))),
        }
    }
}

fn judge(status: TokenReviewStatus) -> Verdict {
    if status.authenticated != Some(true) {
        let why = status.error.unwrap_or_else(|| "the API server does not know it".into());
        return Err(Refused::NotAuthenticated(cut(&why)));
    }
    // An authenticator that knows nothing of audiences would let every token pass.
    if !status.audiences.iter().flatten().any(|a| a == IDENTITY_AUDIENCE) {
        return Err(Refused::WrongAudience);
    }
    let user = status.user.and_then(|u| u.username).unwrap_or_default();
    let account = user.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.split_once(':'));
    let (namespace, name) = account.ok_or(Refused::MalformedToken)?;
    Ok(Arc::new(Account { namespace: namespace.into(), name: name.into() }))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::UserInfo;

    use super::*;

    fn status(audiences: &[&str], user: &str) -> TokenReviewStatus {
        TokenReviewStatus {
            authenticated: Some(true),
            audiences: Some(audiences.iter().map(|&a| a.into()).collect()),
            user: Some(UserInfo { username: Some(user.into()), ..UserInfo::default() }),
            error: None,
        }
    }

    #[test]
    fn the_api_servers_word_counts() {
        let account = Account { namespace: "shop".into(), name: "seller".into() };
        assert_eq!(judge(status(&["outrigger.dev"], "system:serviceaccount:shop:seller")), Ok(Arc::new(account)));
        assert_eq!(judge(status(&["other"], "system:serviceaccount:shop:seller")), Err(Refused::WrongAudience));
        assert_eq!(judge(status(&[], "system:serviceaccount:shop:seller")), Err(Refused::WrongAudience));
        assert_eq!(judge(status(&["outrigger.dev"], "system:admin")), Err(Refused::MalformedToken));
        assert!(matches!(judge(TokenReviewStatus::default()), Err(Refused::NotAuthenticated(_))));
    }

    #[test]
    fn what_a_token_says_of_itself() {
        let token = |payload: &str| format!("h.{}.s", URL_SAFE_NO_PAD.encode(payload));
        let one = claims(&token(r#"{"aud": "outrigger.dev", "exp": 7, "sub": "s"}"#)).unwrap();
        assert!(one.aud.ours() && one.exp == 7);
        assert!(!claims(&token(r#"{"aud": ["a", "b"], "exp": 7, "sub": "s"}"#)).unwrap().aud.ours());
        assert!(!claims(&token(r#"{"exp": 7, "sub": "s"}"#)).unwrap().aud.ours());
        for bad in ["", "a.b", "a.b.c.d", "h.!.s", &token("{}")] {
            assert!(claims(bad).is_none(), "{bad}");
        }
    }
}
