//! TLS settings, and TLS failures in words.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, ServerConfig,
};

use crate::control::credentials::TlsIdentity;
use crate::error::{CollectiveError, Result};

/// The settings of both ends of a connection. Both ends show a certificate.
#[derive(Debug, Clone)]
pub(crate) struct DataTls {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

fn invalid(what: &str, error: impl std::fmt::Display) -> CollectiveError {
    CollectiveError::InvalidOption {
        what: format!("cannot use the {what}: {error}"),
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(list) if list.is_empty() => Err(invalid(what, "it holds no PEM certificate")),
        Ok(list) => Ok(list),
        Err(error) => Err(invalid(what, error)),
    }
}

/// The settings for this identity. Sessions are not resumed, so that every connection is checked
/// in full.
pub(super) fn settings(identity: &TlsIdentity) -> Result<DataTls> {
    let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates("CA certificate", &identity.ca_pem)? {
        roots
            .add(certificate)
            .map_err(|error| invalid("CA certificate", error))?;
    }
    let roots = Arc::new(roots);
    let chain = certificates("certificate", &identity.certificate_pem)?;
    let key = || {
        PrivateKeyDer::from_pem_slice(&identity.key_pem)
            .map_err(|error| invalid("key of the certificate", error))
    };
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| invalid("TLS settings", error))?
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain.clone(), key()?)
        .map_err(|error| invalid("certificate and its key", error))?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    client.resumption = Resumption::disabled();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|error| invalid("CA certificate", error))?;
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| invalid("TLS settings", error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key()?)
        .map_err(|error| invalid("certificate and its key", error))?;
    server.alpn_protocols = vec![b"h2".to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(DataTls {
        client: Arc::new(client),
        server: Arc::new(server),
    })
}

/// Which certificate was not accepted and why, when that is what the failure of a connection
/// was about.
pub(crate) fn certificate_refusal(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let reason = match error {
        Error::NoCertificatesPresented => "it shows no certificate".to_string(),
        Error::InvalidCertificate(problem) => {
            format!("its certificate {}", certificate_problem(problem))
        }
        Error::AlertReceived(alert) => {
            let what = match alert {
                AlertDescription::UnknownCA => "it is not issued by the CA of that rank",
                AlertDescription::CertificateExpired => "it has expired",
                AlertDescription::CertificateRequired => "none was shown",
                AlertDescription::BadCertificate => "it is not for this host, or damaged",
                AlertDescription::CertificateUnknown
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::AccessDenied
                | AlertDescription::DecryptError => "it cannot be used",
                _ => return None,
            };
            format!("it does not accept the certificate of this rank: {what} ({alert:?})")
        }
        _ => return None,
    };
    Some(format!("{reason}; check the certificates of both ranks"))
}

/// Whether what came from the other side is not TLS.
pub(crate) fn is_no_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(Error::InvalidMessage(_)))
}

fn certificate_problem(problem: &CertificateError) -> String {
    match problem {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "was not issued by the CA that this rank accepts".to_string()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired".to_string()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet".to_string()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "is not for the host of its address".to_string()
        }
        other => format!("cannot be used ({other:?})"),
    }
}
