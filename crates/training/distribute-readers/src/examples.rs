//! Labelled examples with random access, shared between threads without copying.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::array::{Array, Values, checked_product, with_values};
use crate::error::{Place, ReadError, excerpt};

/// The inputs of the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Features {
    /// Row `i` of the array is example `i`.
    Numbers(Array),
    /// One text per example.
    Text(Vec<String>),
}

/// The expected outputs of the model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Labels {
    /// The class of each example, counted from 0.
    Classes(Vec<i64>),
    /// Row `i` holds the target values of example `i` (regression, one-hot, labels of any shape).
    Numbers(Array),
    /// There are none, of this many examples: they are for a model that answers.
    Absent(usize),
}

impl Features {
    fn len(&self) -> usize {
        match self {
            Features::Numbers(array) => array.rows(),
            Features::Text(texts) => texts.len(),
        }
    }
}

impl Labels {
    fn len(&self) -> usize {
        match self {
            Labels::Classes(labels) => labels.len(),
            Labels::Numbers(array) => array.rows(),
            Labels::Absent(examples) => *examples,
        }
    }
}

/// More classes than this are taken for a mistake (a column of values read as labels).
pub(crate) const MAX_CLASSES: usize = 1 << 20;

/// A data set in host memory: features, labels and how to read them.
///
/// A clone, [`subset`](Self::subset) and [`split`](Self::split) share the data, so they are cheap
/// and can be sent to other threads. Batches are read by index, in any order:
///
/// ```
/// use distribute_readers::digits;
///
/// let digits = digits()?;
/// let images: Vec<f32> = digits.features_f32(&[5, 0])?; // 2 x 8 x 8, row major
/// let labels: Vec<i64> = digits.labels_i64(&[5, 0])?;
/// assert_eq!((images.len(), &labels[..]), (128, &[5, 0][..]));
/// # Ok::<(), distribute_readers::ReadError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Examples {
    name: Arc<str>,
    features: Arc<Features>,
    labels: Arc<Labels>,
    /// The examples of this view, or all of them.
    rows: Option<Arc<[usize]>>,
    feature_shape: Arc<[usize]>,
    divisor: f32,
    classes: Option<usize>,
    class_names: Arc<[String]>,
    /// How much each example of the data counts.
    weights: Option<Arc<[f32]>>,
    files: Arc<[PathBuf]>,
    origin: Arc<Origin>,
}

/// Information in a file about its features and labels, besides their values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    /// The names of the features, if they have any.
    pub(crate) columns: Vec<String>,
    /// Where the labels are from.
    pub(crate) label: Option<String>,
    /// How many features of a table stand before its label.
    pub(crate) label_place: Option<usize>,
    /// Parts of the file that are not used.
    pub(crate) unused: Vec<String>,
}

impl Examples {
    /// Joins features and labels.
    ///
    /// Bytes (`Values::U8`) are taken for pixels and read as `x as f32 / 255.0`; change that with
    /// [`with_divisor`](Self::with_divisor). For [`Labels::Classes`] the number of classes is the
    /// largest label plus one; set it with [`with_classes`](Self::with_classes) if it is known.
    ///
    /// # Errors
    /// [`ReadError::Empty`] without examples or with rows of no values,
    /// [`ReadError::CountMismatch`] if there are more features than labels or fewer,
    /// [`ReadError::LabelOutOfRange`] for a negative class or one above 1,048,575,
    /// [`ReadError::NotFinite`] for NaN, infinity and numbers beyond `f32`.
    pub fn new(name: &str, features: Features, labels: Labels) -> Result<Self, ReadError> {
        Self::from_files(
            name,
            features,
            Path::new(name),
            labels,
            Path::new(name),
            &[],
        )
    }

