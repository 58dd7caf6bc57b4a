//! Reading fields of a case.

use serde_json::Value;

use crate::outcome::Failure;

/// A field that the schema promises.
pub(crate) trait Fields {
    fn list(&self, key: &str) -> Result<&Vec<Value>, Failure>;
    fn text(&self, key: &str) -> Result<&str, Failure>;
    fn count(&self, key: &str) -> Result<usize, Failure>;
    fn float(&self, key: &str) -> Result<f64, Failure>;
    fn flag(&self, key: &str) -> Result<bool, Failure>;
    fn field(&self, key: &str) -> Result<&Value, Failure>;
}

impl Fields for Value {
    fn list(&self, key: &str) -> Result<&Vec<Value>, Failure> {
        self[key].as_array().ok_or_else(|| missing(key, "a list"))
    }

    fn text(&self, key: &str) -> Result<&str, Failure> {
        self[key].as_str().ok_or_else(|| missing(key, "a text"))
    }

    fn count(&self, key: &str) -> Result<usize, Failure> {
        count(&self[key]).ok_or_else(|| missing(key, "a count"))
    }

    fn float(&self, key: &str) -> Result<f64, Failure> {
        self[key].as_f64().ok_or_else(|| missing(key, "a number"))
    }

    fn flag(&self, key: &str) -> Result<bool, Failure> {
        self[key]
            .as_bool()
            .ok_or_else(|| missing(key, "true or false"))
    }

    fn field(&self, key: &str) -> Result<&Value, Failure> {
        self.get(key).ok_or_else(|| missing(key, "something"))
    }
}

fn missing(key: &str, kind: &str) -> Failure {
    Failure::schema(format!("`{key}` is not {kind}"))
}

/// A number of things.
pub(crate) fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// Every list entry as a count.
pub(crate) fn counts(value: &Value) -> Option<Vec<usize>> {
    value.as_array()?.iter().map(count).collect()
}

/// The numbers in a text, in order: `"fit 4 epochs, begin of epoch 2"` holds 4 and 2. A minus or a
/// point belongs to a number if a digit follows it.
pub(crate) fn numbers_in(text: &str) -> Vec<f64> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == '-';
    text.split(|c: char| !is_part(c))
        .filter_map(|word| word.trim_end_matches(['.', '-']).parse().ok())
        .collect()
}

/// As [`numbers_in`], counts only.
pub(crate) fn counts_in(text: &str) -> Vec<usize> {
    numbers_in(text)
        .into_iter()
        .filter(|number| *number >= 0.0 && number.fract() == 0.0)
        .map(|number| number as usize)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{counts_in, numbers_in};

    #[test]
    fn numbers_are_found_between_words() {
        assert_eq!(numbers_in("plain tensor [1.0, -2.5]"), [1.0, -2.5]);
        assert_eq!(numbers_in("v * 2 + 1"), [2.0, 1.0]);
        assert_eq!(
            counts_in("fit 4 epochs, interrupted at the begin of epoch 2."),
            [4, 2]
        );
        assert_eq!(numbers_in("none - at all."), [0.0; 0]);
    }
}
