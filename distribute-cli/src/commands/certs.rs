//! `certs`: certificates and a job token for a cluster, made on this machine.
//!
//! One certificate authority signs one certificate per host, valid for server and client. The
//! authority's own key is not kept: who wants another host makes a new set.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use distribute_net::calendar;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

use super::cert_hosts::{checked, folder};
use crate::events::line;
use crate::failure::Failure;
use crate::flags::CertsArgs;

type Authority = CertifiedIssuer<'static, KeyPair>;

/// A longer life is that of nobody's key.
const MAX_DAYS: u32 = 36_500;

/// Writes `ca.pem`, a directory per host, and a token: all of it or nothing.
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
    let signed = hosts.iter().map(|host| sign(host, &validity, &authority));
    let signed: Result<Vec<_>, _> = signed.collect();
    let signed = signed.map_err(|error| failed(&error))?;
    let token = token()?;
    let whole = Whole::beside(directory)?;
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

/// A directory that is filled beside its place, and removed if it does not get there.
struct Whole(TempDir);

impl Whole {
    fn beside(place: &Path) -> Result<Self, Failure> {
        let parent = place.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".certs-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // As of any new directory: less what the user's mask takes away.
            builder.permissions(fs::Permissions::from_mode(0o777));
        }
        let made = fs::create_dir_all(parent).and_then(|()| builder.tempdir_in(parent));
        made.map(Self)
            .map_err(|error| Failure::of_file(&error, &error).in_file(place))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn put(self, place: &Path) -> Result<(), Failure> {
        let renamed = fs::rename(self.path(), place);
        renamed.map_err(|error| Failure::of_file(&error, &error).in_file(place))?;
        // Nothing is left to be removed.
        let _ = self.0.keep();
        Ok(())
    }
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

/// 32 random bytes in hexadecimal.
fn token() -> Result<String, Failure> {
    let mut random = [0; 32];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::failed(format!("no random numbers: {error}")))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_get_to_its_place_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a/certs");
        let whole = Whole::beside(&place).unwrap();
        fs::write(whole.path().join("ca.pem"), "half").unwrap();
        drop(whole);
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 0);
        let whole = Whole::beside(&place).unwrap();
        fs::write(whole.path().join("ca.pem"), "whole").unwrap();
        whole.put(&place).unwrap();
        assert!(place.join("ca.pem").is_file());
        assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 1);
    }
}
