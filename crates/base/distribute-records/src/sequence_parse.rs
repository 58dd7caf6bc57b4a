//! `tf.io.parse_single_sequence_example`: arrays from a `SequenceExample` message.

use std::collections::BTreeMap;

use crate::parse::{check_default, count};
use crate::strict::{FIRST, Raw, SECOND, Stream};
use crate::{DType, FeatureSpec, ParseError, Parsed, Schema, Values};

/// What a `SequenceExample` holds, as its schemas say.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedSequence {
    /// The features of the whole sequence.
    pub context: BTreeMap<String, Parsed>,
    /// The features over time. A [`FeatureSpec::Sequence`] has a shape whose first axis is the
    /// steps; a [`FeatureSpec::Variable`] has the values of all steps, of which `splits` says where
    /// each begins.
    pub lists: BTreeMap<String, Parsed>,
}

/// Reads the features of two schemas from a `SequenceExample` message, as
/// `tf.io.parse_single_sequence_example`. Of a feature that is there twice the last one counts.
///
/// # Errors
///
/// [`ParseError`]: the first one that is met.
pub fn parse_sequence_example(
    bytes: &[u8],
    context: &Schema,
    lists: &Schema,
) -> Result<ParsedSequence, ParseError> {
    let (mut found_context, mut found_lists) = (BTreeMap::new(), BTreeMap::new());
    split(bytes, &mut found_context, &mut found_lists).ok_or(ParseError::NotASequence)?;
    let of_context = context.0.iter().map(|(key, spec)| {
        let raw = found_context.get(key.as_bytes()).copied();
        Ok((key.clone(), context_feature(key, spec, raw)?))
    });
    let context = of_context.collect::<Result<_, ParseError>>()?;
    let of_lists = lists.0.iter().map(|(key, spec)| {
        let raw = found_lists.get(key.as_bytes()).copied();
        Ok((key.clone(), list(key, spec, raw)?))
    });
    let lists = of_lists.collect::<Result<_, ParseError>>()?;
    Ok(ParsedSequence { context, lists })
}

type Found<'a> = BTreeMap<&'a [u8], Raw<'a>>;

fn split<'a>(bytes: &'a [u8], context: &mut Found<'a>, lists: &mut Found<'a>) -> Option<()> {
    let mut stream = Stream(bytes);
    while !stream.is_at_end() {
        let to = if stream.tag(FIRST) {
            &mut *context
        } else if stream.tag(SECOND) {
            &mut *lists
        } else {
            stream.skip_field()?;
            continue;
        };
        let mut features = stream.limited()?;
        while !features.is_at_end() {
            let mut entry = features.tag(FIRST).then(|| features.limited())??;
            let key = entry.tag(FIRST).then(|| entry.bytes())??;
            let value = entry.tag(SECOND).then(|| entry.bytes())??;
            if !entry.is_at_end() {
                return None;
            }
            to.insert(key, Raw(value));
        }
    }
    Some(())
}

/// Why a feature has no values of a type.
enum Bad {
    /// They have another type.
    Type,
    /// Its bytes are no list.
    Malformed,
}

/// The values of a feature; none if it has no list.
fn values(raw: Raw<'_>, dtype: DType) -> Result<Option<Values>, Bad> {
    match raw.dtype() {
        Ok(None) => Ok(None),
        Ok(Some(found)) if found == dtype => raw.values(dtype).map(Some).ok_or(Bad::Malformed),
        Ok(Some(_)) | Err(_) => Err(Bad::Type),
    }
}