    /// As [`new`](Self::new), with the files to name in errors.
    pub(crate) fn from_files(
        name: &str,
        features: Features,
        features_path: &Path,
        labels: Labels,
        labels_path: &Path,
        class_names: &[String],
    ) -> Result<Self, ReadError> {
        let (feature_shape, divisor) = match &features {
            Features::Text(_) => (Vec::new(), 1.0),
            Features::Numbers(array) => {
                let is_pixels = matches!(array.values(), Values::U8(_));
                (
                    array.row_shape().to_vec(),
                    if is_pixels { 255.0 } else { 1.0 },
                )
            }
        };
        if features.len() == 0 || feature_shape.contains(&0) {
            return Err(ReadError::empty(features_path));
        }
        if features.len() != labels.len() {
            return Err(ReadError::CountMismatch {
                features_path: features_path.into(),
                examples: features.len(),
                labels_path: labels_path.into(),
                labels: labels.len(),
            });
        }
        if let Features::Numbers(array) = &features {
            check_finite(array, features_path)?;
        }
        let classes = match &labels {
            Labels::Classes(labels) => Some(count_classes(labels, labels_path)?),
            Labels::Numbers(array) => {
                check_finite(array, labels_path)?;
                None
            }
            Labels::Absent(_) => None,
        };
        let mut files = vec![features_path.to_owned()];
        if labels_path != features_path {
            files.push(labels_path.to_owned());
        }
        Ok(Examples {
            name: name.into(),
            features: Arc::new(features),
            labels: Arc::new(labels),
            rows: None,
            feature_shape: feature_shape.into(),
            divisor,
            classes,
            class_names: class_names.into(),
            weights: None,
            files: files.into(),
            origin: Arc::new(Origin::default()),
        })
    }

    /// Sets the number of classes and checks every label against it.
    ///
    /// # Errors
    /// [`ReadError::LabelOutOfRange`] names the first label that is not in `0..classes`;
    /// [`ReadError::WrongKind`] if the labels are not classes.
    pub fn with_classes(mut self, classes: usize) -> Result<Self, ReadError> {
        let Labels::Classes(labels) = &*self.labels else {
            return Err(self.wrong_kind("classes", "values as labels"));
        };
        let path = self
            .files
            .last()
            .map_or(Path::new(&*self.name), PathBuf::as_path);
        let rows = self.rows.as_deref();
        let out_of_range = |&row: &usize| usize::try_from(labels[row]).is_ok_and(|l| l >= classes);
        let found = match rows {
            Some(rows) => rows.iter().copied().find(out_of_range),
            None => (0..labels.len()).find(out_of_range),
        };
        if let Some(row) = found {
            return Err(label_error(path, row, labels[row], classes));
        }
        self.classes = Some(classes);
        Ok(self)
    }

