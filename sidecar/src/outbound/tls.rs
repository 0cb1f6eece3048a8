//! Whom TLS connections trust.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Largest file with certificates.
const MAX_FILE: u64 = 1 << 20;

/// Why certificates are not used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It is not there or too large.
    #[error("cannot read {path}: {why}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        why: String,
    },
    /// No certificate in it, or a broken one.
    #[error("{path} is no PEM text with certificates: {why}")]
    Malformed {
        /// The file, or where the text stands.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The TLS library refuses its own settings.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

/// Trusts the public authorities.
pub fn public() -> Result<Arc<ClientConfig>, TlsError> {
    config(public_roots())
}

/// Trusts the public authorities and those in a file.
pub fn public_and(file: &Path) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = public_roots();
    add(&mut roots, file)?;
    config(roots)
}

/// Trusts the authorities in a text (PEM) alone; `place` is where it stands, for the error.
pub fn only_these(pem: &str, place: &str) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    add_pem(&mut roots, pem.as_bytes(), &|| place.to_owned())?;
    config(roots)
}

/// Trusts the authorities in a file alone.
pub fn only(file: &Path) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    add(&mut roots, file)?;
    config(roots)
}

fn public_roots() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}

fn add(roots: &mut RootCertStore, file: &Path) -> Result<(), TlsError> {
    let path = || file.display().to_string();
    let unreadable = |e: std::io::Error| TlsError::Unreadable { path: path(), why: e.to_string() };
    if std::fs::metadata(file).map_err(unreadable)?.len() > MAX_FILE {
        return Err(TlsError::Unreadable { path: path(), why: format!("it is larger than {MAX_FILE} bytes") });
    }
    add_pem(roots, &std::fs::read(file).map_err(unreadable)?, &path)
}

fn add_pem(roots: &mut RootCertStore, bytes: &[u8], path: &dyn Fn() -> String) -> Result<(), TlsError> {
    let mut found = false;
    for certificate in CertificateDer::pem_slice_iter(bytes) {
        let added = certificate.map_err(|e| e.to_string()).and_then(|c| roots.add(c).map_err(|e| e.to_string()));
        added.map_err(|why| TlsError::Malformed { path: path(), why })?;
        found = true;
    }
    if found { Ok(()) } else { Err(TlsError::Malformed { path: path(), why: "there is none in it".to_owned() }) }
}

fn config(roots: RootCertStore) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