fn context_feature(
    key: &str,
    spec: &FeatureSpec,
    raw: Option<Raw<'_>>,
) -> Result<Parsed, ParseError> {
    let name = || key.to_string();
    let (dtype, fixed) = match spec {
        FeatureSpec::Fixed {
            dtype,
            shape,
            default,
        } => (*dtype, Some((shape, default))),
        FeatureSpec::Variable { dtype } => (*dtype, None),
        FeatureSpec::Sequence { .. } => return Err(ParseError::AllowMissing { key: name() }),
        FeatureSpec::Ragged { .. } => return Err(ParseError::RaggedSequence { key: name() }),
    };
    let found = raw.map_or(Ok(None), |raw| values(raw, dtype));
    let found = found.map_err(|bad| match bad {
        Bad::Type => ParseError::ContextDType {
            key: name(),
            expected: dtype,
        },
        Bad::Malformed => ParseError::Malformed { key: name(), dtype },
    })?;
    let Some((shape, default)) = fixed else {
        return Ok(Parsed::flat(found.unwrap_or(Values::empty(dtype))));
    };
    if let Some(default) = default {
        check_default(key, shape, default)?;
    }
    let found = match (found, default) {
        (None, Some(default)) => default.clone(),
        (found, _) => found.unwrap_or(Values::empty(dtype)),
    };
    if found.len() != count(shape) {
        return Err(ParseError::ContextCount {
            key: name(),
            expected: count(shape),
            found: found.len(),
        });
    }
    Ok(Parsed {
        shape: shape.clone(),
        values: found,
        splits: Vec::new(),
    })
}

fn list(key: &str, spec: &FeatureSpec, raw: Option<Raw<'_>>) -> Result<Parsed, ParseError> {
    let name = || key.to_string();
    let (dtype, shape, may_miss) = match spec {
        FeatureSpec::Variable { dtype } => (*dtype, None, true),
        FeatureSpec::Sequence {
            dtype,
            shape,
            allow_missing,
        } => (*dtype, Some(shape), *allow_missing),
        FeatureSpec::Fixed { dtype, shape, .. } => (*dtype, Some(shape), false),
        FeatureSpec::Ragged { .. } => return Err(ParseError::RaggedSequence { key: name() }),
    };
    let raw = match raw {
        None if !may_miss => return Err(ParseError::MissingList { key: name() }),
        raw => raw.unwrap_or(Raw(&[])),
    };
    let (all, splits) = steps(key, raw, dtype)?;
    let Some(shape) = shape else {
        return Ok(Parsed {
            shape: vec![splits.len() - 1],
            values: all,
            splits: vec![splits],
        });
    };
    let stride = count(shape);
    if stride == 0 || all.len() % stride != 0 {
        return Err(ParseError::ListTotal {
            key: name(),
            found: all.len(),
            stride,
        });
    }
    let lengths = splits.windows(2).map(|ends| ends[1] - ends[0]);
    if let Some((step, found)) = lengths.enumerate().find(|(_, found)| *found != stride) {
        return Err(ParseError::ListCount {
            key: name(),
            step,
            found,
            shape: shape.clone(),
        });
    }
    Ok(Parsed {
        shape: [&[splits.len() - 1], shape.as_slice()].concat(),
        values: all,
        splits: Vec::new(),
    })
}

/// The values of all steps, and where each step begins.
fn steps(key: &str, raw: Raw<'_>, dtype: DType) -> Result<(Values, Vec<usize>), ParseError> {
    let name = || key.to_string();
    let (mut all, mut splits) = (Values::empty(dtype), vec![0]);
    let mut stream = Stream(raw.0);
    while !stream.is_at_end() {
        let step = stream.tag(FIRST).then(|| stream.limited()).flatten();
        let Some(Stream(step)) = step else {
            return Err(ParseError::Malformed { key: name(), dtype });
        };
        let found = values(Raw(step), dtype).map_err(|bad| match bad {
            Bad::Type => ParseError::ListDType {
                key: name(),
                step: splits.len() - 1,
                expected: dtype,
            },
            Bad::Malformed => ParseError::Malformed { key: name(), dtype },
        })?;
        if let Some(found) = found {
            all.append(found);
        }
        splits.push(all.len());
    }
    Ok((all, splits))
}
