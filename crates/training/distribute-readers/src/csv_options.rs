//! How a CSV table is read.

/// Whether a table starts with a line of column names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CsvHeader {
    /// The first line is a header if the label column is given by name or a field is `label`, or
    /// if its fields are different names and none is a number. It is an example if all are
    /// numbers. Where it may be either it is an error: fields that stand for missing values; whole
    /// numbers that rise or fall from column to column as in no other line; whole numbers above
    /// columns of fractions.
    #[default]
    Detect,
    /// The first line is a header.
    Present,
    /// The first line is data.
    Absent,
}

/// Which column holds the label.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LabelColumn {
    /// The column named `label` if the header has one, else the last.
    #[default]
    Detect,
    /// The last column.
    Last,
    /// The column of this name; the table needs a header. Several names, with commas between them,
    /// are as many columns of target values, if no column has the whole text as its name.
    Name(String),
    /// There is none, or it does not matter: the examples have no labels. With
    /// [`CsvOptions::columns`] the column that would be the label may be there, and is left out.
    Absent,
}

/// Where the label stands in a table without header that is read for [`CsvOptions::columns`] of
/// another table, and with [`LabelColumn::Detect`] or [`LabelColumn::Absent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LabelPlace {
    /// Behind all features.
    #[default]
    Last,
    /// Behind this many features; see [`Examples::label_place`](crate::Examples::label_place).
    After(usize),
    /// It is not known: a table without header is refused if it has a label.
    Unknown,
}

/// Which columns are the features, and in which order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CsvColumns {
    /// All but the label.
    #[default]
    All,
    /// This many: all columns but the label, whose number must match.
    Count(usize),
    /// The columns of these names, wherever they stand. Others are left out
    /// ([`Examples::unused`](crate::Examples::unused)). Columns of the same name are told apart by
    /// their order, and there must be as many. A table without header must have as many columns, in
    /// this order, and the label at [`CsvOptions::label_place`].
    Named {
        /// The names of the features.
        features: Vec<String>,
        /// The name of the label, for [`LabelColumn::Detect`].
        label: Option<String>,
    },
}

/// The content of the label column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum CsvLabels {
    /// Class numbers, counted from 0.
    #[default]
    Classes,
    /// Target values of a regression.
    Numbers,
    /// What the column holds: class numbers, other numbers (target values), or names of classes,
    /// which are numbered in the order of the alphabet. A column of numbers and texts is an error.
    Detect,
}

/// How to read a CSV table.
///
/// ```
/// use distribute_readers::{CsvOptions, LabelColumn, parse_csv};
///
/// let options = CsvOptions { label: LabelColumn::Name("kind".into()), ..Default::default() };
/// let table = parse_csv(b"width,kind,height\n1.5,0,2\n3,1,4\n", "plants.csv", &options)?;
/// assert_eq!(table.features_f32(&[0, 1])?, [1.5, 2.0, 3.0, 4.0]);
/// assert_eq!(table.labels_i64(&[0, 1])?, [0, 1]);
/// # Ok::<(), distribute_readers::ReadError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvOptions {
    /// Whether there is a header.
    pub header: CsvHeader,
    /// Where the label is.
    pub label: LabelColumn,
    /// What the label is.
    pub labels: CsvLabels,
    /// The byte between two fields, `b','` by default.
    pub delimiter: u8,
    /// Whether that byte is sure. If not, a first line that looks as if a comma was wrong is
    /// refused; another byte than a comma is always sure.
    pub delimiter_is_sure: bool,
    /// Which columns are features; all but the label by default.
    pub columns: CsvColumns,
    /// Where the label stands, if neither names nor `columns` say it; behind all features by
    /// default.
    pub label_place: LabelPlace,
    /// The column with the weight of each example; the table needs a header. None by default.
    pub weights: Option<String>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        CsvOptions {
            header: CsvHeader::default(),
            label: LabelColumn::default(),
            labels: CsvLabels::default(),
            delimiter: b',',
            delimiter_is_sure: false,
            columns: CsvColumns::default(),
            label_place: LabelPlace::default(),
            weights: None,
        }
    }
}
