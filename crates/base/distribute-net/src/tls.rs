//! TLS settings, and messages for TLS failures.

use std::io;
use std::sync::Arc;

use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ConnectionCommon, Error, RootCertStore,
    ServerConfig,
};

use crate::calendar;
use crate::error::{NetError, Result};
use crate::security::TlsIdentity;

/// The settings of both ends of a connection. Both ends show a certificate.
#[derive(Debug, Clone)]
pub struct TlsSettings {
    /// The settings of the connecting end.
    pub client: Arc<ClientConfig>,
    /// The settings of the listening end.
    pub server: Arc<ServerConfig>,
}

/// Information from a TLS connection.
#[derive(Debug, Clone, Default)]
pub struct Channel {
    /// TLS's exporter, for a [handshake](crate::handshake): equal at the two ends of one
    /// connection; empty without TLS.
    pub binding: Vec<u8>,
    certificate: Option<CertificateDer<'static>>,
}

impl Channel {
    /// Reads it from a connection whose TLS handshake is over.
    ///
    /// # Errors
    /// The handshake is not over.
    pub fn of<S>(connection: &ConnectionCommon<S>) -> Result<Channel, Error> {
        let label = b"EXPORTER-distribute-handshake";
        let chain = connection.peer_certificates();
        Ok(Channel {
            binding: connection.export_keying_material(vec![0; 32], label, None)?,
            certificate: chain.and_then(<[_]>::first).cloned(),
        })
    }

    /// Whether the peer may claim to be at this host: its certificate names the host, or there is
    /// no TLS.
    pub fn is_for_host(&self, host: &str) -> bool {
        let Some(certificate) = &self.certificate else {
            return true;
        };
        let name = ServerName::try_from(host).ok();
        let parsed = ParsedCertificate::try_from(certificate).ok();
        let both = parsed.zip(name);
        both.is_some_and(|(parsed, name)| verify_server_name(&parsed, &name).is_ok())
    }
}

fn invalid(what: &str, error: impl std::fmt::Display) -> NetError {
    NetError::InvalidOption {
        what: format!("cannot use the {what}: {error}"),
    }
}

pub(crate) fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(list) if list.is_empty() => Err(invalid(what, "it holds no PEM certificate")),
        Ok(list) => Ok(list),
        Err(error) => Err(invalid(what, error)),
    }
}

impl TlsSettings {
    /// The settings for this identity. Sessions are not resumed, so that every connection is
    /// checked in full.
    ///
    /// # Errors
    /// [`NetError::InvalidOption`] when a certificate or the key cannot be used.
    pub fn new(identity: &TlsIdentity) -> Result<TlsSettings> {
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
        Ok(TlsSettings {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }
}

/// If a connection failed because of a certificate: which certificate was not accepted, and
/// why.
pub fn certificate_refusal(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let reason = match error {
        Error::NoCertificatesPresented => "it shows no certificate".to_string(),
        Error::InvalidCertificate(problem) => {
            format!("its certificate {}", certificate_problem(problem))
        }
        Error::AlertReceived(alert) => {
            let what = match alert {
                AlertDescription::UnknownCA => "it is not issued by the CA of that rank",
                // TLS has one alert for both.
                AlertDescription::CertificateExpired => {
                    "it has expired, or is not valid yet, by the clock of that rank"
                }
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

/// Whether the other side's bytes are not TLS.
pub fn is_no_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(Error::InvalidMessage(_)))
}

fn certificate_problem(problem: &CertificateError) -> String {
    match problem {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "was not issued by the CA that this rank accepts".to_string()
        }
        CertificateError::Expired => "has expired".to_string(),
        CertificateError::ExpiredContext { time, not_after } => format!(
            "has expired: it was valid until {}, and the clock of this host shows {}",
            shown(*not_after),
            shown(*time)
        ),
        CertificateError::NotValidYet => "is not valid yet".to_string(),
        CertificateError::NotValidYetContext { time, not_before } => format!(
            "is not valid yet: it is from {} on, and the clock of this host shows {}; compare the \
             clocks",
            shown(*not_before),
            shown(*time)
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "is not for the host of its address".to_string()
        }
        other => format!("cannot be used ({other:?})"),
    }
}

fn shown(time: UnixTime) -> String {
    calendar::shown(i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 2))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn a_certificate_of_the_future_is_told_from_one_of_the_past() {
        let (now, then) = (at(86_400), at(2 * 86_400));
        let refusal = |problem: CertificateError| {
            let error = Error::InvalidCertificate(problem);
            certificate_refusal(&io::Error::other(error)).unwrap()
        };
        let time = now;
        let early = refusal(CertificateError::NotValidYetContext {
            time,
            not_before: then,
        });
        let said = "is not valid yet: it is from 1970-01-03 00:00 UTC on, and the clock of this \
                    host shows 1970-01-02 00:00 UTC";
        assert!(early.contains(said), "{early}");
        let (time, not_after) = (then, now);
        let late = refusal(CertificateError::ExpiredContext { time, not_after });
        assert!(
            late.contains("it was valid until 1970-01-02 00:00 UTC"),
            "{late}"
        );
        // The other side reports both by one alert.
        let alert = Error::AlertReceived(AlertDescription::CertificateExpired);
        let alert = certificate_refusal(&io::Error::other(alert)).unwrap();
        assert!(
            alert.contains("it has expired, or is not valid yet"),
            "{alert}"
        );
    }
}
