//! Where variables come from: the process, or a map in a test.

use std::collections::BTreeMap;
use std::env::{self, VarError};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::sync::Arc;

use super::{ClusterError, DEFAULT_PORT, Result};

/// A set of environment variables.
///
/// Resolvers read them at each access, so that a change is seen, as in TensorFlow.
pub trait Environment: Send + Sync {
    /// The value of a variable; `None` if it is not set.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NotUnicode`] if the value is not valid UTF-8.
    fn var(&self, name: &str) -> Result<Option<String>>;

    /// The text of the file that a variable names, if it has at most `bytes_max` bytes.
    /// [`ProcessEnvironment`] reads it from the file system, which may block; an environment
    /// without this method, such as a map in a test, has no files.
    ///
    /// # Errors
    ///
    /// [`ClusterError::UnreadableFile`] if there is no such file, or it is longer.
    fn file(&self, path: &str, bytes_max: usize) -> Result<String> {
        let _unused = bytes_max;
        Err(ClusterError::unreadable(
            path,
            "this environment has no files",
        ))
    }
}

/// The variables of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn var(&self, name: &str) -> Result<Option<String>> {
        match env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(ClusterError::NotUnicode {
                variable: name.to_string(),
            }),
        }
    }

    fn file(&self, path: &str, bytes_max: usize) -> Result<String> {
        read(path, bytes_max).map_err(|error| ClusterError::unreadable(path, error))
    }
}

/// Reads a regular file: the end of another one may never come.
fn read(path: &str, bytes_max: usize) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    let most = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    let mut file = File::open(path)?.take(most.saturating_add(1));
    file.read_to_string(&mut text)?;
    if text.len() > bytes_max {
        let why = format!("it has more than {bytes_max} bytes");
        return Err(io::Error::other(why));
    }
    Ok(text)
}

impl Environment for BTreeMap<String, String> {
    fn var(&self, name: &str) -> Result<Option<String>> {
        Ok(self.get(name).cloned())
    }
}

impl<E: Environment + ?Sized> Environment for Arc<E> {
    fn var(&self, name: &str) -> Result<Option<String>> {
        (**self).var(name)
    }

    fn file(&self, path: &str, bytes_max: usize) -> Result<String> {
        (**self).file(path, bytes_max)
    }
}

/// Variables that resolvers share.
#[derive(Clone)]
pub(super) struct Variables(Arc<dyn Environment>);

impl Environment for Variables {
    fn var(&self, name: &str) -> Result<Option<String>> {
        self.0.var(name)
    }

    fn file(&self, path: &str, bytes_max: usize) -> Result<String> {
        self.0.file(path, bytes_max)
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}

impl Variables {
    pub(super) fn new(env: impl Environment + 'static) -> Self {
        Self(Arc::new(env))
    }

    /// The first of these variables that is set, with its name.
    fn first(&self, names: &[&'static str]) -> Result<Option<(&'static str, String)>> {
        for &name in names {
            if let Some(value) = self.var(name)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }

    /// The value of the first of these variables that is set, or an error that says what to do.
    pub(super) fn require(&self, names: &[&'static str], hint: &'static str) -> Result<String> {
        let first = self.first(names)?.map(|(_, value)| value);
        first.ok_or_else(|| ClusterError::missing(names, hint))
    }

    /// A number of at most `max` from the first of these variables that is set.
    pub(super) fn number(&self, names: &[&'static str], max: usize) -> Result<Option<usize>> {
        let Some((name, value)) = self.first(names)? else {
            return Ok(None);
        };
        number_in(name, &value, &value, max).map(Some)
    }

    /// The port in this variable, [`DEFAULT_PORT`] if it is not set.
    pub(super) fn port(&self, name: &'static str) -> Result<u16> {
        let number = self.number(&[name], usize::from(u16::MAX))?;
        if number == Some(0) {
            let why = "0 is no port to meet at: choose one from 1 to 65535";
            return Err(ClusterError::invalid_variable(name, "0", why));
        }
        let port = number.and_then(|number| u16::try_from(number).ok());
        Ok(port.unwrap_or(DEFAULT_PORT))
    }

    /// [`Self::number`], or an error that says what to do.
    pub(super) fn require_number(
        &self,
        names: &[&'static str],
        max: usize,
        hint: &'static str,
    ) -> Result<usize> {
        self.number(names, max)?
            .ok_or_else(|| ClusterError::missing(names, hint))
    }

    /// Whether a variable is set (to whatever).
    pub(super) fn has(&self, name: &str) -> bool {
        !matches!(self.var(name), Ok(None))
    }

    /// The variables among `names` that are set, for a description.
    pub(super) fn set_among(&self, names: &[&str]) -> Vec<(String, String)> {
        let set = names.iter().filter_map(|&name| match self.var(name) {
            Ok(value) => Some((name.to_string(), value?)),
            Err(_) => Some((name.to_string(), "(not valid UTF-8)".to_string())),
        });
        set.collect()
    }
}

/// A number of at most `max` in `text`, which is the value of a variable or a part of it.
pub(super) fn number_in(name: &str, value: &str, text: &str, max: usize) -> Result<usize> {
    let invalid = |why: &str| Err(ClusterError::invalid_variable(name, value, why));
    let text = text.trim();
    if !is_digits(text) {
        return invalid("a whole number is needed");
    }
    match text.parse().unwrap_or(usize::MAX) {
        number if number > max => invalid(&format!("at most {max} is allowed")),
        number => Ok(number),
    }
}

/// Whether text is a number without a sign.
pub(super) fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
