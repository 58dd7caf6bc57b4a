//! `certs`: certificates and a job token for a cluster, made on this machine.
//!
//! One certificate authority signs one certificate per host, valid for server and client. The
//! authority's key is not kept: to add a host, create a new set.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use distribute_net::calendar;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use super::cert_hosts::{checked, folder};
use super::whole_directory::WholeDirectory;
use crate::events::line;
use crate::failure::Failure;
use crate::flags::CertsArgs;

type Authority = CertifiedIssuer<'static, KeyPair>;

/// The maximum validity.
const MAX_DAYS: u32 = 36_500;

/// Writes `ca.pem`, a directory per host, and a token: all of them or nothing.
pub(super) fn run(args: &CertsArgs) -> Result<(), Failure> {
    let directory = &args.out;
    if !(1..=MAX_DAYS).contains(&args.days) {
        return Err(Failure::usage(format!(
            "--days must be 1 to {MAX_DAYS}, a hundred years"
        )));
    }
    let hosts = checked(&args.hosts);
    let hosts = hosts.map_err(|what| Failure::usage(format!("--hosts: {what}")))?;
    if directory.symlink_metadata().is_ok() {
        return Err(Failure::usage(format!(
            "{} exists: certificates are never overwritten; remove it or name another directory",
            directory.display()
        )));
    }
    let validity = Validity::of(args.days);
    let authority = authority(&validity).map_err(|error| failed(&error))?;
    let signed: Result<Vec<_>, _> = hosts
        .iter()
        .map(|host| sign(host, &validity, &authority))
        .collect();
    let signed = signed.map_err(|error| failed(&error))?;
    // 32 random bytes.
    let token =
        distribute_net::random_hex::<32>().map_err(|error| Failure::failed(error.to_string()))?;
    let whole = WholeDirectory::beside(directory, ".certs-")?;
    let path = whole.path();
    write(&path.join("ca.pem"), &authority.pem(), false)?;
    for (host, (certificate, key)) in hosts.iter().zip(&signed) {
        let folder = path.join(folder(host));
        fs::create_dir(&folder).map_err(|error| Failure::failed(error).in_file(&folder))?;
        write(&folder.join("certificate.pem"), certificate, false)?;
        write(&folder.join("key.pem"), key, true)?;
    }
    write(&path.join("token"), &token, true)?;
    whole.put(directory)?;
    line(&format!(
        "{}: ca.pem, token, and a certificate with its key for each host\n\
         valid for {} days: {}\n\
         from {} to {}",
        directory.display(),
        args.days,
        hosts.join(", "),
        shown(validity.from),
        shown(validity.to),
    ))
}

fn failed(error: &rcgen::Error) -> Failure {
    Failure::failed(format!("cannot make certificates: {error}"))
}

/// From an hour ago, for hosts whose clocks differ a little.
struct Validity {
    from: OffsetDateTime,
    to: OffsetDateTime,
}

impl Validity {
    fn of(days: u32) -> Self {
        let now = OffsetDateTime::now_utc();
        Self {
            from: now - Duration::hours(1),
            to: now + Duration::days(i64::from(days)),
        }
    }

    fn set(&self, params: &mut CertificateParams) {
        params.not_before = self.from;
        params.not_after = self.to;
    }
}

fn shown(time: OffsetDateTime) -> String {
    calendar::shown(time.unix_timestamp())
}

fn authority(validity: &Validity) -> Result<Authority, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "distribute certificate authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    validity.set(&mut params);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

/// The certificate of a host and its key.
fn sign(
    host: &str,
    validity: &Validity,
    authority: &Authority,
) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(vec![host.to_string()])?;
    params.distinguished_name.push(DnType::CommonName, host);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    validity.set(&mut params);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Writes a new file; a secret one is readable by its owner only, from the first byte on.
fn write(path: &Path, text: &str, secret: bool) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(if secret { 0o600 } else { 0o644 });
    }
    #[cfg(not(unix))]
    let _ = secret;
    let written = options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::of_file(&error, &error).in_file(path))
}
