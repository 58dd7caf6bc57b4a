//! What a rank shows: the token of the job, and a certificate.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{CollectiveError, Result};

/// The fewest bytes of a token.
const TOKEN_MIN_BYTES: usize = 16;

/// The secret that all ranks of a job share. No output of this crate contains it.
#[derive(Clone)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// A token of at least 16 bytes.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] when it is shorter.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Token> {
        let secret = secret.as_ref();
        if secret.len() < TOKEN_MIN_BYTES {
            return Err(CollectiveError::InvalidOption {
                what: format!(
                    "the token has {} bytes, it must have at least {TOKEN_MIN_BYTES}",
                    secret.len()
                ),
            });
        }
        Ok(Token(secret.into()))
    }

    /// The content of a file, without white space at its end.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] when the file cannot be read or is too short.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Token> {
        Token::new(read("token", path.as_ref())?.trim_ascii_end())
    }

    /// The value of an environment variable, without white space at its end.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] when the variable is not set or its value is too short.
    pub fn from_env(name: &str) -> Result<Token> {
        let value = std::env::var_os(name).ok_or_else(|| CollectiveError::InvalidOption {
            what: format!("the environment variable {name}, which holds the token, is not set"),
        })?;
        Token::new(value.as_encoded_bytes().trim_ascii_end())
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The certificate of a rank, its key, and the CA whose certificates it accepts; all PEM.
///
/// A certificate must name the host or the IP address under which the other ranks know the rank
/// (subject alternative name), for both server and client use.
#[derive(Clone)]
pub struct TlsIdentity {
    pub(crate) ca_pem: Vec<u8>,
    pub(crate) certificate_pem: Vec<u8>,
    pub(crate) key_pem: Vec<u8>,
}

impl TlsIdentity {
    /// From PEM texts: the CA's certificate, the rank's certificate (chain) and its key.
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
    /// [`CollectiveError::InvalidOption`] when a file cannot be read.
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
    std::fs::read(path).map_err(|error| CollectiveError::InvalidOption {
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
