//! The hosts of the certificates.

use std::net::IpAddr;

/// The longest name of a host, and of a part of it between dots (RFC 1035).
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;
/// The files next to the folders of the hosts.
const RESERVED: [&str; 2] = ["token", "ca.pem"];

/// The names and addresses for certificates, without surrounding blanks and without the brackets of
/// an IPv6 address.
///
/// # Errors
/// For the first invalid name, with advice.
pub(super) fn checked(hosts: &[String]) -> Result<Vec<String>, String> {
    let mut all: Vec<String> = Vec::with_capacity(hosts.len());
    for given in hosts {
        let host = host(given.trim())?;
        if all.iter().any(|other| other.eq_ignore_ascii_case(&host)) {
            return Err(format!("{host} is named twice; name each host once"));
        }
        let own = folder(&host);
        let taken = |other: &&String| folder(other).eq_ignore_ascii_case(&own);
        if let Some(other) = all.iter().find(taken) {
            return Err(format!("{other} and {host} would have the same folder"));
        }
        all.push(host);
    }
    Ok(all)
}

/// The name of a host's folder.
pub(super) fn folder(host: &str) -> String {
    host.replace(':', "_")
}

fn host(given: &str) -> Result<String, String> {
    if given.is_empty() {
        return Err(
            "a name is empty: write names or IP addresses with one comma between".to_string(),
        );
    }
    let inside = given.strip_prefix('[');
    let (inside, after) = match inside.map(|rest| rest.split_once(']')) {
        Some(Some((inside, after))) => (inside, after),
        Some(None) => return Err(format!("`{given}` lacks a closing bracket")),
        None => (given, ""),
    };
    if let Ok(address) = inside.parse::<IpAddr>() {
        return match after {
            "" => Ok(address.to_string()),
            _ => Err(with_port(given, &address.to_string())),
        };
    }
    if let Some((name, port)) = given.rsplit_once(':')
        && !port.is_empty()
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && !name.contains(':')
    {
        return Err(with_port(given, name));
    }
    // A name may end with a dot, which certificates omit.
    let name = given.strip_suffix('.').unwrap_or(given);
    let problem = problem(name);
    problem.map_or_else(
        || Ok(name.to_string()),
        |what| {
            Err(format!(
                "`{given}` is neither the name of a host nor an IP address: {what}"
            ))
        },
    )
}

fn with_port(given: &str, host: &str) -> String {
    format!("`{given}` has a port: certificates are for hosts, whatever the port; write {host}")
}

/// Why a text is not a valid host name.
fn problem(name: &str) -> Option<String> {
    let is_known = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if let Some(letter) = name.chars().find(|letter| !is_known(*letter)) {
        return Some(match letter {
            ' ' => "it has a blank; write a comma between two hosts".to_string(),
            letter if !letter.is_ascii() => {
                format!("it has the letter {letter}; write it as xn--..., as the DNS has it")
            }
            letter => format!("it has the character {letter:?}"),
        });
    }
    let labels = || name.split('.');
    let last = labels().next_back().unwrap_or_default();
    let what = if name.len() > MAX_NAME || labels().any(|label| label.len() > MAX_LABEL) {
        "it is too long"
    } else if labels().any(str::is_empty) {
        "a part between two dots is empty"
    } else if labels().any(|label| label.starts_with('-') || label.ends_with('-')) {
        "a part begins or ends with a hyphen"
    } else if last.bytes().all(|byte| byte.is_ascii_digit()) {
        "its last part is a number, so it is taken for an address"
    } else if RESERVED
        .iter()
        .any(|reserved| name.eq_ignore_ascii_case(reserved))
    {
        "a file beside the folders of the hosts has this name"
    } else {
        return None;
    };
    Some(what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hosts: &str) -> Result<Vec<String>, String> {
        let hosts: Vec<String> = hosts.split(',').map(str::to_string).collect();
        checked(&hosts)
    }

    #[test]
    fn hosts_are_named_as_certificates_have_them() {
        let given = "node1, node2 ,10.0.0.1,[0:0:0:0:0:0:0:1],fd00::7,node3.cluster.,pod-0.my_svc";
        let wanted = [
            "node1",
            "node2",
            "10.0.0.1",
            "::1",
            "fd00::7",
            "node3.cluster",
            "pod-0.my_svc",
        ];
        assert_eq!(of(given).unwrap(), wanted);
    }

    #[test]
    fn what_is_no_host_is_refused_with_the_way_out() {
        let (long, label) = (["a"; 200].join("."), "a".repeat(64));
        for (given, said) in [
            ("", "a name is empty"),
            ("node1,node2,Node1", "Node1 is named twice"),
            ("node1,node1.", "node1 is named twice"),
            ("::1,[0:0:0:0:0:0:0:1]", "::1 is named twice"),
            ("node1,,node2", "a name is empty"),
            ("node1, ", "a name is empty"),
            (
                "node1:9000",
                "has a port: certificates are for hosts, whatever the port; write node1",
            ),
            ("10.0.0.1:9000", "write 10.0.0.1"),
            ("[::1]:9000", "write ::1"),
            ("[::1", "lacks a closing bracket"),
            ("[node1]", "it has the character '['"),
            ("node 1", "it has a blank; write a comma"),
            ("n\u{f6}de", "write it as xn--"),
            ("fe80::1%eth0", "it has the character ':'"),
            ("../node", "it has the character '/'"),
            ("..", "a part between two dots is empty"),
            (".", "a part between two dots is empty"),
            ("-node", "hyphen"),
            ("10.0.1", "its last part is a number"),
            ("*.cluster", "it has the character '*'"),
            ("token", "a file beside the folders"),
            ("CA.pem", "a file beside the folders"),
            (&long, "too long"),
            (&label, "too long"),
        ] {
            let found = of(given).unwrap_err();
            assert!(found.contains(said), "{given}: {found}");
        }
    }
}
