//! Where variables come from: the process, or a map in a test.

use std::collections::{BTreeMap, HashMap};
use std::env::{self, VarError};
use std::fmt;
use std::sync::Arc;

use super::ClusterError;

/// A set of environment variables.
///
/// Resolvers read them at each access, so that a change is seen, as in TensorFlow.
pub trait Environment: Send + Sync {
    /// The value of a variable; `None` if it is not set.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NotUnicode`] if the value is not valid UTF-8.
    fn var(&self, name: &str) -> Result<Option<String>, ClusterError>;
}

/// The variables of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn var(&self, name: &str) -> Result<Option<String>, ClusterError> {
        match env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(ClusterError::NotUnicode {
                variable: name.to_string(),
            }),
        }
    }
}

impl Environment for BTreeMap<String, String> {
    fn var(&self, name: &str) -> Result<Option<String>, ClusterError> {
        Ok(self.get(name).cloned())
    }
}

impl Environment for HashMap<String, String> {
    fn var(&self, name: &str) -> Result<Option<String>, ClusterError> {
        Ok(self.get(name).cloned())
    }
}

impl<E: Environment + ?Sized> Environment for Arc<E> {
    fn var(&self, name: &str) -> Result<Option<String>, ClusterError> {
        (**self).var(name)
    }
}

/// Variables that resolvers share.
#[derive(Clone)]
pub(super) struct Variables(Arc<dyn Environment>);

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}

impl Variables {
    pub(super) fn new(env: impl Environment + 'static) -> Self {
        Self(Arc::new(env))
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<String>, ClusterError> {
        self.0.var(name)
    }

    /// The first of these variables that is set, with its name.
    pub(super) fn first(
        &self,
        names: &[&'static str],
    ) -> Result<Option<(&'static str, String)>, ClusterError> {
        for &name in names {
            if let Some(value) = self.get(name)? {
                return Ok(Some((name, value)));
            }
        }
        Ok(None)
    }

    /// [`Self::first`], or an error that says what to do.
    pub(super) fn require(
        &self,
        names: &[&'static str],
        hint: &'static str,
    ) -> Result<(&'static str, String), ClusterError> {
        self.first(names)?
            .ok_or_else(|| ClusterError::MissingVariable {
                variables: names.join(" or "),
                hint,
            })
    }

    /// A number of at most `max` from the first of these variables that is set.
    pub(super) fn number(
        &self,
        names: &[&'static str],
        max: usize,
    ) -> Result<Option<usize>, ClusterError> {
        let Some((name, value)) = self.first(names)? else {
            return Ok(None);
        };
        parse_number(name, &value, max).map(Some)
    }

    /// [`Self::number`], or an error that says what to do.
    pub(super) fn require_number(
        &self,
        names: &[&'static str],
        max: usize,
        hint: &'static str,
    ) -> Result<usize, ClusterError> {
        let (name, value) = self.require(names, hint)?;
        parse_number(name, &value, max)
    }

    /// Whether a variable is set (to whatever).
    pub(super) fn has(&self, name: &str) -> bool {
        !matches!(self.get(name), Ok(None))
    }

    /// The variables among `names` that are set, for a description.
    pub(super) fn set_among(&self, names: &[&str]) -> Vec<(String, String)> {
        let set = names.iter().filter_map(|&name| match self.get(name) {
            Ok(value) => Some((name.to_string(), value?)),
            Err(_) => Some((name.to_string(), "(not valid UTF-8)".to_string())),
        });
        set.collect()
    }
}

fn parse_number(variable: &str, value: &str, max: usize) -> Result<usize, ClusterError> {
    let text = value.trim();
    let invalid = |why: String| ClusterError::InvalidVariable {
        variable: variable.to_string(),
        value: shortened(value),
        why,
    };
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid("a whole number is needed".to_string()));
    }
    let number = text.parse().unwrap_or(usize::MAX);
    if number > max {
        return Err(invalid(format!("at most {max} is allowed")));
    }
    Ok(number)
}

/// Text that is short enough for an error message.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 120;
    if text.chars().count() <= MOST {
        return text.to_string();
    }
    let start: String = text.chars().take(MOST).collect();
    format!("{start}... ({} bytes)", text.len())
}
