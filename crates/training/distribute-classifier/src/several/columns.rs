//! Columns of a table that belong to inputs and outputs by their names.

use std::path::Path;

use distribute_readers::{CsvColumns, CsvLabels, CsvOptions, LabelColumn, csv_names, read_csv};

use super::named::{Named, NamedData};
use crate::error::TaskError;
use crate::identity::listed;
use crate::split::Parts;

/// Reads a table. An input or output `a` is the columns that were named for it, else the column
/// `a`, else `a_0`, `a_1` and so on; one input that none of this is of has all other columns.
pub(super) fn read(
    named: &Named,
    path: &Path,
    table: &CsvOptions,
    is_labelled: bool,
) -> Result<NamedData, TaskError> {
    let header = csv_names(path, table)?;
    let outputs = named.outputs.iter().map(|name| found(named, name, &header));
    let outputs: Vec<Option<Vec<String>>> = outputs.collect::<Result<_, _>>()?;
    let inputs = named.inputs.iter();
    let inputs = inputs.map(|input| found(named, &input.name, &header));
    let mut inputs: Vec<Option<Vec<String>>> = inputs.collect::<Result<_, _>>()?;
    fill_rest(
        named,
        &mut inputs,
        &outputs,
        &header,
        table.weights.as_deref(),
    );
    let inputs = all(
        named,
        named.inputs.iter().map(|input| &input.name),
        inputs,
        &header,
    )?;
    let outputs = if is_labelled {
        all(named, named.outputs.iter(), outputs, &header)?
    } else {
        Vec::new()
    };
    let labels = outputs.concat();
    let options = CsvOptions {
        columns: CsvColumns::Named {
            features: inputs.concat(),
            label: None,
        },
        label: if labels.is_empty() {
            LabelColumn::Absent
        } else {
            LabelColumn::Name(labels.join(","))
        },
        labels: CsvLabels::Numbers,
        ..table.clone()
    };
    let examples = read_csv(path, &options)?;
    let shapes = named.inputs.iter().zip(&inputs).map(|(input, columns)| {
        let mut input = input.clone();
        input.shape = input.shape_of_columns(columns.len());
        input.divisor = Some(1.0);
        input
    });
    Ok(NamedData {
        inputs: shapes.collect(),
        widths: outputs.iter().map(Vec::len).collect(),
        parts: Parts::Whole(examples),
    })
}

/// The columns of an input or output, if its name or what was named says them.
fn found(named: &Named, name: &str, header: &[String]) -> Result<Option<Vec<String>>, TaskError> {
    let has = |column: &String| header.contains(column);
    if let Some(columns) = named.chosen(name) {
        return match columns.iter().find(|column| !has(column)) {
            None => Ok(Some(columns.to_vec())),
            Some(missing) => Err(named.error(format!(
                "there is no column {missing}, which was named for {name}; there are {}",
                listed(header)
            ))),
        };
    }
    if has(&name.to_string()) {
        return Ok(Some(vec![name.to_string()]));
    }
    let numbered = |first: usize| -> Vec<String> {
        let names = (first..).map(|number| format!("{name}_{number}"));
        names.take_while(has).collect()
    };
    let all = [numbered(0), numbered(1)].into_iter();
    Ok(all.into_iter().find(|columns| !columns.is_empty()))
}

/// Gives the only input without columns the columns that no other has.
fn fill_rest(
    named: &Named,
    inputs: &mut [Option<Vec<String>>],
    outputs: &[Option<Vec<String>>],
    header: &[String],
    weights: Option<&str>,
) {
    let missing: Vec<usize> = (0..inputs.len())
        .filter(|at| inputs[*at].is_none())
        .collect();
    let [only] = missing[..] else {
        return;
    };
    let used = |column: &&String| {
        let mut all = inputs.iter().chain(outputs).flatten().flatten();
        all.any(|it| it == *column) || weights == Some(column.as_str())
    };
    let rest: Vec<String> = header.iter().filter(|it| !used(it)).cloned().collect();
    let fits = named.inputs[only]
        .width()
        .is_none_or(|width| width == rest.len());
    if fits && !rest.is_empty() {
        inputs[only] = Some(rest);
    }
}

/// All columns, or an error with the names of what has none.
fn all<'a>(
    named: &Named,
    names: impl Iterator<Item = &'a String>,
    columns: Vec<Option<Vec<String>>>,
    header: &[String],
) -> Result<Vec<Vec<String>>, TaskError> {
    let pairs: Vec<_> = names.zip(columns).collect();
    let missing = pairs.iter().filter(|(_, columns)| columns.is_none());
    let missing: Vec<&str> = missing.map(|(name, _)| name.as_str()).collect();
    if missing.is_empty() {
        return Ok(pairs
            .into_iter()
            .filter_map(|(_, columns)| columns)
            .collect());
    }
    let first = missing[0];
    Err(named.error(format!(
        "no column belongs to {}: call it {first}, or several {first}_0, {first}_1 and so on, or \
         name the columns by `ReadingOptions::columns`; there are {}",
        missing.join(", "),
        listed(header)
    )))
}
