//! The authority that signs the certificates of the control API, and how it is changed: pure, the clock is given.
//!
//! A change takes two steps, [`SETTLE`] apart, so that whoever connects trusts both sides of each: the next authority is
//! announced beside the one that signs, then it signs and the former one is still trusted for a while.

use std::fmt;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

use crate::hash;

/// How long an authority is good, in seconds: a year.
pub const LIFETIME: i64 = 365 * 24 * 3600;
/// The next one is made when the current one is this old.
pub const ROTATE_AFTER: i64 = LIFETIME / 3 * 2;
/// Between two steps of a change: every pod has read its documents anew in this time.
pub const SETTLE: i64 = 3600;
/// How long a certificate of a replica is good.
pub const SERVING_LIFETIME: i64 = 24 * 3600;
/// Clocks of two machines differ by less than this.
const SKEW: i64 = 3600;

/// Why there is no authority or no certificate. The variant is the label of the metric.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The record does not parse.
    #[error("the record of the authority is damaged: {0}")]
    Damaged(String),
    /// A certificate cannot be made.
    #[error("no certificate can be made: {0}")]
    Signing(#[from] rcgen::Error),
}

/// One authority.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Authority {
    /// Its common name.
    name: String,
    /// Its certificate, PEM.
    certificate: String,
    /// Its private key, PEM (PKCS #8); empty for one that signs no more.
    key: String,
    /// When it was made, seconds of Unix time.
    made: i64,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("name", &self.name).field("made", &self.made).finish_non_exhaustive()
    }
}

/// The authorities that are trusted, as they are kept in the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Authorities {
    /// The one that signs.
    current: Authority,
    /// The one that will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Authority>,
    /// The one that did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<Authority>,
    /// When the last step was taken, seconds of Unix time.
    changed: i64,
}

/// A step in the life of an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The first one is made, or one in place of another that cannot be used any more.
    Make,
    /// The next one is made, and trusted from now on.
    Announce,
    /// The next one signs.
    Switch,
    /// The former one is trusted no more.
    Drop,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Make, Self::Announce, Self::Switch, Self::Drop];

    /// As a metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Make => "made",
            Self::Announce => "announced",
            Self::Switch => "switched",
            Self::Drop => "dropped",
        }
    }
}

/// The step that is due at `now`.
pub fn due(known: Option<&Authorities>, now: i64) -> Option<Step> {
    let Some(known) = known else { return Some(Step::Make) };
    let settled = now - known.changed >= SETTLE;
    if now >= known.current.made + LIFETIME {
        // Nobody changed it in time, as when no operator ran for months.
        return Some(if known.next.is_some() { Step::Switch } else { Step::Make });
    }
    match (&known.next, &known.previous) {
        (Some(_), _) => settled.then_some(Step::Switch),
        (None, Some(_)) if settled => Some(Step::Drop),
        (None, _) => (now >= known.current.made + ROTATE_AFTER).then_some(Step::Announce),
    }
}

/// Takes a step.
pub fn take(step: Step, known: Option<Authorities>, now: i64) -> Result<Authorities, AuthorityError> {
    let Some(known) = known else {
        return Ok(Authorities { current: Authority::make(now)?, next: None, previous: None, changed: now });
    };
    let public = |old: Authority| Authority { key: String::new(), ..old };
    Ok(match (step, known.next) {
        (Step::Make, _) => Authorities { current: Authority::make(now)?, next: None, previous: None, changed: now },
        (Step::Switch, Some(next)) => {
            Authorities { current: next, next: None, previous: Some(public(known.current)), changed: now }
        }
        (Step::Announce, next) => {
            let next = next.map_or_else(|| Authority::make(now), Ok)?;
            Authorities { next: Some(next), previous: known.previous, current: known.current, changed: now }
        }
        (Step::Drop | Step::Switch, next) => Authorities { next, previous: None, current: known.current, changed: now },
    })
}

impl Authority {
    fn make(now: i64) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        // Names differ, so that a client finds the one that signed among those that it trusts.
        let name = format!("Outrigger control API {}", hash::short(key.public_key_raw(), 8));
        let certificate = params(&name, now).self_signed(&key)?;
        Ok(Self { name, certificate: certificate.pem(), key: key.serialize_pem(), made: now })
    }
}

/// Makes a certificate good from `from` on, for so many seconds.
fn valid(params: &mut CertificateParams, from: i64, lasts: i64) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let time = |s: i64| epoch + Duration::from_secs(u64::try_from(s).unwrap_or_default());
    params.not_before = time(from - SKEW);
    params.not_after = time(from + lasts);
}

fn params(name: &str, made: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, made, LIFETIME);
    params
}

/// A certificate of a replica with its key, DER.
pub struct Serving {
    /// The certificate.
    pub certificate: Vec<u8>,
    /// The private key (PKCS #8).
    pub key: Vec<u8>,
    /// When another one is to be made, seconds of Unix time.
    pub renew: i64,
}

