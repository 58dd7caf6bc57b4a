//! JSON with the conversions that Python's `json`, `str`, `int` and `in` make of it, because the
//! meaning of `TF_CONFIG` is what TensorFlow's Python code makes of it.

use std::fmt::{self, Write};

use indexmap::IndexMap;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::environment::is_digits;
use super::error::shortened;
use super::{ClusterError, MAX_TASKS, Result};

/// Room for as many tasks as there may be: an index, the longest name that DNS allows (253 bytes),
/// a port and what JSON puts between them. So what a cluster is written as can be read.
pub(super) const MAX_BYTES: usize = MAX_TASKS * 288;

/// A JSON value; objects keep the order of their keys, as in Python.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(IndexMap<String, Json>),
}

impl Json {
    /// Parses text; `what` names it in errors.
    pub(super) fn parse(what: &str, text: &str) -> Result<Self> {
        ClusterError::check_limit(text.len(), MAX_BYTES, format!("bytes in {what}"))?;
        serde_json::from_str(text).map_err(|error| ClusterError::Json {
            what: what.to_string(),
            why: error.to_string(),
        })
    }

    /// What kind of value this is, in words.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    /// Python's `self[key] if key in self else None`: a list or a string without the key in it
    /// counts as having no such entry, everything else that is no object is an error.
    pub(super) fn get(&self, what: &str, key: &str) -> Result<Option<&Self>> {
        let fails = match self {
            Self::Object(entries) => return Ok(entries.get(key)),
            Self::List(items) => items
                .iter()
                .any(|item| matches!(item, Self::Text(text) if text == key)),
            Self::Text(text) => text.contains(key),
            _ => true,
        };
        if fails {
            let (what, found) = (what.to_string(), self.kind());
            return Err(ClusterError::NotAnObject { what, found });
        }
        Ok(None)
    }

    /// A string, or nothing for `null`.
    pub(super) fn optional_text(&self, what: &str) -> Result<Option<String>> {
        match self {
            Self::Null => Ok(None),
            Self::Text(text) => Ok(Some(text.clone())),
            other => Err(ClusterError::NotAString {
                what: what.to_string(),
                found: other.kind(),
            }),
        }
    }

    /// Python's `int(self)`.
    pub(super) fn index(&self, what: &str) -> Result<i64> {
        match self {
            Self::Int(number) => Ok(*number),
            Self::Bool(flag) => Ok(i64::from(*flag)),
            Self::Float(number) => truncated(*number)
                .ok_or_else(|| ClusterError::invalid_index(what, number.to_string())),
            Self::Text(text) => parse_index(what, text),
            other => Err(ClusterError::IndexType {
                what: what.to_string(),
                found: other.kind(),
            }),
        }
    }

    /// Python's `str(self)`.
    pub(super) fn python_str(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            other => format!("{:?}", Repr(other)),
        }
    }
}

/// Reads a task index as TensorFlow does (Python's `int`): blanks around it, a sign and single
/// underscores between digits are allowed.
///
/// # Errors
///
/// [`ClusterError::InvalidIndex`] for other text, and for numbers beyond 64 bits.
pub fn parse_task_index(text: &str) -> Result<i64> {
    parse_index("task index", text)
}

pub(super) fn parse_index(what: &str, text: &str) -> Result<i64> {
    let trimmed = text.trim();
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    let is_index = digits.split('_').all(is_digits);
    let index = trimmed.replace('_', "").parse().ok().filter(|_| is_index);
    index.ok_or_else(|| ClusterError::invalid_index(what, shortened(text)))
}

/// The whole part, if it fits.
fn truncated(number: f64) -> Option<i64> {
    const LIMIT: f64 = 9_007_199_254_740_992.0; // 2^53: beyond it indices are not exact
    (number.abs() <= LIMIT).then_some(number.trunc() as i64)
}

/// A float as Python writes it: exponents have a sign and two digits.
fn python_float(number: f64) -> String {
    let text = format!("{number:?}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    match exponent.strip_prefix('-') {
        Some(digits) => format!("{mantissa}e-{digits:0>2}"),
        None => format!("{mantissa}e+{exponent:0>2}"),
    }
}

/// Something whose `Debug` form is what Python's `repr` writes. Lists and maps have the same form
/// in Rust.
pub(super) struct Repr<'a, T>(pub(super) &'a T);

impl fmt::Debug for Repr<'_, Json> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Json::Null => f.write_str("None"),
            Json::Bool(true) => f.write_str("True"),
            Json::Bool(false) => f.write_str("False"),
            Json::Int(number) => write!(f, "{number}"),
            Json::Float(number) => f.write_str(&python_float(*number)),
            Json::Text(text) => fmt::Debug::fmt(&Repr(text), f),
            Json::List(items) => f.debug_list().entries(items.iter().map(Repr)).finish(),
            Json::Object(entries) => {
                let entries = entries.iter().map(|(key, value)| (Repr(key), Repr(value)));
                f.debug_map().entries(entries).finish()
            }
        }
    }
}

/// In single quotes, unless that needs more escapes.
impl fmt::Debug for Repr<'_, String> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.0.contains('\'') && !self.0.contains('"') {
            '"'
        } else {
            '\''
        };
        f.write_char(quote)?;
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\"),
                '\n' => f.write_str("\\n"),
                '\r' => f.write_str("\\r"),
                '\t' => f.write_str("\\t"),
                c if c == quote => write!(f, "\\{c}"),
                c if c.is_control() => write!(f, "\\x{:02x}", u32::from(c)),
                c => f.write_char(c),
            }?;
        }
        f.write_char(quote)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(i64::try_from(value).map_or(Json::Float(value as f64), Json::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Json, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(items)).map(Json::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        // Of equal keys the first gives the place and the last the value, as in a Python dict.
        let mut entries = IndexMap::new();
        while let Some((key, value)) = map.next_entry()? {
            entries.insert(key, value);
        }
        Ok(Json::Object(entries))
    }
}
