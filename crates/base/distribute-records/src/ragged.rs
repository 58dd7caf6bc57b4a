//! Rows of a ragged feature, from the features that say where they are.

use std::collections::BTreeMap;

use crate::{ParseError, Parsed, RowPartition, Values};

impl RowPartition {
    /// The feature that it reads.
    pub(crate) fn key(&self) -> Option<&str> {
        match self {
            Self::Lengths(key)
            | Self::Splits(key)
            | Self::Starts(key)
            | Self::Limits(key)
            | Self::RowIds(key) => Some(key),
            Self::Uniform(_) => None,
        }
    }
}

/// Cuts a list into rows. TensorFlow does not check the rows; here they must fit.
pub(crate) fn cut(
    key: &str,
    values: Values,
    partitions: &[RowPartition],
    found: &BTreeMap<&str, Values>,
) -> Result<Parsed, ParseError> {
    if partitions.is_empty() {
        return Ok(Parsed::flat(values));
    }
    // From the inside out: the rows of one partition are the values of the one around it.
    let mut count = values.len();
    let mut splits = Vec::with_capacity(partitions.len());
    for partition in partitions.iter().rev() {
        let read = partition.key().and_then(|key| found.get(key));
        let numbers: &[i64] = match read {
            Some(Values::Int64(numbers)) => numbers,
            _ => &[],
        };
        let rows = rows(partition, numbers, count).map_err(|reason| ParseError::Rows {
            key: key.to_string(),
            partition: match partition {
                RowPartition::Uniform(length) => format!("length {length}"),
                other => format!("`{}`", other.key().unwrap_or_default()),
            },
            reason,
        })?;
        count = rows.len().saturating_sub(1);
        splits.push(rows);
    }
    splits.reverse();
    Ok(Parsed {
        shape: vec![count],
        values,
        splits,
    })
}

/// Where the rows with these numbers of values begin, and the last one ends.
fn rows(partition: &RowPartition, numbers: &[i64], count: usize) -> Result<Vec<usize>, String> {
    let numbers = numbers.iter().map(|number| {
        let place = usize::try_from(*number);
        place.map_err(|_| format!("{number} is negative"))
    });
    let numbers: Vec<usize> = numbers.collect::<Result<_, _>>()?;
    let splits = match partition {
        RowPartition::Lengths(_) => {
            let mut end = 0_usize;
            let ends = numbers.into_iter().map(|length| {
                end = end.saturating_add(length);
                end
            });
            std::iter::once(0).chain(ends).collect()
        }
        RowPartition::Splits(_) if numbers.is_empty() => vec![0],
        RowPartition::Splits(_) => numbers,
        RowPartition::Starts(_) => numbers.into_iter().chain([count]).collect(),
        RowPartition::Limits(_) => std::iter::once(0).chain(numbers).collect(),
        RowPartition::RowIds(_) => by_ids(&numbers, count)?,
        RowPartition::Uniform(0) => return Err("rows of no values cannot be counted".to_string()),
        RowPartition::Uniform(length) => (0..=count / length).map(|row| row * length).collect(),
    };
    let is_rising = splits.is_sorted() && splits.first() == Some(&0);
    match splits.last() {
        Some(&end) if is_rising && end == count => Ok(splits),
        Some(&end) if is_rising => Err(format!("they end at {end}, but there are {count} values")),
        _ => Err("they do not begin at 0 and rise".to_string()),
    }
}

fn by_ids(ids: &[usize], count: usize) -> Result<Vec<usize>, String> {
    if ids.len() != count || !ids.is_sorted() {
        return Err(format!("there must be {count} row numbers, which rise"));
    }
    let rows = ids.last().map_or(0, |last| last.saturating_add(1));
    // An example does not say how many empty rows it may have: as many as it has values, and a few.
    let limit = count.saturating_mul(16).saturating_add(1024);
    if rows > limit {
        return Err(format!("row {} is beyond {limit}", rows - 1));
    }
    let starts = (0..=rows).map(|row| ids.partition_point(|id| *id < row));
    Ok(starts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_gives_the_same_rows() {
        let name = || "rows".to_string();
        let given: [(RowPartition, &[i64]); 5] = [
            (RowPartition::Lengths(name()), &[2, 0, 1]),
            (RowPartition::Splits(name()), &[0, 2, 2, 3]),
            (RowPartition::Starts(name()), &[0, 2, 2]),
            (RowPartition::Limits(name()), &[2, 2, 3]),
            (RowPartition::RowIds(name()), &[0, 0, 2]),
        ];
        for (partition, numbers) in given {
            assert_eq!(rows(&partition, numbers, 3), Ok(vec![0, 2, 2, 3]));
            assert!(rows(&partition, &[-1], 3).is_err());
            assert!(rows(&partition, &[9, 1, 1 << 60], 3).is_err());
        }
        assert_eq!(rows(&RowPartition::Uniform(2), &[], 4), Ok(vec![0, 2, 4]));
        assert!(rows(&RowPartition::Uniform(2), &[], 3).is_err());
    }

    #[test]
    fn two_partitions_nest() {
        let rows = |numbers: &[i64]| Values::Int64(numbers.to_vec());
        let found = BTreeMap::from([("outer", rows(&[1, 2])), ("inner", rows(&[2, 0, 1]))]);
        let both = ["outer", "inner"].map(|key| RowPartition::Lengths(key.to_string()));
        let parsed = cut("a", rows(&[7, 8, 9]), &both, &found).unwrap();
        assert_eq!(parsed.splits, [vec![0, 1, 3], vec![0, 2, 2, 3]]);
        assert_eq!(parsed.shape, [2]);
    }
}