impl Authorities {
    /// Reads the record.
    pub fn parse(bytes: &[u8]) -> Result<Self, AuthorityError> {
        let known: Self = serde_json::from_slice(bytes).map_err(|e| AuthorityError::Damaged(e.to_string()))?;
        for authority in std::iter::once(&known.current).chain(&known.next) {
            KeyPair::from_pem(&authority.key).map_err(|e| AuthorityError::Damaged(format!("its key: {e}")))?;
        }
        Ok(known)
    }

    /// The record. It holds private keys.
    pub fn record(&self) -> Result<Vec<u8>, AuthorityError> {
        serde_json::to_vec(self).map_err(|e| AuthorityError::Damaged(e.to_string()))
    }

    /// Certificates (PEM) to trust, the one that signs first.
    pub fn bundle(&self) -> String {
        let all = [Some(&self.current), self.next.as_ref(), self.previous.as_ref()];
        all.into_iter().flatten().map(|a| a.certificate.replace("\r\n", "\n")).collect()
    }

    /// End of the one that signs, seconds of Unix time.
    pub fn not_after(&self) -> i64 {
        self.current.made + LIFETIME
    }

    /// Signs a certificate for these DNS names.
    pub fn issue(&self, names: &[String], now: i64) -> Result<Serving, AuthorityError> {
        let signer = KeyPair::from_pem(&self.current.key)?;
        let issuer = Issuer::new(params(&self.current.name, self.current.made), signer);
        let key = KeyPair::generate()?;
        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name.push(DnType::CommonName, "Outrigger operator");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let lasts = SERVING_LIFETIME.min(self.not_after() - now);
        valid(&mut leaf, now, lasts);
        let certificate = leaf.signed_by(&key, &issuer)?;
        Ok(Serving { certificate: certificate.der().to_vec(), key: key.serialize_der(), renew: now + lasts / 2 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn certificates(authorities: &Authorities) -> usize {
        authorities.bundle().matches("BEGIN CERTIFICATE").count()
    }

    #[test]
    fn a_change_takes_its_steps_and_trusts_both_sides_of_each() {
        assert_eq!(due(None, NOW), Some(Step::Make));
        let first = take(Step::Make, None, NOW).unwrap();
        assert_eq!((certificates(&first), due(Some(&first), NOW + ROTATE_AFTER - 1)), (1, None));

        let mut now = NOW + ROTATE_AFTER;
        assert_eq!(due(Some(&first), now), Some(Step::Announce));
        let announced = take(Step::Announce, Some(first.clone()), now).unwrap();
        assert_eq!((certificates(&announced), &announced.current), (2, &first.current));
        assert_eq!(due(Some(&announced), now + SETTLE - 1), None);

        now += SETTLE;
        assert_eq!(due(Some(&announced), now), Some(Step::Switch));
        let switched = take(Step::Switch, Some(announced.clone()), now).unwrap();
        assert_eq!((certificates(&switched), Some(&switched.current)), (2, announced.next.as_ref()));
        assert_eq!(switched.previous.as_ref().unwrap().key, "", "what signs no more has no key");
        assert_eq!(due(Some(&switched), now + SETTLE - 1), None);

        now += SETTLE;
        assert_eq!(due(Some(&switched), now), Some(Step::Drop));
        let dropped = take(Step::Drop, Some(switched.clone()), now).unwrap();
        assert_eq!((certificates(&dropped), &dropped.current), (1, &switched.current));
        assert_eq!(due(Some(&dropped), now), None);
        assert!(first.bundle().len() > 100 && first.bundle() != dropped.bundle());
    }

    #[test]
    fn an_authority_that_ended_is_replaced_at_once() {
        let first = take(Step::Make, None, NOW).unwrap();
        assert_eq!(due(Some(&first), NOW + LIFETIME), Some(Step::Make));
        let again = take(Step::Make, Some(first.clone()), NOW + LIFETIME).unwrap();
        assert_ne!(again.current, first.current);
        let announced = take(Step::Announce, Some(first), NOW + LIFETIME - 5).unwrap();
        assert_eq!(due(Some(&announced), NOW + LIFETIME), Some(Step::Switch), "even if it has not settled");
    }

    #[test]
    fn the_record_reads_back_and_shows_no_key() {
        let first = take(Step::Make, None, NOW).unwrap();
        assert_eq!(Authorities::parse(&first.record().unwrap()).unwrap(), first);
        assert!(matches!(Authorities::parse(b"{}"), Err(AuthorityError::Damaged(_))));
        let cut = String::from_utf8(first.record().unwrap())
            .unwrap()
            .replace("PRIVATE KEY-----\\n", "PRIVATE KEY-----\\nAAAA");
        assert!(matches!(Authorities::parse(cut.as_bytes()), Err(AuthorityError::Damaged(_))));
        assert!(!format!("{first:?}").contains("PRIVATE"));
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        let first = take(Step::Make, None, NOW).unwrap();
        let names = ["outrigger.example.svc".to_owned()];
        let early = first.issue(&names, NOW).unwrap();
        assert_eq!(early.renew, NOW + SERVING_LIFETIME / 2);
        let late = first.issue(&names, NOW + LIFETIME - 100).unwrap();
        assert_eq!(late.renew, NOW + LIFETIME - 50);
    }
}
