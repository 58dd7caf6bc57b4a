//! What all processes of a job must have the same, by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many further names a [`Difference`] lists.
const ALSO_MAX: usize = 4;

/// The settings that decide what a job computes, each with a name that its user knows: a flag, a
/// part of the model, what the data holds.
///
/// Processes of one job compare theirs before they train
/// ([`WorkerGroup::agree_on`](crate::WorkerGroup::agree_on)), and a program that resumes compares
/// its own with the one that its checkpoint was made with.
///
/// ```
/// use distribute_core::Configuration;
///
/// let chief = Configuration::new().with("--l2", Some(0)).with("--seed", Some(1));
/// let worker = Configuration::new().with("--l2", Some(0.01)).with("--seed", Some(1));
/// let difference = worker.difference(&chief).unwrap();
/// assert_eq!(
///     difference.between("on worker 1", "on the chief"),
///     "--l2 is 0.01 on worker 1 and 0 on the chief"
/// );
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Names and values, in the order in which they were set.
    settings: Vec<(String, Option<String>)>,
    /// The names of what the others decide.
    #[serde(default)]
    left: Vec<String>,
}

/// The first setting in which two configurations differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// The name of the setting.
    pub name: String,
    /// The value here; `None` if it is not given.
    pub own: Option<String>,
    /// The value there.
    pub other: Option<String>,
    /// The names of further settings that differ.
    pub also: Vec<String>,
}

impl Configuration {
    /// Without settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a setting; `None` is one that was not given. Of two with one name the later counts.
    #[must_use]
    pub fn with(mut self, name: &str, value: Option<impl fmt::Display>) -> Self {
        self.set(name, value);
        self
    }

    /// As [`with`](Self::with).
    pub fn set(&mut self, name: &str, value: Option<impl fmt::Display>) {
        let value = value.map(|value| value.to_string());
        self.left.retain(|left| left != name);
        match self.settings.iter_mut().find(|(known, _)| known == name) {
            Some((_, place)) => *place = value,
            None => self.settings.push((name.to_string(), value)),
        }
    }

    /// Leaves a setting to the others: whatever they have is no difference. This is for what one
    /// process decides and the others get from it.
    pub fn leave(&mut self, name: &str) {
        self.settings.retain(|(known, _)| known != name);
        if !self.is_left(name) {
            self.left.push(name.to_string());
        }
    }

    /// Whether a setting was [left](Self::leave) to the others.
    pub fn is_left(&self, name: &str) -> bool {
        self.left.iter().any(|left| left == name)
    }

    /// The names of what was [left](Self::leave) to the others.
    pub fn left(&self) -> impl Iterator<Item = &str> {
        self.left.iter().map(String::as_str)
    }

    /// Adds all settings of another configuration, and leaves what it leaves.
    pub fn extend(&mut self, other: &Self) {
        for (name, value) in other.iter() {
            self.set(name, value);
        }
        for name in other.left() {
            self.leave(name);
        }
    }

    /// Names and values, in the order in which they were set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let settings = self.settings.iter();
        settings.map(|(name, value)| (name.as_str(), value.as_deref()))
    }

    /// The value of a setting: `None` without such a setting, `Some(None)` if it was not given.
    pub fn get(&self, name: &str) -> Option<Option<&str>> {
        let mut settings = self.iter();
        settings.find(|(known, _)| *known == name).map(|it| it.1)
    }

    /// The first setting of either that the other one has not, or has otherwise. Its own order
    /// decides which is the first.
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let theirs = other.iter().filter(|(name, _)| self.get(name).is_none());
        let names = self.iter().chain(theirs).map(|(name, _)| name);
        self.compare(other, names)
    }

    /// As [`difference`](Self::difference), of the settings that both have: an older
    /// program may have fewer.
    pub fn difference_of_common(&self, other: &Self) -> Option<Difference> {
        let names = self.iter().map(|(name, _)| name);
        self.compare(other, names.filter(|name| other.get(name).is_some()))
    }

    fn compare<'a>(
        &self,
        other: &Self,
        names: impl Iterator<Item = &'a str>,
    ) -> Option<Difference> {
        let value = |of: &Self, name| of.get(name).flatten().map(str::to_string);
        let is_left = |name: &str| self.is_left(name) || other.is_left(name);
        let mut differing =
            names.filter(|name| !is_left(name) && self.get(name) != other.get(name));
        let first = differing.next()?;
        Some(Difference {
            name: first.to_string(),
            own: value(self, first),
            other: value(other, first),
            also: differing.map(str::to_string).collect(),
        })
    }
}

