//! Numbers in JSON, which has no infinity and no NaN.
//!
//! Finite numbers are numbers; the others are the texts `NaN`, `inf` and `-inf`. Older files have
//! `null` in their place: read as NaN, because nothing says which one it was.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

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
        match self.0 {
            value if value.is_finite() => to.serialize_f64(value),
            value => to.collect_str(&value),
        }
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Stored::deserialize(from)? {
            Stored::Number(value) => Ok(Self(value)),
            Stored::Null(()) => Ok(Self(f64::NAN)),
            Stored::Text(text) => match text.as_str() {
                "NaN" => Ok(Self(f64::NAN)),
                "inf" => Ok(Self(f64::INFINITY)),
                "-inf" => Ok(Self(f64::NEG_INFINITY)),
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

    pub(in crate::fit) fn serialize<S: Serializer>(
        value: &Option<f64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(Exact).serialize(to)
    }

    pub(in crate::fit) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<f64>, D::Error> {
        let value = Option::<Exact>::deserialize(from)?;
        Ok(value.map(|value| value.0))
    }
}

/// Names with two numbers each.
pub(super) mod named {
    use super::{Deserialize, Deserializer, Exact, Serializer};

    pub(in crate::fit) fn serialize<S: Serializer>(
        values: &[(String, f64, f64)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let values = values.iter();
        to.collect_seq(values.map(|(name, sum, count)| (name, Exact(*sum), Exact(*count))))
    }

    pub(in crate::fit) fn deserialize<'de, D: Deserializer<'de>>(
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
        }
        for text in ["null", "\"NaN\""] {
            assert!(serde_json::from_str::<Exact>(text).unwrap().0.is_nan());
        }
        assert_eq!(serde_json::from_str::<Exact>("3").unwrap().0, 3.0);
        assert!(serde_json::from_str::<Exact>("\"three\"").is_err());
    }
}
