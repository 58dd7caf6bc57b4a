//! The credentials of a process: the token of the job, and a certificate.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{NetError, Result};
use crate::handshake::Secret;
use crate::random_hex;

/// The fewest bytes of a token.
const TOKEN_MIN_BYTES: usize = 16;
/// The fewest different bytes: of tokens of 16 random hexadecimal digits, 1 in 30,000 has fewer.
const TOKEN_MIN_DIFFERENT: usize = 6;

/// The secret that all processes of a job share. No output of this crate contains it.
///
/// It must be drawn at random ([`generate`](Self::generate), `distribute certs`, the launcher):
/// an attacker who can connect to a process of the job, or who reads the traffic where there
/// is no TLS, can try secrets offline without limit.
#[derive(Clone)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// A token of at least 16 bytes, 6 of them different.
    ///
    /// # Errors
    /// [`NetError::InvalidOption`] when it cannot be random.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Token> {
        let secret = secret.as_ref();
        if secret.len() < TOKEN_MIN_BYTES {
            return Err(NetError::InvalidOption {
                what: format!(
                    "the token has {} bytes, it must have at least {TOKEN_MIN_BYTES}",
                    secret.len()
                ),
            });
        }
        if (0..=u8::MAX).filter(|byte| secret.contains(byte)).count() < TOKEN_MIN_DIFFERENT {
            return Err(NetError::InvalidOption {
                what: "the token repeats itself, it must be drawn at random".to_string(),
            });
        }
        Ok(Token(secret.into()))
    }

    /// The content of a file, without white space at its end.
    ///
    /// # Errors
    /// [`NetError::InvalidOption`] when the file cannot be read or is too short.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Token> {
        Token::new(read("token", path.as_ref())?.trim_ascii_end())
    }

    /// The value of an environment variable, without white space at its end.
    ///
    /// # Errors
    /// [`NetError::InvalidOption`] when the variable is not set or its value is too short.
    pub fn from_env(name: &str) -> Result<Token> {
        let value = std::env::var_os(name).ok_or_else(|| NetError::InvalidOption {
            what: format!("the environment variable {name}, which holds the token, is not set"),
        })?;
        Token::new(value.as_encoded_bytes().trim_ascii_end())
    }

    /// A random token of 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`NetError::NoRandomNumbers`].
    pub fn generate() -> Result<Token> {
        Ok(Token(random_hex::<32>()?.into_bytes().into()))
    }

    /// The token itself, to be handed to the processes of the job.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn secret(&self) -> Secret {
        Secret::new(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The certificate of a process, its key, and the CA whose certificates it accepts; all PEM.
///
/// A certificate must name the host or the IP address under which the others know the process
/// (subject alternative name), for both server and client use.
#[derive(Clone)]
#[cfg_attr(
    not(feature = "tokio"),
    expect(
        dead_code,
        reason = "what reads them is compiled with the feature tokio"
    )
)]
pub struct TlsIdentity {
    pub(crate) ca_pem: Vec<u8>,
    pub(crate) certificate_pem: Vec<u8>,
    pub(crate) key_pem: Vec<u8>,
}

impl TlsIdentity {
    /// From PEM texts: the CA's certificate, its certificate (chain) and its key.
    pub fn new(
        ca_pem: impl Into<Vec<u8>>,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> TlsIdentity {
        TlsIdentity {
            ca_pem: ca_pem.into(),
            certificate_pem: certificate_pem.into(),
            key_pem: key_pem.into(),
        }
    }

    /// From PEM files.
    ///
    /// # Errors
    /// [`NetError::InvalidOption`] when a file cannot be read.
    pub fn from_files(
        ca: impl AsRef<Path>,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<TlsIdentity> {
        Ok(TlsIdentity {
            ca_pem: read("CA certificate", ca.as_ref())?,
            certificate_pem: read("certificate", certificate.as_ref())?,
            key_pem: read("key", key.as_ref())?,
        })
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity(..)")
    }
}

fn read(what: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| NetError::InvalidOption {
        what: format!("cannot read the {what} file {}: {error}", path.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_token_is_refused_without_showing_it() {
        let error = Token::new("short-secret").unwrap_err().to_string();
        assert!(
            error.contains("12 bytes") && error.contains("at least 16"),
            "{error}"
        );
        assert!(!error.contains("short-secret"), "{error}");
        let error = Token::new("abcabcabcabcabcabc").unwrap_err().to_string();
        assert!(error.contains("repeats itself"), "{error}");
        let [a, b] = [Token::generate().unwrap(), Token::generate().unwrap()];
        assert_ne!(a.bytes(), b.bytes());
        assert!(Token::new(a.bytes()).is_ok());
        let error = Token::from_file("/nonexistent/token")
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nonexistent/token"), "{error}");
        let error = Token::from_env("DISTRIBUTE_NO_SUCH_TOKEN")
            .unwrap_err()
            .to_string();
        assert!(error.contains("DISTRIBUTE_NO_SUCH_TOKEN"), "{error}");
    }
}