impl Difference {
    /// The difference in words, without a full stop; `own` and `other` say where each value is.
    pub fn between(&self, own: &str, other: &str) -> String {
        let values = [&self.own, &self.other];
        let [here, there] = values.map(|value| value.as_deref().unwrap_or("not given"));
        let said = format!("{} is {here} {own} and {there} {other}", self.name);
        let listed = self
            .also
            .iter()
            .take(ALSO_MAX)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        match self.also.len() {
            0 => said,
            count if count > ALSO_MAX => {
                format!("{said} ({listed} and {} more differ too)", count - ALSO_MAX)
            }
            _ => format!("{said} (also different: {listed})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(values: &[(&str, Option<&str>)]) -> Configuration {
        let settings = values.iter();
        settings.fold(Configuration::new(), |all, (name, value)| {
            all.with(name, *value)
        })
    }

    #[test]
    fn equal_ones_do_not_differ_whatever_their_order() {
        let one = configuration(&[("a", Some("1")), ("b", None)]);
        let other = configuration(&[("b", None), ("a", Some("1"))]);
        assert_eq!(one.difference(&other), None);
        assert_eq!(one.difference(&one.clone().with("a", Some(1))), None);
    }

    #[test]
    fn a_difference_names_both_values_and_what_else_differs() {
        let one = configuration(&[("a", Some("1")), ("b", None), ("c", Some("x"))]);
        let other = configuration(&[("a", Some("1")), ("b", Some("2")), ("d", None)]);
        let difference = one.difference(&other).unwrap();
        assert_eq!(
            difference.between("here", "there"),
            "b is not given here and 2 there (also different: c, d)"
        );
        let common = one.difference_of_common(&other).unwrap();
        assert_eq!(
            common.between("here", "there"),
            "b is not given here and 2 there"
        );
    }

    #[test]
    fn what_is_left_to_the_others_is_no_difference_on_either_side() {
        let chief = configuration(&[("a", Some("1")), ("b", Some("2"))]);
        let mut worker = chief.clone().with("a", Some("other"));
        worker.leave("a");
        assert_eq!(worker.difference(&chief), None);
        assert_eq!(chief.difference(&worker), None);
        assert_eq!(worker.get("a"), None);
        let mut extended = configuration(&[("a", Some("3"))]);
        extended.extend(&worker);
        assert_eq!(extended.difference(&chief), None);
        // What is set again is compared again.
        extended.set("a", Some("3"));
        assert_eq!(extended.difference(&chief).unwrap().name, "a");
        worker.set("b", Some("3"));
        assert_eq!(worker.difference(&chief).unwrap().name, "b");
    }

    #[test]
    fn many_differences_are_counted() {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let all = |value: &str| names.map(|name| (name, Some(value.to_string())));
        let of = |values: [(&str, Option<String>); 7]| {
            let values = values.into_iter();
            values.fold(Configuration::new(), |all, (name, value)| {
                all.with(name, value)
            })
        };
        let difference = of(all("1")).difference(&of(all("2"))).unwrap();
        assert_eq!(
            difference.between("here", "there"),
            "a is 1 here and 2 there (b, c, d, e and 2 more differ too)"
        );
    }
}