    /// Sets how much each example counts in a loss (Keras: `sample_weight`).
    ///
    /// # Errors
    /// [`ReadError::CountMismatch`] for another number of weights than there are examples,
    /// [`ReadError::NotFinite`] for NaN and infinity.
    pub fn with_weights(mut self, weights: Vec<f32>) -> Result<Self, ReadError> {
        let path = Path::new(&*self.name);
        if weights.len() != self.features.len() {
            return Err(ReadError::CountMismatch {
                features_path: path.into(),
                examples: self.features.len(),
                labels_path: path.into(),
                labels: weights.len(),
            });
        }
        if let Some(row) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(ReadError::NotFinite {
                path: path.into(),
                row,
                column: 0,
                value: weights[row].into(),
            });
        }
        self.weights = Some(weights.into());
        Ok(self)
    }

    /// Whether the examples have weights.
    pub fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }

    /// How much the examples `indices` count: 1 without weights.
    ///
    /// # Errors
    /// [`ReadError::IndexOutOfRange`].
    pub fn weights_f32(&self, indices: &[usize]) -> Result<Vec<f32>, ReadError> {
        let weights = indices.iter().map(|&index| {
            let row = self.row(index)?;
            Ok(self.weights.as_ref().map_or(1.0, |weights| weights[row]))
        });
        weights.collect()
    }

    /// Gives every example another shape with as many values, for example `[28, 28]` for the 784
    /// columns of a table.
    ///
    /// # Errors
    /// [`ReadError::ShapeMismatch`] if the number of values differs,
    /// [`ReadError::WrongKind`] for text.
    pub fn with_feature_shape(mut self, shape: &[usize]) -> Result<Self, ReadError> {
        let values = self.numbers()?.row_len();
        if checked_product(shape) != Some(values) {
            return Err(ReadError::ShapeMismatch {
                shape: shape.to_vec(),
                values,
            });
        }
        self.feature_shape = shape.into();
        Ok(self)
    }

    /// Sets what every feature is divided by on reading: `x as f32 / divisor`.
    #[must_use]
    pub fn with_divisor(mut self, divisor: f32) -> Self {
        self.divisor = divisor;
        self
    }

    /// Sets the file's information about them.
    #[must_use]
    pub(crate) fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = Arc::new(origin);
        self
    }

    /// What every feature is divided by on reading.
    pub fn divisor(&self) -> f32 {
        self.divisor
    }

    /// The type of the features as they are stored: `u8`, `f32` and so on, or `text`.
    pub fn stored_type(&self) -> &'static str {
        match &*self.features {
            Features::Text(_) => "text",
            Features::Numbers(array) => array.values().type_name(),
        }
    }

    /// The names of the features of one example: the columns of a table with a header, without the
    /// label. Empty if they have none.
    pub fn column_names(&self) -> &[String] {
        &self.origin.columns
    }

    /// The name of what the labels were taken from: a column of a table, an array of an archive.
    pub fn label_name(&self) -> Option<&str> {
        self.origin.label.as_deref()
    }

    /// How many of the features stand before the label in a line of the table that this was read
    /// from, or did for the names that it was read by; `None` if it is no table of numbers, has no
    /// label, or has its features in another order.
    pub fn label_place(&self) -> Option<usize> {
        self.origin.label_place
    }

    /// The names of what the file holds beside what was read: columns of a table, arrays of an
    /// archive.
    pub fn unused(&self) -> &[String] {
        &self.origin.unused
    }

    /// Whether the examples have labels.
    pub fn is_labelled(&self) -> bool {
        !matches!(*self.labels, Labels::Absent(_))
    }

    /// Labels that are values as classes: whole numbers from 0 on, one each, or rows of zeros with
    /// one 1 (one-hot), which is the class. Classes stay as they are.
    ///
    /// # Errors
    /// [`ReadError::NotClasses`] with the first label that is neither; [`ReadError::WrongKind`]
    /// without labels.
    pub fn with_labels_as_classes(mut self) -> Result<Self, ReadError> {
        let array = match &*self.labels {
            Labels::Classes(_) => return Ok(self),
            Labels::Absent(_) => return Err(self.wrong_kind("labels", "none")),
            Labels::Numbers(array) => array,
        };
        let path = self
            .files
            .last()
            .map_or(Path::new(&*self.name), PathBuf::as_path);
        let width = array.row_len();
        let mut values = Vec::new();
        let mut classes = Vec::with_capacity(array.rows());
        for row in 0..array.rows() {
            values.clear();
            array.extend_row_f32(row, 1.0, &mut values);
            let class = class_of(&values).ok_or_else(|| ReadError::NotClasses {
                path: path.into(),
                row,
                label: excerpt(&format!("{values:?}")),
            })?;
            classes.push(class);
        }
        let found = count_classes(&classes, path)?;
        self.classes = Some(if width > 1 { width } else { found });
        self.labels = Arc::new(Labels::Classes(classes));
        Ok(self)
    }

    /// Labels that are classes as values, one each: `3` becomes `3.0`. Values stay as they are.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] without labels.
    pub fn with_labels_as_values(mut self) -> Result<Self, ReadError> {
        let classes = match &*self.labels {
            Labels::Numbers(_) => return Ok(self),
            Labels::Absent(_) => return Err(self.wrong_kind("labels", "none")),
            Labels::Classes(classes) => classes,
        };
        let values = classes.iter().map(|class| *class as f32).collect();
        let array = Array::new(vec![classes.len()], Values::F32(values))?;
        self.labels = Arc::new(Labels::Numbers(array));
        self.classes = None;
        self.class_names = Arc::new([]);
        Ok(self)
    }

    /// The classes by the places of their names in this list.
    ///
    /// # Errors
    /// [`ReadError::MissingName`] with the first name that is not in the list;
    /// [`ReadError::WrongKind`] if the labels are not classes with names.
    pub fn with_class_names(mut self, names: &[String]) -> Result<Self, ReadError> {
        let Labels::Classes(classes) = &*self.labels else {
            return Err(self.wrong_kind("classes", "values as labels"));
        };
        let places = self.class_names.iter().map(|own| {
            let place = names.iter().position(|name| name == own);
            place.ok_or_else(|| ReadError::MissingName {
                path: self.name.to_string().into(),
                wanted: format!("the class {own:?}, which the data has,"),
                found: names.to_vec(),
            })
        });
        let places = places.collect::<Result<Vec<usize>, _>>()?;
        let renumbered = classes.iter().map(|class| {
            let place = usize::try_from(*class).ok();
            let place = place.and_then(|class| places.get(class));
            place.map_or(*class, |place| *place as i64)
        });
        self.labels = Arc::new(Labels::Classes(renumbered.collect()));
        self.class_names = names.into();
        self.classes = Some(names.len());
        Ok(self)
    }

    /// Multiplies the weight of every example by that of its class (Keras: `class_weight`); of a
    /// class beyond the list it is 1.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] if the labels are not classes; the errors of
    /// [`with_weights`](Self::with_weights).
    pub fn with_class_weights(self, weights: &[f32]) -> Result<Self, ReadError> {
        let Labels::Classes(classes) = &*self.labels else {
            return Err(self.wrong_kind("classes", "values as labels"));
        };
        let own = |row: usize| self.weights.as_ref().map_or(1.0, |weights| weights[row]);
        let all = classes.iter().enumerate().map(|(row, class)| {
            let class = usize::try_from(*class).ok();
            let weight = class.and_then(|class| weights.get(class));
            own(row) * weight.copied().unwrap_or(1.0)
        });
        let all = all.collect();
        self.with_weights(all)
    }

    /// The same examples without their labels.
    #[must_use]
    pub fn without_labels(mut self) -> Self {
        self.labels = Arc::new(Labels::Absent(self.features.len()));
        self.classes = None;
        self
    }

    /// Replaces the files that the examples are said to come from.
    #[must_use]
    pub(crate) fn with_files(mut self, files: &[PathBuf]) -> Self {
        self.files = files.into();
        self
    }

    /// A view of the examples `indices` of this one, in that order; the data is shared.
    ///
    /// # Errors
    /// [`ReadError::Empty`] without indices, [`ReadError::IndexOutOfRange`].
    pub fn subset(&self, indices: &[usize]) -> Result<Self, ReadError> {
        if indices.is_empty() {
            return Err(ReadError::empty(Path::new(&*self.name)));
        }
        let rows = indices
            .iter()
            .map(|&index| self.row(index))
            .collect::<Result<Arc<[_]>, _>>()?;
        Ok(Examples {
            rows: Some(rows),
            ..self.clone()
        })
    }

    /// The row of each example in the data that this is a view of, counted from 0: in the file,
    /// if it was read from one.
    pub fn rows(&self) -> Vec<usize> {
        match &self.rows {
            Some(rows) => rows.to_vec(),
            None => (0..self.len()).collect(),
        }
    }

    /// The examples of this set followed by the examples of `other`, copied.
    ///
    /// # Errors
    /// [`ReadError::ShapesDiffer`] if the examples have other shapes, [`ReadError::WrongKind`] if
    /// one holds texts and the other numbers, or one has classes and the other values as labels.
    pub fn joined(&self, other: &Self) -> Result<Self, ReadError> {
        if self.feature_shape != other.feature_shape {
            return Err(ReadError::ShapesDiffer {
                path: self.name.to_string().into(),
                shape: self.feature_shape.to_vec(),
                other_path: other.name.to_string().into(),
                other: other.feature_shape.to_vec(),
            });
        }
        let all = |examples: &Self| (0..examples.len()).collect::<Vec<_>>();
        let (mine, theirs) = (all(self), all(other));
        let origin = (*self.origin).clone();
        let features = if self.is_text() {
            let texts = [self.texts(&mine)?, other.texts(&theirs)?].concat();
            Features::Text(texts.into_iter().map(ToOwned::to_owned).collect())
        } else {
            let mut values = self.features_f32(&mine)?;
            other.extend_features_f32(&theirs, &mut values)?;
            let mut shape = vec![mine.len() + theirs.len()];
            shape.extend(self.feature_shape.iter());
            Features::Numbers(Array::new(shape, Values::F32(values))?)
        };
        let name = Path::new(&*self.name);
        let names = self.class_names();
        let labels = match (self.classes, other.classes) {
            (Some(_), Some(_)) => {
                Labels::Classes([self.labels_i64(&mine)?, other.labels_i64(&theirs)?].concat())
            }
            (None, None) if self.label_shape() == other.label_shape() => {
                let values = [self.labels_f32(&mine)?, other.labels_f32(&theirs)?].concat();
                let shape = [&[mine.len() + theirs.len()], self.label_shape()].concat();
                Labels::Numbers(Array::new(shape, Values::F32(values))?)
            }
            _ => return Err(self.wrong_kind("labels of one kind", "classes and values")),
        };
        let joined = Self::from_files(&self.name, features, name, labels, name, names)?;
        let joined = match self.classes.max(other.classes) {
            Some(classes) => joined.with_classes(classes)?,
            None => joined,
        };
        let joined = if self.is_weighted() || other.is_weighted() {
            joined.with_weights([self.weights_f32(&mine)?, other.weights_f32(&theirs)?].concat())?
        } else {
            joined
        };
        let files = [&*self.files, &*other.files].concat();
        Ok(joined.with_files(&files).with_origin(origin))
    }

    /// The number of examples, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "there is always an example")]
    pub fn len(&self) -> usize {
        self.rows
            .as_ref()
            .map_or(self.features.len(), |rows| rows.len())
    }

    /// A short name for messages, such as `digits`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The files that the examples were read from, for sharding by file; none if from memory.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The shape of one example: `[height, width]` of a grey image, `[height, width, 3]` of a
    /// colour image, `[columns]` of a table, `[]` of a text or a single number.
    pub fn feature_shape(&self) -> &[usize] {
        &self.feature_shape
    }

    /// Whether the features are texts and not numbers.
    pub fn is_text(&self) -> bool {
        matches!(*self.features, Features::Text(_))
    }

    /// The number of classes; `None` if the labels are values.
    pub fn classes(&self) -> Option<usize> {
        self.classes
    }

    /// The names of the classes, in the order of their labels; empty if they have none.
    pub fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// The shape of one label: `[]` of a class.
    pub fn label_shape(&self) -> &[usize] {
        match &*self.labels {
            Labels::Classes(_) | Labels::Absent(_) => &[],
            Labels::Numbers(array) => array.row_shape(),
        }
    }

    /// How many examples of each class there are; empty if the labels are values.
    pub fn class_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes.unwrap_or(0)];
        if let Labels::Classes(labels) = &*self.labels {
            for index in 0..self.len() {
                counts[labels[self.rows.as_ref().map_or(index, |rows| rows[index])] as usize] += 1;
            }
        }
        counts
    }

    /// The features of the examples `indices`, one after the other, each as `x as f32 / divisor`.
    ///
    /// # Errors
    /// [`ReadError::IndexOutOfRange`]; [`ReadError::WrongKind`] for text.
    pub fn features_f32(&self, indices: &[usize]) -> Result<Vec<f32>, ReadError> {
        let mut out = Vec::new();
        self.extend_features_f32(indices, &mut out)?;
        Ok(out)
    }

    /// As [`features_f32`](Self::features_f32), appended to a buffer that can be used again.
    ///
    /// # Errors
    /// As [`features_f32`](Self::features_f32); then `out` may hold some of the examples.
    pub fn extend_features_f32(
        &self,
        indices: &[usize],
        out: &mut Vec<f32>,
    ) -> Result<(), ReadError> {
        let array = self.numbers()?;
        out.reserve(indices.len().saturating_mul(array.row_len()));
        for &index in indices {
            array.extend_row_f32(self.row(index)?, self.divisor, out);
        }
        Ok(())
    }

    /// The texts of the examples `indices`.
    ///
    /// # Errors
    /// [`ReadError::IndexOutOfRange`]; [`ReadError::WrongKind`] if the features are numbers.
    pub fn texts(&self, indices: &[usize]) -> Result<Vec<&str>, ReadError> {
        let Features::Text(texts) = &*self.features else {
            return Err(self.wrong_kind("texts", "numbers"));
        };
        indices
            .iter()
            .map(|&index| Ok(texts[self.row(index)?].as_str()))
            .collect()
    }

    /// The labels of the examples `indices` as integers: classes, or integer values.
    ///
    /// # Errors
    /// [`ReadError::IndexOutOfRange`]; [`ReadError::WrongKind`] for floating-point labels.
    pub fn labels_i64(&self, indices: &[usize]) -> Result<Vec<i64>, ReadError> {
        match &*self.labels {
            Labels::Classes(labels) => indices
                .iter()
                .map(|&index| Ok(labels[self.row(index)?]))
                .collect(),
            Labels::Numbers(array) if array.values().is_integer() => {
                let length = array.row_len();
                let mut out = Vec::with_capacity(indices.len().saturating_mul(length));
                for &index in indices {
                    let start = self.row(index)? * length;
                    with_values!(array.values(), v => {
                        out.extend(v[start..start + length].iter().map(|&x| x as i64));
                    });
                }
                Ok(out)
            }
            Labels::Numbers(_) => Err(self.wrong_kind("integer labels", "floating-point labels")),
            Labels::Absent(_) => Err(self.wrong_kind("labels", "none")),
        }
    }

    /// The labels of the examples `indices` as floating-point numbers; no divisor applies.
    ///
    /// # Errors
    /// [`ReadError::IndexOutOfRange`]; [`ReadError::WrongKind`] without labels.
    pub fn labels_f32(&self, indices: &[usize]) -> Result<Vec<f32>, ReadError> {
        let mut out = Vec::new();
        for &index in indices {
            let row = self.row(index)?;
            match &*self.labels {
                Labels::Classes(labels) => out.push(labels[row] as f32),
                Labels::Numbers(array) => array.extend_row_f32(row, 1.0, &mut out),
                Labels::Absent(_) => return Err(self.wrong_kind("labels", "none")),
            }
        }
        Ok(out)
    }

    /// The row of the shared data that example `index` of this view is.
    fn row(&self, index: usize) -> Result<usize, ReadError> {
        if index >= self.len() {
            let name = self.name.to_string();
            return Err(ReadError::IndexOutOfRange {
                name,
                index,
                examples: self.len(),
            });
        }
        Ok(self.rows.as_ref().map_or(index, |rows| rows[index]))
    }

    fn numbers(&self) -> Result<&Array, ReadError> {
        match &*self.features {
            Features::Numbers(array) => Ok(array),
            Features::Text(_) => Err(self.wrong_kind("numbers", "texts")),
        }
    }

    fn wrong_kind(&self, wanted: &'static str, found: &'static str) -> ReadError {
        ReadError::WrongKind {
            name: self.name.to_string(),
            wanted,
            found,
        }
    }
}

