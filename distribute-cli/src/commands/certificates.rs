//! The certificates of `doctor --certs`: names and validity.

use std::fs;
use std::path::{Path, PathBuf};

use distribute_net::calendar::shown;
use distribute_net::certificate::{Certificate, Standing};
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::cluster::{beside, security};

/// The file of a host's certificate, in the host's folder.
const CERTIFICATE: &str = "certificate.pem";
const AUTHORITY: &str = "ca.pem";

/// The certificates in a directory.
pub(super) struct Certificates {
    files: Vec<CertificateFile>,
    /// Why `train --certs` cannot use the directory, if it cannot.
    problem: Option<String>,
    now: i64,
}

struct CertificateFile {
    path: PathBuf,
    found: Result<Vec<Certificate>, String>,
}

impl Certificates {
    /// Reads a host's directory, as in `train --certs`, or the directory of all hosts.
    pub(super) fn find(directory: &Path) -> Self {
        let is_of_host = directory.join(CERTIFICATE).exists();
        let hosts = if is_of_host {
            vec![directory.to_path_buf()]
        } else {
            hosts_in(directory)
        };
        let authority = beside(directory, AUTHORITY);
        let own = hosts.iter().map(|host| host.join(CERTIFICATE));
        let problem = match (is_of_host, hosts.is_empty()) {
            (true, _) => usable(directory).err(),
            (false, true) => Some(format!(
                "{} has no {CERTIFICATE}, nor has a folder in it; give the directory of a host \
                 that `certs` made",
                directory.display()
            )),
            (false, false) => None,
        };
        Self {
            files: own.chain([authority]).map(CertificateFile::read).collect(),
            problem,
            now: OffsetDateTime::now_utc().unix_timestamp(),
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let files = self.files.iter().flat_map(|file| file.lines(self.now));
        let problem = self
            .problem
            .iter()
            .map(|what| format!("cannot be used: {what}"));
        files.chain(problem).collect()
    }

    pub(super) fn json(&self) -> Value {
        let files = self.files.iter().flat_map(|file| file.json(self.now));
        let problem = self.problem.iter().map(|what| json!({ "error": what }));
        files.chain(problem).collect()
    }
}

/// Loads the directory as `train --certs` does at its start.
fn usable(directory: &Path) -> Result<(), String> {
    let security = security(Some(directory), false).map_err(|failure| failure.to_string())?;
    let settings = security.tls_settings();
    settings.map(drop).map_err(|error| error.to_string())
}

/// The folders of hosts, by their names.
fn hosts_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path());
    let mut hosts: Vec<_> = folders
        .filter(|folder| folder.join(CERTIFICATE).exists())
        .collect();
    hosts.sort();
    hosts
}

impl CertificateFile {
    fn read(path: PathBuf) -> Self {
        let read = fs::read(&path).map_err(|error| error.to_string());
        let found =
            read.and_then(|pem| Certificate::all_of_pem(&pem).map_err(|error| error.to_string()));
        Self { path, found }
    }

    fn lines(&self, now: i64) -> Vec<String> {
        let path = self.path.display();
        match &self.found {
            Err(error) => vec![format!("{path}: {error}")],
            Ok(all) => all
                .iter()
                .map(|it| format!("{path}: {}", text(it, now)))
                .collect(),
        }
    }

    fn json(&self, now: i64) -> Vec<Value> {
        match &self.found {
            Err(error) => vec![json!({ "path": self.path, "error": error })],
            Ok(all) => {
                let each = all.iter().map(|it| {
                    json!({
                        "path": self.path,
                        "subject": it.subject,
                        "names": it.names,
                        "from": shown(it.from),
                        "until": shown(it.until),
                        "standing": standing(it.standing(now)).0,
                    })
                });
                each.collect()
            }
        }
    }
}

fn text(certificate: &Certificate, now: i64) -> String {
    let whom = match (&certificate.names[..], &certificate.subject) {
        ([], Some(subject)) => subject.clone(),
        ([], None) => "for no host".to_string(),
        (names, _) => format!("for {}", names.join(", ")),
    };
    let dates = format!(
        "from {} to {}",
        shown(certificate.from),
        shown(certificate.until)
    );
    let (_, what) = standing(certificate.standing(now));
    format!("{whom}, {dates}{what}")
}

/// The validity as a word for programs, and as the end of a line for people.
fn standing(standing: Standing) -> (&'static str, String) {
    const ANEW: &str = "make a new set with `certs`";
    match standing {
        Standing::EndsSoon { days: 0 } => ("ends-soon", format!("; it ends within a day: {ANEW}")),
        Standing::EndsSoon { days: 1 } => ("ends-soon", format!("; it ends in 1 day: {ANEW}")),
        Standing::EndsSoon { days } => ("ends-soon", format!("; it ends in {days} days: {ANEW}")),
        Standing::Expired => ("expired", format!("; it has EXPIRED: {ANEW}")),
        Standing::NotYetValid => (
            "not-yet-valid",
            "; it is NOT YET VALID by the clock of this host: compare the clocks".to_string(),
        ),
        _ => ("valid", String::new()),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use time::Duration;

    use super::*;

    /// The validity of a certificate that begins and ends this number of hours from now.
    fn said(from: i64, until: i64) -> (String, Value) {
        let now = OffsetDateTime::now_utc();
        let mut params = CertificateParams::new(vec!["node1".to_string()]).unwrap();
        params.not_before = now + Duration::hours(from);
        params.not_after = now + Duration::hours(until);
        let pem = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CERTIFICATE);
        fs::write(&path, pem.pem()).unwrap();
        let file = CertificateFile::read(path);
        let lines = file.lines(now.unix_timestamp());
        let json = file.json(now.unix_timestamp()).remove(0);
        assert_eq!(lines.len(), 1);
        (lines[0].clone(), json)
    }

    #[test]
    fn a_certificate_whose_time_is_not_now_is_said_to_be_so() {
        for (from, until, what, word) in [
            (-24, 24 * 40, " UTC", "valid"),
            (
                -24,
                24 * 12 + 1,
                "; it ends in 12 days: make a new set",
                "ends-soon",
            ),
            (-24, 25, "; it ends in 1 day: make a new set", "ends-soon"),
            (
                -24,
                1,
                "; it ends within a day: make a new set",
                "ends-soon",
            ),
            (-24, -1, "; it has EXPIRED: make a new set", "expired"),
            (1, 24, "; it is NOT YET VALID by the clock", "not-yet-valid"),
        ] {
            let (line, json) = said(from, until);
            assert!(line.contains(": for node1, from 20"), "{line}");
            assert!(line.contains(what), "{line}");
            assert_eq!(word == "valid", line.ends_with(" UTC"), "{line}");
            assert_eq!(json["standing"], word);
            assert_eq!(json["names"], json!(["node1"]));
        }
    }
}
