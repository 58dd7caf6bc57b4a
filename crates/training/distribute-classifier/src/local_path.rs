//! Paths of local files: URLs are refused, and a leading `~` is the home folder.

use std::env;
use std::path::{Path, PathBuf};

/// The path of a local file or folder, with the home folder in place of `~`: a shell expands `~`
/// only at the beginning of a word, and never in a file.
///
/// # Errors
/// What is wrong with the text, and what to write instead: an address of another machine
/// (`s3://bucket`), or the home folder of another user (`~user`).
pub fn local_path(path: PathBuf) -> Result<PathBuf, String> {
    let Some(text) = path.to_str() else {
        return Ok(path);
    };
    if let Some(scheme) = scheme(text) {
        return Err(match (scheme, text.split_once("///")) {
            ("file", Some((_, rest))) => {
                format!("that is an address; give the path alone: /{rest}")
            }
            ("file", None) => "that is an address; give the path alone".to_string(),
            _ => format!(
                "{scheme}:// is an address, and files of this machine are read and written: copy \
                 it here, or mount it and give the path of that"
            ),
        });
    }
    let Some(after) = text.strip_prefix('~') else {
        return Ok(path);
    };
    match after.strip_prefix('/') {
        Some(rest) => Ok(home()?.join(rest.trim_start_matches('/'))),
        None if after.is_empty() => home(),
        None if path.exists() => Ok(path),
        None => Err(format!(
            "the home folder of another user is not looked up; write the whole path, or ./{text} \
             for a file of this name"
        )),
    }
}

fn home() -> Result<PathBuf, String> {
    let home = env::home_dir().filter(|home| home.is_absolute());
    home.filter(|home| home != Path::new("")).ok_or_else(|| {
        "~ is the home folder, and HOME does not name any; write the whole path".to_string()
    })
}

/// The scheme of a URL, such as s3 in `s3://bucket`.
fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter));
    is_scheme.then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_no_path() {
        for address in [
            "s3://b/x",
            "gs://b",
            "hdfs://n:1/x",
            "http://h/a.csv",
            "abfss://c@a/x",
        ] {
            let error = local_path(address.into()).unwrap_err();
            assert!(
                error.contains("is an address") && error.contains("mount it"),
                "{error}"
            );
        }
        let error = local_path("file:///data/a.csv".into()).unwrap_err();
        assert!(
            error.ends_with("give the path alone: /data/a.csv"),
            "{error}"
        );
        local_path("file://data".into()).unwrap_err();
        for path in [
            "./s3://b", "a/b", "s3:/b", "://x", "1s://x", "a b://c", "", "/x//y",
        ] {
            assert_eq!(local_path(path.into()).unwrap(), PathBuf::from(path));
        }
    }

    #[test]
    fn home_is_where_a_shell_finds_it() {
        let home = home().unwrap();
        assert_eq!(local_path("~".into()).unwrap(), home);
        assert_eq!(local_path("~/a/b".into()).unwrap(), home.join("a/b"));
        assert_eq!(local_path("~//a".into()).unwrap(), home.join("a"));
        assert_eq!(local_path("a/~".into()).unwrap(), PathBuf::from("a/~"));
        assert_eq!(local_path("./~/a".into()).unwrap(), PathBuf::from("./~/a"));
        let error = local_path("~other/a".into()).unwrap_err();
        assert!(error.contains("./~other/a"), "{error}");
    }
}
