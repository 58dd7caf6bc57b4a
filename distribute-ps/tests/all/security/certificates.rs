//! Authorities and what they sign.

use distribute_core::collectives::control::security::{Security, TlsIdentity, Token};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
};

pub const TOKEN: &str = "0123456789 the right token";
pub const OTHER: &str = "9876543210 of another job";

pub struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "test authority");
        let certificate = params.self_signed(&key).unwrap();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate of this authority for a host, whose owner accepts this authority's
    /// certificates.
    pub fn signs(&self, host: &str, expired: bool) -> TlsIdentity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_string()]).unwrap();
        if expired {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        TlsIdentity::new(
            self.certificate.pem(),
            certificate.pem(),
            key.serialize_pem(),
        )
    }

    /// A valid certificate for loopback, and the right token.
    pub fn security(&self) -> Security {
        self.with(TOKEN)
    }

    pub fn with(&self, token: &str) -> Security {
        let token = Token::new(token).unwrap();
        let identity = self.signs("127.0.0.1", false);
        Security::default().token(token).tls(identity)
    }
}