fn check_finite(array: &Array, path: &Path) -> Result<(), ReadError> {
    match array.first_not_finite() {
        None => Ok(()),
        Some((row, column, value)) => Err(ReadError::NotFinite {
            path: path.into(),
            row,
            column,
            value,
        }),
    }
}

/// The class that a label's values are: themselves, or the place of the only 1 among zeros.
fn class_of(values: &[f32]) -> Option<i64> {
    if let [value] = values {
        let is_class = value.fract() == 0.0 && (0.0..MAX_CLASSES as f32).contains(value);
        return is_class.then_some(*value as i64);
    }
    let class = values.iter().position(|value| *value == 1.0)?;
    let others = values.iter().filter(|value| **value == 0.0).count();
    (others + 1 == values.len()).then_some(class as i64)
}

/// The largest label plus one.
fn count_classes(labels: &[i64], path: &Path) -> Result<usize, ReadError> {
    let mut classes = 0;
    for (row, &label) in labels.iter().enumerate() {
        match usize::try_from(label) {
            Ok(label) if label < MAX_CLASSES => classes = classes.max(label + 1),
            _ => return Err(label_error(path, row, label, MAX_CLASSES)),
        }
    }
    Ok(classes)
}

fn label_error(path: &Path, row: usize, value: i64, classes: usize) -> ReadError {
    ReadError::LabelOutOfRange {
        path: path.into(),
        place: Place::Row(row),
        value: value.to_string(),
        allowed: format!("0 to {}", classes.saturating_sub(1)),
    }
}

/// A training and a test set.
#[derive(Debug, Clone)]
pub struct TrainTest {
    /// The examples to learn from.
    pub train: Examples,
    /// The examples to judge the result with.
    pub test: Examples,
}

impl TrainTest {
    /// Gives both sets the larger of their numbers of classes.
    pub(crate) fn with_common_classes(self) -> Result<Self, ReadError> {
        let classes = self.train.classes().max(self.test.classes());
        match (classes, self.train.classes(), self.test.classes()) {
            (Some(classes), Some(_), Some(_)) => Ok(TrainTest {
                train: self.train.with_classes(classes)?,
                test: self.test.with_classes(classes)?,
            }),
            _ => Ok(self),
        }
    }
}
