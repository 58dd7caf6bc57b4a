//! The ids of a lookup.

use burn::tensor::{DType, TensorData};

use crate::error::{PsError, Result};

/// Ids of rows, each once, and where they were asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ids {
    /// Ascending.
    pub(super) distinct: Vec<u64>,
    /// For each id that was asked for, its place among the distinct ones.
    pub(super) places: Vec<i64>,
    /// The shape in which they were asked for.
    pub(super) shape: Vec<usize>,
}

impl Ids {
    /// Integers of any type, as ids of a table of this many rows.
    pub(super) fn new(table: &str, rows: usize, ids: &TensorData) -> Result<Self> {
        let wide: Vec<i128> = match ids.dtype() {
            DType::U64 => ids.iter::<u64>().map(i128::from).collect(),
            dtype if dtype.is_int() || dtype.is_uint() => {
                ids.iter::<i64>().map(i128::from).collect()
            }
            other => {
                return Err(PsError::DType {
                    op: "lookup",
                    name: table.to_string(),
                    expected: "an integer type".to_string(),
                    found: other.name().to_string(),
                });
            }
        };
        let checked = |id: &i128| match u64::try_from(*id) {
            Ok(narrow) if narrow < rows as u64 => Ok(narrow),
            _ => Err(PsError::UnknownId {
                table: table.to_string(),
                id: *id,
                rows: rows as u64,
            }),
        };
        let asked = wide.iter().map(checked).collect::<Result<Vec<u64>>>()?;
        let mut distinct = asked.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let place = |id: &u64| distinct.partition_point(|known| known < id) as i64;
        Ok(Self {
            places: asked.iter().map(place).collect(),
            distinct,
            shape: ids.shape().to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_distinct_id_is_there_once_in_order() {
        let ids = TensorData::from([[7_i64, 2, 7], [0, 2, 2]]);
        let found = Ids::new("t", 8, &ids).unwrap();
        assert_eq!(found.distinct, [0, 2, 7]);
        assert_eq!(found.places, [2, 1, 2, 0, 1, 1]);
        assert_eq!(found.shape, [2, 3]);
    }

    #[test]
    fn every_integer_type_will_do_and_no_other() {
        let expected = Ids::new("t", 4, &TensorData::from([3_i64, 1])).unwrap();
        let others = [
            TensorData::from([3_u8, 1]),
            TensorData::from([3_i32, 1]),
            TensorData::from([3_u32, 1]),
            TensorData::from([3_u64, 1]),
            TensorData::from([3_i8, 1]),
        ];
        for ids in others {
            assert_eq!(Ids::new("t", 4, &ids).unwrap(), expected);
        }
        for ids in [TensorData::from([1.0_f32]), TensorData::from([true])] {
            let error = Ids::new("t", 4, &ids).unwrap_err();
            assert!(matches!(error, PsError::DType { .. }), "{error}");
        }
    }

    #[test]
    fn an_id_that_is_not_there_is_named() {
        let cases = [
            (TensorData::from([0_i64, 4, 1]), 4),
            (TensorData::from([-1_i32]), -1),
            (TensorData::from([u64::MAX]), i128::from(u64::MAX)),
        ];
        for (ids, wrong) in cases {
            let error = Ids::new("words", 4, &ids).unwrap_err();
            let PsError::UnknownId { table, id, rows } = &error else {
                panic!("{error}");
            };
            assert_eq!((table.as_str(), *id, *rows), ("words", wrong, 4));
            let text = error.to_string();
            assert!(
                text.contains("`words`") && text.contains("4 rows"),
                "{text}"
            );
        }
    }
}
