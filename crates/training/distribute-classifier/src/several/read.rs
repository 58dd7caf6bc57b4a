//! Which file the data of inputs and outputs is read from, by its kind.

use distribute_readers::{CsvHeader, CsvOptions};

use super::named::{Named, NamedData};
use super::{arrays, columns};
use crate::dataset_name::DatasetName;
use crate::error::TaskError;

impl Named {
    /// Refuses a name of what is neither an input nor an output.
    fn check_chosen(&self) -> Result<(), TaskError> {
        let known = || {
            self.inputs
                .iter()
                .map(|input| &input.name)
                .chain(&self.outputs)
        };
        let unknown = self
            .chosen
            .iter()
            .find(|(name, _)| !known().any(|it| it == name));
        match unknown {
            None => Ok(()),
            Some((name, _)) => Err(self.error(format!(
                "there is no input or output {name}, but {}",
                known().cloned().collect::<Vec<_>>().join(", ")
            ))),
        }
    }

    /// Reads the data set; without labels if they are not wanted.
    pub(crate) fn read(
        &self,
        dataset: &DatasetName,
        table: &CsvOptions,
        is_labelled: bool,
    ) -> Result<NamedData, TaskError> {
        self.check_chosen()?;
        match dataset {
            DatasetName::Csv(_, CsvHeader::Absent) => Err(self.error(format!(
                "the columns of {dataset} have no names, by which inputs and outputs are found; \
                 give it a header"
            ))),
            DatasetName::Csv(path, _) => columns::read(self, path, table, is_labelled),
            DatasetName::Npz(path) => arrays::read(self, path, is_labelled),
            other => Err(self.error(format!(
                "{other} has one array of inputs and one of labels; name csv:FILE, with columns, \
                 or npz:FILE, with arrays, that are called as the inputs and outputs"
            ))),
        }
    }
}
