//! Why an object could not be written. The variant is the reason of the condition, of the Event and of the metric.

use kube::core::Status;

use crate::plan::ChildKind;

/// Longest text of the API server that is passed on.
const MAX_TEXT: usize = 1024;

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The name is taken by something that is not ours.
    #[error("{} {name} exists and is not this object's{}: nothing was written; delete or rename one of the two", kind.as_str(), holder.as_ref().map(|h| format!(" but belongs to {h}")).unwrap_or_default())]
    NameConflict {
        /// Kind of the object in the way.
        kind: ChildKind,
        /// Its name.
        name: String,
        /// Its controller, if it has one.
        holder: Option<String>,
    },
    /// The API server, or something it asks, does not want the object.
    #[error("{} {name} was refused: {message}", kind.as_str())]
    Refused {
        /// Kind of the object.
        kind: ChildKind,
        /// Its name.
        name: String,
        /// The refusal's own words.
        message: String,
    },
    /// The operator itself lacks a right.
    #[error("the operator may not write {} {name}: {message}; give its ServiceAccount the rights of the chart", kind.as_str())]
    OperatorForbidden {
        /// Kind of the object.
        kind: ChildKind,
        /// Its name.
        name: String,
        /// The API server's own words.
        message: String,
    },
    /// The namespace is on its way out.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,
    /// The status of one of our resources could not be written.
    #[error("the status of {kind} {name} could not be written: {message}")]
    Status {
        /// Kind of the resource.
        kind: String,
        /// Its name.
        name: String,
        /// What came back.
        message: String,
    },
    /// Anything that may be different next time.
    #[error("{verb} of {} {name} failed: {message}", kind.as_str())]
    Transient {
        /// What was asked.
        verb: &'static str,
        /// Kind of the object.
        kind: ChildKind,
        /// Its name.
        name: String,
        /// What came back.
        message: String,
    },
}

impl ApplyError {
    /// Reads the error of a request.
    pub fn of(verb: &'static str, kind: ChildKind, name: &str, error: kube::Error) -> Self {
        let transient = |message: String| Self::Transient { verb, kind, name: name.into(), message };
        let status = match error {
            kube::Error::Api(status) => status,
            other => return transient(cut(&other.to_string())),
        };
        if is_namespace_gone(&status) {
            return Self::NamespaceTerminating;
        }
        let message = cut(&status.message);
        let name = name.to_owned();
        let undeclared = status.code == 500 && status.message.contains("field not declared in schema");
        match status.code {
            403 if status.message.contains(" cannot ") && status.message.contains("in API group") => {
                Self::OperatorForbidden { kind, name, message }
            }
            400 | 403 | 406 | 413 | 415 | 422 => Self::Refused { kind, name, message },
            _ if undeclared => Self::Refused { kind, name, message },
            _ => transient(message),
        }
    }

    /// Reason of the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NameConflict { .. } => "NameConflict",
            Self::Refused { message, .. } if message.contains("exceeded quota") => "QuotaExceeded",
            Self::Refused { kind: ChildKind::Deployment, .. } => "InvalidTemplate",
            Self::Refused { .. } => "ObjectRefused",
            Self::OperatorForbidden { .. } => "OperatorForbidden",
            Self::NamespaceTerminating => "NamespaceTerminating",
            Self::Transient { .. } | Self::Status { .. } => "ApiError",
        }
    }

    /// Whether the manifest's author has to do something.
    pub fn is_authors(&self) -> bool {
        matches!(self, Self::NameConflict { .. } | Self::Refused { .. })
    }
}

pub(crate) fn cut(text: &str) -> String {
    if text.chars().count() <= MAX_TEXT {
        return text.into();
    }
    text.chars().take(MAX_TEXT).chain(std::iter::once('…')).collect()
}

fn is_namespace_gone(status: &Status) -> bool {
    let cause = status.details.iter().flat_map(|d| &d.causes).any(|c| c.reason == "NamespaceTerminating");
    let missing = status.code == 404 && status.message.starts_with("namespaces \"");
    cause || missing || (status.code == 403 && status.message.contains("because it is being terminated"))
}

/// Whether the error says that the object is not there, or not this one any more.
pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}

/// The error as a metric label; from a fixed set.
pub fn reason_of(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) => match status.code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            422 => "Invalid",
            429 => "TooManyRequests",
            500..=599 => "ServerError",
            _ => "Other",
        },
        kube::Error::SerdeError(_) => "Malformed",
        kube::Error::Service(_) | kube::Error::HyperError(_) => "Connection",
        _ => "Other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, message: &str) -> ApplyError {
        let status = Status { code, message: message.into(), ..Default::default() };
        ApplyError::of("patch", ChildKind::Deployment, "x", kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn the_table() {
        for (code, message, reason) in [
            (422, "Deployment.apps \"x\" is invalid: spec.template", "InvalidTemplate"),
            (403, "admission webhook \"w\" denied the request: no", "InvalidTemplate"),
            (403, "deployments.apps \"x\" is forbidden: exceeded quota: q", "QuotaExceeded"),
            (
                403,
                "deployments.apps \"x\" is forbidden: User \"system:serviceaccount:o:o\" cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"n\"",
                "OperatorForbidden",
            ),
            (
                403,
                "configmaps \"x\" is forbidden: unable to create new content in namespace n because it is being terminated",
                "NamespaceTerminating",
            ),
            (404, "namespaces \"n\" not found", "NamespaceTerminating"),
            (
                500,
                "failed to create typed patch object (n/x; apps/v1, Kind=Deployment): .spec.template.spec.y: field not declared in schema",
                "InvalidTemplate",
            ),
            (500, "etcdserver: request timed out", "ApiError"),
            (409, "Operation cannot be fulfilled", "ApiError"),
            (429, "slow down", "ApiError"),
        ] {
            assert_eq!(error(code, message).reason(), reason, "{message}");
        }
    }
}
