//! `certs`: certificates and a job token for a cluster, made on this machine.
//!
//! One certificate authority signs one certificate per host, valid for server and client. The
//! authority's own key is not kept: who wants another host makes a new set.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use crate::events::line;
use crate::failure::Failure;
use crate::flags::CertsArgs;

type Authority = CertifiedIssuer<'static, KeyPair>;

/// Writes `ca.pem`, a directory per host, and a token.
pub(super) fn run(args: &CertsArgs) -> Result<(), Failure> {
    let directory = &args.out;
    if args.days == 0 {
        return Err(Failure::usage("--days must be at least 1"));
    }
    if directory.exists() {
        return Err(Failure::usage(format!(
            "{} exists: certificates are never overwritten; remove it or name another directory",
            directory.display()
        )));
    }
    let authority = authority(args.days).map_err(|error| failed(&error))?;
    create(directory)?;
    write(&directory.join("ca.pem"), &authority.pem(), false)?;
    for host in &args.hosts {
        write_host(
            host,
            args.days,
            &authority,
            &directory.join(host.replace(':', "_")),
        )?;
    }
    write(&directory.join("token"), &token()?, true)?;
    line(&format!(
        "{}: ca.pem, token, and a certificate with its key for each host\n\
         valid for {} days: {}",
        directory.display(),
        args.days,
        args.hosts.join(", "),
    ))
}

fn failed(error: &rcgen::Error) -> Failure {
    Failure::failed(format!("cannot make certificates: {error}"))
}

fn write_host(
    host: &str,
    days: u32,
    authority: &Authority,
    directory: &Path,
) -> Result<(), Failure> {
    // What is wrong can only be the name.
    let (certificate, key) = sign(host, days, authority).map_err(|error| {
        Failure::usage(format!("no certificate for the host {host:?}: {error}"))
    })?;
    create(directory)?;
    write(&directory.join("certificate.pem"), &certificate, false)?;
    write(&directory.join("key.pem"), &key, true)
}

fn authority(days: u32) -> Result<Authority, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "distribute certificate authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, days);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

/// The certificate of a host and its key.
fn sign(host: &str, days: u32, authority: &Authority) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(vec![host.to_string()])?;
    params.distinguished_name.push(DnType::CommonName, host);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    set_validity(&mut params, days);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// From an hour ago, for hosts whose clocks differ a little.
fn set_validity(params: &mut CertificateParams, days: u32) {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(i64::from(days));
}

/// 32 random bytes in hexadecimal.
fn token() -> Result<String, Failure> {
    let mut random = [0; 32];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::failed(format!("no random numbers: {error}")))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn create(directory: &Path) -> Result<(), Failure> {
    let created = std::fs::create_dir_all(directory);
    created.map_err(|error| Failure::of_file(&error, &error).in_file(directory))
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
