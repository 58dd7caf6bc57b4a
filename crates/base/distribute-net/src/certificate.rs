//! Reads a certificate: its host names, and from when to when it is valid.
//!
//! TLS checks certificates when a connection is made; this is for people who inspect their
//! certificates before. Of X.509 (RFC 5280) only the subject, the dates and the alternative names
//! are read, and nothing is verified.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::calendar::seconds_of_day;
#[cfg(feature = "tokio")]
use crate::error::NetError;

/// A certificate that ends within this many days counts as ending soon.
pub const ENDS_SOON_DAYS: u32 = 30;

const SEQUENCE: u8 = 0x30;
const OBJECT: u8 = 0x06;
const OCTETS: u8 = 0x04;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0]`, the version, and `[3]`, the extensions.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// Names of DNS and IP addresses among the alternative names.
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;
/// Object identifiers: commonName and subjectAltName.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];

/// The parts of a certificate that people ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Certificate {
    /// The common name of its subject, if it has one.
    pub subject: Option<String>,
    /// The hosts that it is for: names and IP addresses. Empty for the certificate of an authority.
    pub names: Vec<String>,
    /// When it begins to be valid, in seconds since 1970 (UTC).
    pub from: i64,
    /// When it ends, in seconds since 1970 (UTC).
    pub until: i64,
}

/// The validity of a certificate at a given time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// It is valid for longer than [`ENDS_SOON_DAYS`].
    Valid,
    /// It is valid, and ends after this many whole days.
    EndsSoon {
        /// 0 on its last day.
        days: u32,
    },
    /// It is no longer valid.
    Expired,
    /// It is not valid yet.
    NotYetValid,
}

impl Certificate {
    /// All certificates of a PEM text, in their order.
    ///
    /// # Errors
    /// [`NetError::InvalidOption`] if there is none, or one that is damaged.
    #[cfg(feature = "tokio")]
    pub fn all_of_pem(pem: &[u8]) -> crate::Result<Vec<Certificate>> {
        let invalid = |what: String| NetError::InvalidOption { what };
        let list = crate::tls::certificates("certificate", pem)?;
        let numbered = list.iter().enumerate();
        let read = numbered.map(|(index, der)| {
            Self::of_der(der).ok_or_else(|| {
                invalid(format!(
                    "cannot use the certificate: number {} of the file is no certificate of X.509",
                    index + 1
                ))
            })
        });
        read.collect()
    }

    /// One certificate in DER; `None` if the bytes are something else.
    pub fn of_der(bytes: &[u8]) -> Option<Certificate> {
        let mut certificate = Der(Der(bytes).next_as(SEQUENCE)?);
        let mut fields = Der(certificate.next_as(SEQUENCE)?);
        if fields.peek() == Some(VERSION) {
            fields.next()?;
        }
        let (_serial, _algorithm, _issuer) = (fields.next()?, fields.next()?, fields.next()?);
        let mut validity = Der(fields.next_as(SEQUENCE)?);
        let (from, until) = (validity.time()?, validity.time()?);
        let subject = common_name(fields.next_as(SEQUENCE)?);
        let _key = fields.next()?;
        let mut names = Vec::new();
        while !fields.0.is_empty() {
            if let (EXTENSIONS, extensions) = fields.next()? {
                names = alternative_names(extensions)?;
            }
        }
        Some(Certificate {
            subject,
            names,
            from,
            until,
        })
    }

    /// Its validity at a time, in seconds since 1970 (UTC). Both ends of the period count as valid.
    pub fn standing(&self, now: i64) -> Standing {
        if now < self.from {
            return Standing::NotYetValid;
        }
        if now > self.until {
            return Standing::Expired;
        }
        match u32::try_from((self.until - now) / 86_400) {
            Ok(days) if days < ENDS_SOON_DAYS => Standing::EndsSoon { days },
            _ => Standing::Valid,
        }
    }
}

/// The common name of a subject; the last one, which is the most specific.
fn common_name(subject: &[u8]) -> Option<String> {
    let mut sets = Der(subject);
    let mut found = None;
    while let Some((_, set)) = sets.next() {
        let mut pair = Der(Der(set).next_as(SEQUENCE)?);
        if pair.next_as(OBJECT)? == COMMON_NAME {
            found = Some(printable(pair.next()?.1));
        }
    }
    found
}

fn alternative_names(extensions: &[u8]) -> Option<Vec<String>> {
    let mut list = Der(Der(extensions).next_as(SEQUENCE)?);
    let mut names = Vec::new();
    while !list.0.is_empty() {
        let mut extension = Der(list.next_as(SEQUENCE)?);
        if extension.next_as(OBJECT)? != ALTERNATIVE_NAMES {
            continue;
        }
        let (mut tag, mut value) = extension.next()?;
        // The flag whether it is critical may come first.
        if tag != OCTETS {
            (tag, value) = extension.next()?;
        }
        let mut general = Der(Der((tag == OCTETS).then_some(value)?).next_as(SEQUENCE)?);
        while !general.0.is_empty() {
            let (tag, value) = general.next()?;
            names.extend(name(tag, value));
        }
    }
    Some(names)
}

/// The name of a host; other kinds of names are ignored.
fn name(tag: u8, value: &[u8]) -> Option<String> {
    match (tag, value.len()) {
        (DNS_NAME, _) => Some(printable(value)),
        (IP_ADDRESS, 4) => <[u8; 4]>::try_from(value)
            .ok()
            .map(|bytes| Ipv4Addr::from(bytes).to_string()),
        (IP_ADDRESS, 16) => <[u8; 16]>::try_from(value)
            .ok()
            .map(|bytes| Ipv6Addr::from(bytes).to_string()),
        _ => None,
    }
}

/// Text of an untrusted file, without terminal control characters.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.escape_debug().to_string()
}

/// Values of ASN.1 in DER, one after the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The tag and the content of the next value.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match usize::from(first) {
            short if short < 0x80 => (short, rest),
            // The number of bytes of the length; DER has no indefinite lengths.
            long @ 0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(long - 0x80)?;
                let length = digits
                    .iter()
                    .fold(0, |sum, &digit| (sum << 8) | u64::from(digit));
                (usize::try_from(length).ok()?, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    fn next_as(&mut self, wanted: u8) -> Option<&'a [u8]> {
        let (tag, content) = self.next()?;
        (tag == wanted).then_some(content)
    }

    /// A time, as seconds since 1970: `YYMMDDHHMMSSZ`, of 1950 to 2049, or with four digits of the
    /// year.
    fn time(&mut self) -> Option<i64> {
        let (tag, text) = self.next()?;
        let digits = text.strip_suffix(b"Z")?;
        let (year, rest) = match tag {
            UTC_TIME => {
                let (year, rest) = digits.split_at_checked(2)?;
                let year = number(year)?;
                (year + if year < 50 { 2000 } else { 1900 }, rest)
            }
            GENERALIZED_TIME => {
                let (year, rest) = digits.split_at_checked(4)?;
                (number(year)?, rest)
            }
            _ => return None,
        };
        let parts: Option<Vec<i64>> = rest.chunks(2).map(number).collect();
        let &[month, day, hour, minute, second] = parts?.as_slice() else {
            return None;
        };
        let is_time = rest.len() == 10
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second < 61;
        is_time.then(|| seconds_of_day(year, month, day) + hour * 3600 + minute * 60 + second)
    }
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |sum, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        Some(sum * 10 + digit)
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};

    use super::*;

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let names = ["node1.example", "192.0.2.1", "fd00::7"].map(str::to_string);
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn names_and_dates_are_those_that_it_was_made_with() {
        let der = made(|params| {
            params.not_before = date_time_ymd(2026, 11, 28);
            // From 2050 on dates have four digits of the year.
            params.not_after = date_time_ymd(2051, 2, 1);
            params
                .distinguished_name
                .push(DnType::CommonName, "a\u{1b}b");
        });
        let found = Certificate::of_der(&der).unwrap();
        assert_eq!(found.names, ["node1.example", "192.0.2.1", "fd00::7"]);
        assert_eq!(found.subject.as_deref(), Some("a\\u{1b}b"));
        let shown = [found.from, found.until].map(crate::calendar::shown);
        assert_eq!(shown, ["2026-11-28 00:00 UTC", "2051-02-01 00:00 UTC"]);
        for end in 0..der.len() {
            // A certificate that is cut anywhere is invalid.
            assert_eq!(Certificate::of_der(&der[..end]), None, "{end}");
        }
        let old = made(|params| params.not_before = date_time_ymd(1961, 1, 2));
        let from = Certificate::of_der(&old).unwrap().from;
        assert_eq!(crate::calendar::shown(from), "1961-01-02 00:00 UTC");
    }

    #[test]
    fn what_the_dates_mean_depends_on_the_clock() {
        let day = 86_400;
        let certificate = Certificate {
            subject: None,
            names: Vec::new(),
            from: 100 * day,
            until: 200 * day,
        };
        for (now, standing) in [
            (100 * day - 1, Standing::NotYetValid),
            (100 * day, Standing::Valid),
            (170 * day, Standing::Valid),
            (170 * day + 1, Standing::EndsSoon { days: 29 }),
            (200 * day, Standing::EndsSoon { days: 0 }),
            (200 * day + 1, Standing::Expired),
        ] {
            assert_eq!(certificate.standing(now), standing, "{now}");
        }
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn a_file_of_something_else_is_an_error_that_says_so() {
        let none = Certificate::all_of_pem(b"nothing").unwrap_err();
        assert!(none.to_string().contains("no PEM certificate"), "{none}");
        let pem = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let other = Certificate::all_of_pem(pem).unwrap_err();
        assert!(
            other.to_string().contains("number 1 of the file"),
            "{other}"
        );
    }
}
