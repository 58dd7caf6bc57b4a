//! Numbers in JSON, which has no infinity and no NaN.
//!
//! Finite numbers are numbers; the others are the texts `NaN`, `Infinity` and `-Infinity`, as in
//! protobuf's JSON. Older files have `inf` and `-inf`, or `null` in their place: read as NaN,
//! because nothing says which one it was.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

const INFINITY: &str = "Infinity";
const MINUS_INFINITY: &str = "-Infinity";
const NAN: &str = "NaN";

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
    match not_finite(value) {
        Some(text) => Value::from(text),
        None => Value::from(value),
    }
}

fn not_finite(value: f64) -> Option<&'static str> {
    match value {
        value if value.is_nan() => Some(NAN),
        f64::INFINITY => Some(INFINITY),
        f64::NEG_INFINITY => Some(MINUS_INFINITY),
        _ => None,
    }
}

/// A number that keeps its value in JSON.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exact(pub(super) f64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Number(f64),
    Text(String),
    Null(()),
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match not_finite(self.0) {
            Some(text) => to.serialize_str(text),
            None => to.serialize_f64(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Stored::deserialize(from)? {
            Stored::Number(value) => Ok(Self(value)),
            Stored::Null(()) => Ok(Self(f64::NAN)),
            Stored::Text(text) => match text.as_str() {
                NAN => Ok(Self(f64::NAN)),
                INFINITY | "inf" => Ok(Self(f64::INFINITY)),
                MINUS_INFINITY | "-inf" => Ok(Self(f64::NEG_INFINITY)),
                _ => Err(serde::de::Error::custom(format!("`{text}` is no number"))),
            },
        }
    }
}

pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    Exact(*value).serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Exact::deserialize(from).map(|value| value.0)
}

/// A number that there may not be: `null` is none.
pub(super) mod option {
    use super::{Deserialize, Deserializer, Exact, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        value.map(Exact).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        let value = Option::<Exact>::deserialize(from)?;
        Ok(value.map(|value| value.0))
    }
}

/// Names with two numbers each.
pub(super) mod named {
    use super::{Deserialize, Deserializer, Exact, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        values: &[(String, f64, f64)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let values = values.iter();
        to.collect_seq(values.map(|(name, sum, count)| (name, Exact(*sum), Exact(*count))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(String, f64, f64)>, D::Error> {
        let values = Vec::<(String, Exact, Exact)>::deserialize(from)?;
        let values = values.into_iter();
        Ok(values
            .map(|(name, sum, count)| (name, sum.0, count.0))
            .collect())
    }
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
