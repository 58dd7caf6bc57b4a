//! `pipelines.json`: chains of transformations of `tf.data`, as streams of `distribute-pipeline`.

mod chain;
mod element;

use std::collections::VecDeque;

use distribute_pipeline::{Cardinality, PipelineError, Source, Stream, contract, range};
use serde_json::{Value, json};

use self::chain::{Built, Chain, NotBuilt};
use self::element::Element;
use super::support::expected;
use crate::case::{Case, Expected};
use crate::compare::equal;
use crate::env::Env;
use crate::json::Fields;
use crate::outcome::{Checked, Failure, Outcome, Rule};

pub(super) fn check(case: &Case, _env: &Env<'_>) -> Checked {
    let build = || chain::build(&case.inputs);
    let made = match build() {
        Ok(made) => made,
        Err(NotBuilt::Schema(failure)) => return Err(failure),
        // The library's arguments cannot be negative.
        Err(NotBuilt::Unsigned) => return Ok(Outcome::NotApplicable(Rule::CompileError)),
    };
    match (case.op(), &case.expected) {
        ("pipeline", Expected::Error { class, message }) => same_error(made, class, message),
        ("pipeline", _) => pipeline(case, made, &build),
        ("shuffled", _) => shuffled(case, made, &build),
        (other, _) => Err(Failure::schema(format!("unknown operation `{other}`"))),
    }
}

/// The elements of each pass, the cardinality, and the contract of streams.
fn pipeline(case: &Case, mut made: Chain, build: &dyn Fn() -> Built) -> Checked {
    let wanted = expected(case)?;
    let list = wanted.list("elements")?;
    let limit = case.inputs["limit"].as_u64();
    let passes = case.inputs["passes"].as_u64().unwrap_or(1);
    made.check().map_err(failed)?;
    same_cardinality(wanted, &made)?;
    for pass in 0..passes {
        if pass > 0 {
            made.start(pass).map_err(failed)?;
        }
        let found = elements(&mut made, limit).map_err(failed)?;
        let found: Vec<Value> = found.iter().map(Element::to_json).collect();
        same_elements(list, &found).map_err(|failure| failure.at(format!("pass {pass}: ")))?;
    }
    keeps_contract(build)
}

/// What is stated about an order that is TensorFlow's own.
fn shuffled(case: &Case, mut made: Chain, build: &dyn Fn() -> Built) -> Checked {
    let wanted = expected(case)?;
    same_cardinality(wanted, &made)?;
    let mut passes = VecDeque::new();
    for epoch in 0..2 {
        made.start(epoch).map_err(failed)?;
        let pass = elements(&mut made, None).map_err(failed)?;
        let pass: Option<Vec<i64>> = pass.iter().map(Element::integer).collect();
        let pass = pass.ok_or_else(|| Failure::got("elements that are no integers"))?;
        let mut sorted = pass.clone();
        sorted.sort_unstable();
        equal(wanted.field("elements_sorted")?, &json!(sorted))?;
        passes.push_back(pass);
    }
    equal(
        wanted.field("passes_equal")?,
        &json!(passes[0] == passes[1]),
    )?;
    // Of a chain that repeats, nothing is recorded.
    let stated = wanted.field("at_most_early")?;
    if !stated.is_null() {
        equal(stated, &json!(are_in_reach(case, &passes[0])?))?;
    }
    keeps_contract(build)
}

/// Whether each element comes at most as much too early as the buffer is long.
fn are_in_reach(case: &Case, pass: &[i64]) -> Result<bool, Failure> {
    let steps = case.inputs.list("steps")?;
    let buffer = steps
        .iter()
        .find_map(|step| step["shuffle"]["buffer"].as_i64());
    let buffer = buffer.ok_or_else(|| Failure::schema("no buffer"))?;
    let mut places = (0..).zip(pass);
    Ok(places.all(|(place, element)| *element - place < buffer))
}

fn same_elements(wanted: &[Value], found: &[Value]) -> Result<(), Failure> {
    for (at, (wanted, found)) in wanted.iter().zip(found).enumerate() {
        equal(wanted, found).map_err(|failure| failure.at(format!("element {at}: ")))?;
    }
    equal(&json!(wanted.len()), &json!(found.len())).map_err(|failure| failure.at("elements: "))
}

fn same_cardinality(wanted: &Value, made: &Chain) -> Result<(), Failure> {
    let found = match made.cardinality() {
        Cardinality::Known(count) => json!(count),
        Cardinality::Infinite => json!(-1),
        Cardinality::Unknown => json!(-2),
    };
    equal(wanted.field("cardinality")?, &found).map_err(|failure| failure.at("cardinality: "))
}

/// The error, before the first element or at one of them.
fn same_error(mut made: Chain, class: &str, message: &str) -> Checked {
    let result = made.check().and_then(|()| elements(&mut made, None));
    let Err(error) = result else {
        return Err(Failure::got("no error"));
    };
    let is_kind = match innermost(&error) {
        PipelineError::Shapes { .. } => message.contains("different shapes"),
        PipelineError::TooLong { .. } => class == "DataLossError",
        PipelineError::Argument { .. } => {
            let is_argument = ["InvalidArgumentError", "ValueError"].contains(&class);
            is_argument || message.contains("INVALID_ARGUMENT")
        }
        _ => false,
    };
    if is_kind {
        return Ok(Outcome::Passed);
    }
    Err(Failure::new(format!("{class}: {message}"), error))
}

/// The error that a function of a stage has given.
fn innermost(error: &PipelineError) -> &PipelineError {
    let PipelineError::Element { source, .. } = error else {
        return error;
    };
    source.downcast_ref().map_or(error, innermost)
}

fn elements(made: &mut Chain, limit: Option<u64>) -> Result<Vec<Element>, PipelineError> {
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    made.elements().take(limit.unwrap_or(usize::MAX)).collect()
}

/// Its state can be saved and restored before every element.
fn keeps_contract(build: &dyn Fn() -> Built) -> Checked {
    let nothing = || Box::new(range(0..0).map(Element::of).stream());
    let kept = contract::check_stream(|| build().unwrap_or_else(|_| nothing()));
    kept.map(|()| Outcome::Passed).map_err(failed)
}

fn failed(error: PipelineError) -> Failure {
    Failure::got(format!("an error: {error}"))
}
