//! The certificate of this replica: it changes while connections come.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::authority::Serving;

/// The certificate in use; until there is one every handshake fails.
#[derive(Default)]
pub struct Certificates(RwLock<Option<Arc<CertifiedKey>>>);

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Certificates").field(&self.0.read().is_some()).finish()
    }
}

impl Certificates {
    /// Uses another one from now on. Connections that are open go on.
    pub fn put(&self, serving: Serving) -> Result<(), rustls::Error> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(serving.key));
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)?;
        let certified = CertifiedKey::new(vec![CertificateDer::from(serving.certificate)], key);
        *self.0.write() = Some(Arc::new(certified));
        Ok(())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

/// How connections are taken: TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1.
pub fn config(certificates: Arc<Certificates>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // No session is kept for clients that come back: a thousand quiet ones are to cost little.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
