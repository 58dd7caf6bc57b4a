//! Who may take part: job token and certificates.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use crate::credentials::{TlsIdentity, Token};

use crate::handshake::{Secret, proof};
#[cfg(feature = "tokio")]
use crate::tls::TlsSettings;

/// The credentials that a process shows to its peers, and what it demands of them.
///
/// Without a token and certificates a process listens on loopback addresses only, unless
/// [`insecure`](Self::insecure) says otherwise.
///
/// ```
/// use distribute_net::security::{Security, Token};
///
/// let security = Security::default().token(Token::new("0123456789abcdef")?);
/// assert_eq!(format!("{security:?}").matches("0123456789abcdef").count(), 0);
/// # Ok::<(), distribute_net::NetError>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Security {
    token: Option<Token>,
    tls: Option<Arc<TlsIdentity>>,
    /// Whether the warning about this has been given; shared by all clones.
    insecure: Option<Arc<AtomicBool>>,
}

/// The kind of traffic between processes of a job.
pub(crate) const CLEAR_DATA: &str = "data, gradients, weights";

impl Security {
    /// Demands that every peer knows the token of the job. It is never sent.
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Encrypts all connections and demands a certificate of the same CA from every peer.
    pub fn tls(mut self, identity: TlsIdentity) -> Self {
        self.tls = Some(Arc::new(identity));
        self
    }

    /// Allows addresses beyond loopback without a token or without TLS: anyone who reaches the
    /// port can then take part, or read the traffic.
    pub fn insecure(mut self) -> Self {
        self.insecure = Some(Arc::default());
        self
    }

    /// What a [handshake](crate::handshake) of this process proves: the token, if there is one.
    pub fn secret(&self) -> Secret {
        let token = self.token.as_ref();
        token.map(Token::secret).unwrap_or_default()
    }

    /// Whether peers have to know a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// A key derived from the token, a label and parts by HMAC-SHA256, such that different lists of
    /// parts give different keys; empty without a token. Labels differ by use.
    pub fn derive(&self, label: &str, parts: &[&[u8]]) -> Vec<u8> {
        let token = self.token.as_ref();
        token.map_or_else(Vec::new, |token| {
            proof::of_parts(&token.secret(), label, parts)
        })
    }

    /// Whether a process may listen beyond loopback.
    ///
    /// # Errors
    /// What is missing.
    pub fn allows_beyond_loopback(&self) -> std::result::Result<(), &'static str> {
        match (&self.token, &self.tls) {
            _ if self.insecure.is_some() => Ok(()),
            (Some(_), Some(_)) => Ok(()),
            (None, Some(_)) => Err("a token"),
            (Some(_), None) => Err("TLS"),
            (None, None) => Err("a token and TLS"),
        }
    }

    /// The warning for a process that listens at this address, or dials it: its traffic
    /// (`what`) can be read and changed on the way. Returned once for this value and its clones;
    /// `None` with TLS or on loopback.
    pub fn clear_text(&self, address: SocketAddr, what: &str) -> Option<String> {
        let is_said = self.insecure.as_ref().filter(|_| self.tls.is_none())?;
        if address.ip().is_loopback() || is_said.swap(true, Ordering::Relaxed) {
            return None;
        }
        let but = match self.token {
            Some(_) => "everything but the token travels",
            None => "everything travels, and no token is asked for,",
        };
        Some(format!(
            "insecure at {address}: {but} in clear, and who is on the way can read and change it \
             ({what}); certificates encrypt it (`certs`, `--certs`)"
        ))
    }

    /// The TLS settings of both ends of a connection, or `None` without TLS.
    ///
    /// # Errors
    /// [`InvalidOption`](crate::NetError::InvalidOption) when a certificate or the key cannot be
    /// used.
    #[cfg(feature = "tokio")]
    pub fn tls_settings(&self) -> crate::Result<Option<TlsSettings>> {
        let identity = self.tls.as_deref();
        identity.map(TlsSettings::new).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "correct horse battery staple";

    #[test]
    fn a_token_comes_from_text_or_a_file_and_shows_in_no_output() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, format!("{SECRET}\n")).unwrap();
        let token = Token::from_file(&path).unwrap();
        assert_eq!(token.bytes(), Token::new(SECRET).unwrap().bytes());
        let shown = format!("{token:?} {:#?}", Security::default().token(token.clone()));
        assert!(!shown.contains("horse"), "{shown}");
    }

    #[test]
    fn both_token_and_tls_are_needed_beyond_loopback() {
        let identity = || TlsIdentity::new("", "", "");
        let token = Token::new(SECRET).unwrap();
        let none = Security::default();
        assert_eq!(none.allows_beyond_loopback(), Err("a token and TLS"));
        let half = none.clone().token(token.clone());
        assert_eq!(half.allows_beyond_loopback(), Err("TLS"));
        let other_half = none.clone().tls(identity());
        assert_eq!(other_half.allows_beyond_loopback(), Err("a token"));
        assert_eq!(half.tls(identity()).allows_beyond_loopback(), Ok(()));
        assert_eq!(none.insecure().allows_beyond_loopback(), Ok(()));
    }

    #[test]
    fn what_is_in_clear_is_said_once_and_not_on_loopback() {
        let outside: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let loopback: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let token = Token::new(SECRET).unwrap();
        let open = Security::default().token(token.clone()).insecure();
        assert_eq!(open.clear_text(loopback, CLEAR_DATA), None);
        let said = open.clone().clear_text(outside, CLEAR_DATA).unwrap();
        assert!(said.contains("everything but the token"), "{said}");
        assert_eq!(open.clear_text(outside, CLEAR_DATA), None, "once is enough");
        let bare = Security::default()
            .insecure()
            .clear_text(outside, CLEAR_DATA);
        assert!(bare.unwrap().contains("no token is asked for"));
        let encrypted = open.tls(TlsIdentity::new("", "", "")).insecure();
        assert_eq!(encrypted.clear_text(outside, CLEAR_DATA), None);
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn bad_certificates_are_an_error_that_says_which() {
        let security = Security::default().tls(TlsIdentity::new("no PEM", "", ""));
        let error = security.tls_settings().unwrap_err().to_string();
        assert!(error.contains("CA certificate"), "{error}");
    }
}
