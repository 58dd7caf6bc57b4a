//! Numbers in JSON, which has no infinity and no NaN.
//!
//! Finite numbers are numbers; the others are the texts `NaN`, `Infinity` and `-Infinity`, as in
//! protobuf's JSON. Older files have `inf` and `-inf`, or `null` in their place: read as NaN,
//! because nothing says which one it was.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A number as JSON, which has no infinity and no NaN: those are the texts `Infinity`, `-Infinity`
/// and `NaN`. Rust's `parse`, Python's `float` and JavaScript's `Number` read them.
///
/// ```
/// use distribute_fit::json_number;
///
/// assert_eq!(json_number(0.5).to_string(), "0.5");
/// assert_eq!(json_number(f64::INFINITY).to_string(), "\"Infinity\"");
/// let text = json_number(f64::NAN);
/// assert!(text.as_str().unwrap().parse::<f64>().unwrap().is_nan());
/// ```
pub fn json_number(value: f64) -> Value {
    match value {
        value if value.is_nan() => Value::from("NaN"),
        f64::INFINITY => Value::from("Infinity"),
        f64::NEG_INFINITY => Value::from("-Infinity"),
        _ => Value::from(value),
    }
}

/// A number that keeps its value in JSON.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Exact(pub(super) f64);

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        json_number(self.0).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let number = match &value {
            Value::Null => Some(f64::NAN),
            // What is finite is no text.
            Value::String(text) => text.parse().ok().filter(|number: &f64| !number.is_finite()),
            value => value.as_f64(),
        };
        let wrong = || serde::de::Error::custom(format!("`{value}` is no number"));
        number.map(Self).ok_or_else(wrong)
    }
}

pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    Exact(*value).serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Exact::deserialize(from).map(|value| value.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back_and_old_nulls_are_nan() {
        for value in [
            0.1,
            -0.0,
            f64::MAX,
            f64::MIN_POSITIVE,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ] {
            let text = serde_json::to_string(&Exact(value)).unwrap();
            let read: Exact = serde_json::from_str(&text).unwrap();
            assert_eq!(read.0.to_bits(), value.to_bits(), "{text}");
            assert_eq!(json_number(value).to_string(), text);
        }
        for (text, value) in [("\"inf\"", f64::INFINITY), ("\"-inf\"", f64::NEG_INFINITY)] {
            let old: Exact = serde_json::from_str(text).unwrap();
            assert_eq!(old.0, value);
        }
        for text in ["null", "\"NaN\""] {
            assert!(serde_json::from_str::<Exact>(text).unwrap().0.is_nan());
        }
        assert_eq!(serde_json::from_str::<Exact>("3").unwrap().0, 3.0);
        assert!(serde_json::from_str::<Exact>("\"three\"").is_err());
    }
}
