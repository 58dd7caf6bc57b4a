//! The stream of a case: a source and its steps.

use std::collections::BTreeMap;

use distribute_pipeline::stream::{Buckets, choose_from, from_iter};
use distribute_pipeline::{Array, Count, Source, Stream, items, range};
use serde_json::Value;

use super::element::Element;
use crate::json::{Fields, counts};
use crate::outcome::Failure;

pub(super) type Chain = Box<dyn Stream<Item = Element>>;

/// Why a case has no stream.
pub(super) enum NotBuilt {
    Schema(Failure),
    /// A negative number, for an argument that has no sign.
    Unsigned,
}

pub(super) type Built = Result<Chain, NotBuilt>;

impl From<Failure> for NotBuilt {
    fn from(failure: Failure) -> Self {
        Self::Schema(failure)
    }
}

pub(super) fn build(inputs: &Value) -> Built {
    let steps = inputs.list("steps")?;
    steps
        .iter()
        .try_fold(source(inputs.field("source")?)?, step)
}

fn source(source: &Value) -> Built {
    let n = || integer(source, "n");
    Ok(match source.text("kind")? {
        "range" => Box::new(range(0..n()?).map(Element::of).stream()),
        "rows" => {
            let shape = counts(&source["shape"]).unwrap_or_default();
            let [rows, columns] = shape[..] else {
                return Err(Failure::schema("rows without a shape").into());
            };
            let row = move |row: i64| {
                let first = row * columns as i64;
                let values: Vec<i64> = (first..first + columns as i64).collect();
                Element::Int(Array::from(values))
            };
            Box::new(range(0..rows as i64).map(row).stream())
        }
        "pairs" => {
            let pair = |x: i64| {
                let ten = Element::Float(Array::scalar((10 * x) as f32));
                Element::List(vec![Element::of(x), ten])
            };
            Box::new(range(0..n()?).map(pair).stream())
        }
        "named" => {
            let named = |x: i64| {
                let fields = [("x", x), ("y", -x)].map(|(name, x)| (name.into(), Element::of(x)));
                Element::Named(BTreeMap::from(fields))
            };
            Box::new(range(0..n()?).map(named).stream())
        }
        "ragged" => {
            let lengths = counts(&source["lengths"]);
            let lengths = lengths.ok_or_else(|| Failure::schema("lengths that are no counts"))?;
            // A generator, whose length TensorFlow does not know.
            let lists = move |_| {
                let list = |(at, length)| Element::Int(Array::from(vec![at; length]));
                (0..).zip(lengths.clone()).map(list)
            };
            Box::new(from_iter(lists))
        }
        other => return Err(Failure::schema(format!("unknown source `{other}`")).into()),
    })
}

fn step(input: Chain, step: &Value) -> Built {
    let named = step.as_object().and_then(|step| step.iter().next());
    let (name, value) = named.ok_or_else(|| Failure::schema("a step without a name"))?;
    match name.as_str() {
        "add" | "add_pairs" | "keep" | "take_below" | "running_sum" | "enumerate" => {
            elementwise(input, name, value)
        }
        "batch" | "unbatch" | "rebatch" | "padded_batch" | "bucket" | "window" | "group" => {
            batches(input, name, value)
        }
        "concatenate" | "zip" | "flat" | "interleave" | "interleave_growing" | "choose" => {
            several(input, name, value)
        }
        _ => order(input, name, value),
    }
}

fn elementwise(input: Chain, name: &str, value: &Value) -> Built {
    if name == "keep" {
        let [divisor, rest] = integers(value)?;
        let keeps = move |x: &Element| x.integer().is_some_and(|x| x.rem_euclid(divisor) == rest);
        return Ok(Box::new(input.filter(keeps)));
    }
    let number = number(value)?;
    Ok(match name {
        "take_below" => {
            let is_below = move |x: &Element| x.integer().is_some_and(|x| x < number);
            Box::new(input.take_while(is_below))
        }
        "running_sum" => Box::new(input.scan(number, |sum: &mut i64, x: Element| {
            *sum += x.integer().unwrap_or(0);
            Element::of(*sum)
        })),
        "enumerate" => {
            let pair =
                |(at, x): (u64, Element)| Element::List(vec![Element::of(at.cast_signed()), x]);
            Box::new(input.enumerate(unsigned(number)?).map(pair))
        }
        _ => Box::new(input.map(move |x| x.plus(number))),
    })
}

fn batches(input: Chain, name: &str, value: &Value) -> Built {
    let drop = value["drop_remainder"].as_bool().unwrap_or(false);
    let size = || unsigned(integer(value, "size")?);
    let lists = |input: Chain| input.map(|x| x.into_integers().unwrap_or(Array::from(vec![])));
    Ok(match name {
        "batch" => Box::new(
            input
                .batch(size()?)
                .drop_remainder(drop)
                .try_map(Element::stack),
        ),
        "unbatch" => Box::new(input.try_map(Element::unstack).unbatch()),
        "rebatch" => {
            let batches = input.try_map(Element::unstack).rebatch(size()?);
            Box::new(batches.drop_remainder(drop).try_map(Element::stack))
        }
        "padded_batch" => {
            let padded = lists(input).padded_batch(size()?, integer(value, "value")?);
            let padded = padded.drop_remainder(drop);
            match value["width"].as_u64() {
                Some(width) => Box::new(padded.to_shape([width as usize]).map(Element::Int)),
                None => Box::new(padded.map(Element::Int)),
            }
        }
        "bucket" => {
            let counts = |key: &str| {
                counts(&value[key]).ok_or_else(|| Failure::schema("sizes that are no counts"))
            };
            let sizes: Vec<u64> = counts("sizes")?
                .into_iter()
                .map(|size| size as u64)
                .collect();
            let buckets = Buckets::new(counts("boundaries")?, sizes).drop_remainder(drop);
            let buckets = buckets.pad_to_boundary(value.flag("to_boundary")?);
            let padding = integer(value, "value")?;
            Box::new(
                lists(input)
                    .bucket_by_sequence_length(buckets, padding)
                    .map(Element::Int),
            )
        }
        "window" => {
            let size = size()?;
            let window = input.window(size).drop_remainder(drop);
            let window = window.stride(unsigned(integer(value, "stride")?)?);
            let window = match value["shift"].as_i64() {
                Some(shift) => window.shift(unsigned(shift)?),
                None => window,
            };
            // Each window is a data set in TensorFlow, which the case batches.
            let batch = move |window: Vec<Element>| items(window).batch(size).stream();
            Box::new(window.flat_map(batch).try_map(Element::stack))
        }
        _ => {
            let keys = integer(value, "keys")?;
            let key = move |x: &Element| x.integer().unwrap_or(0).rem_euclid(keys.max(1));
            let size = size()?;
            let groups = input.group_by_window(key, move |_| size);
            Box::new(groups.try_map(|(_, group)| Element::stack(group)))
        }
    })
}

fn several(input: Chain, name: &str, value: &Value) -> Built {
    let numbers = |from: i64, to: i64| range(from..to).map(Element::of).stream();
    Ok(match name {
        "concatenate" => {
            let [from, to] = integers(value)?;
            Box::new(input.concatenate(numbers(from, to)))
        }
        "zip" => {
            let [from, to] = integers(value)?;
            let pair = |(one, other)| Element::List(vec![one, other]);
            Box::new(input.zip(numbers(from, to)).map(pair))
        }
        "choose" => {
            let other = integer(value, "other")?;
            let choices = value.list("indices")?.iter().map(Value::as_u64);
            let choices: Option<Vec<u64>> = choices.collect();
            let choices = choices.ok_or(NotBuilt::Unsigned)?;
            let streams: Vec<Chain> = vec![input, Box::new(numbers(1000, 1000 + other))];
            let chosen = choose_from(streams, items(choices).stream());
            Box::new(chosen.stop_on_empty(value.flag("stop_on_empty")?))
        }
        "flat" => {
            let count = number(value)?;
            Box::new(input.flat_map(inner(move |_| count)))
        }
        _ => {
            let count = value["inner"].as_i64();
            let inner = inner(move |x| count.unwrap_or(x));
            let streams = input.interleave(inner);
            let streams = streams.cycle_length(unsigned(integer(value, "cycle")?)?);
            Box::new(streams.block_length(unsigned(integer(value, "block")?)?))
        }
    })
}

/// x to `count` numbers from 100 x on.
fn inner(count: impl Fn(i64) -> i64) -> impl Fn(Element) -> Chain {
    move |x| {
        let x = x.integer().unwrap_or(0);
        Box::new(range(100 * x..100 * x + count(x)).map(Element::of).stream())
    }
}

fn order(input: Chain, name: &str, value: &Value) -> Built {
    let count = || Ok::<Count, NotBuilt>(Count::from(number(value)?));
    Ok(match name {
        "repeat" => Box::new(input.repeat(count()?)),
        "take" => Box::new(input.take(count()?)),
        "skip" => Box::new(input.skip(count()?)),
        "shard" => {
            let [shards, index] = integers(value)?;
            Box::new(input.shard(unsigned(shards)?, unsigned(index)?))
        }
        "cache" => Box::new(input.cache()),
        "prefetch" => Box::new(input.prefetch(number(value)?)),
        "shuffle" => {
            let buffer = unsigned(integer(value, "buffer")?)?;
            let shuffled = input.shuffle(buffer, unsigned(integer(value, "seed")?)?);
            Box::new(shuffled.reshuffle_each_iteration(value.flag("reshuffle")?))
        }
        other => return Err(Failure::schema(format!("unknown step `{other}`")).into()),
    })
}

fn integer(value: &Value, key: &str) -> Result<i64, NotBuilt> {
    number(value.field(key)?)
}

fn number(value: &Value) -> Result<i64, NotBuilt> {
    let number = value.as_i64();
    Ok(number.ok_or_else(|| Failure::schema(format!("`{value}` is no integer")))?)
}

fn integers<const N: usize>(value: &Value) -> Result<[i64; N], NotBuilt> {
    let list: Option<Vec<i64>> = value
        .as_array()
        .and_then(|list| list.iter().map(Value::as_i64).collect());
    let list = list.and_then(|list| list.try_into().ok());
    Ok(list.ok_or_else(|| Failure::schema(format!("`{value}` is no list of {N} integers")))?)
}

fn unsigned(number: i64) -> Result<u64, NotBuilt> {
    u64::try_from(number).map_err(|_| NotBuilt::Unsigned)
}
