//! NumPy's `.npz`: a zip archive of `.npy` files.

use std::collections::BTreeSet;
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use crate::array::Array;
use crate::error::ReadError;
use crate::examples::{Examples, Features, Labels, MAX_CLASSES, Origin, TrainTest};
use crate::foreign::{START_BYTES, known};
use crate::mnist::{class_labels, same_count};
use crate::npy::Opened;
use crate::source::{Source, open_regular, stream_error};

const WANTED: &str = "x_train and y_train (with x_test and y_test, or without), or x and y";

/// Reads a `.npz` file with the keys `x_train`, `y_train` and, if there is a test set, `x_test`
/// and `y_test` (the layout of Keras' data sets); or with the keys `x` and `y`.
///
/// Test examples are `x_test` and `y_test`, or `x_val` and `y_val` where these are not there. What
/// else is in the archive is not read: [`Examples::unused`] has the names.
///
/// The first axis counts the examples. Bytes are pixels, read as `x as f32 / 255.0`; all other
/// features are taken as they are. Integer labels of shape `[n]` or `[n, 1]` from 0 up to
/// 1,048,575 are classes, texts are names of classes, and all others values. Both sets get the
/// same number of classes: the largest label plus one.
///
/// An array `sample_weight` (or `sample_weight_train`; `sample_weight_test` and
/// `sample_weight_val` for the other examples) has the weights.
///
/// # Errors
/// [`ReadError::MissingName`] with the keys that are there, [`ReadError::CountMismatch`],
/// [`ReadError::LabelOutOfRange`], [`ReadError::NotFinite`], [`ReadError::Malformed`] for a damaged
/// archive, and the errors of [`read_npy`](crate::read_npy) for its members.
pub fn read_npz(path: impl AsRef<Path>) -> Result<(Examples, Option<Examples>), ReadError> {
    let path = path.as_ref();
    let (file, length) = open_regular(path)?;
    parse(BufReader::with_capacity(1 << 16, file), length, path)
}

/// Reads all arrays of a `.npz` file, each with its key, in the order of the archive: what
/// `numpy.savez` was given, `arr_0`, `arr_1` and so on for arrays without a key.
///
/// # Errors
/// [`ReadError::Malformed`] for a damaged archive, and the errors of
/// [`read_npy`](crate::read_npy) for its members.
pub fn read_npz_arrays(path: impl AsRef<Path>) -> Result<Vec<(String, Array)>, ReadError> {
    let path = path.as_ref();
    let (file, length) = open_regular(path)?;
    all_arrays(BufReader::with_capacity(1 << 16, file), length, path)
}

/// Reads all arrays of `.npz` from memory; `origin` names the data in errors.
///
/// # Errors
/// As [`read_npz_arrays`].
pub fn parse_npz_arrays(
    bytes: &[u8],
    origin: impl AsRef<Path>,
) -> Result<Vec<(String, Array)>, ReadError> {
    all_arrays(Cursor::new(bytes), bytes.len() as u64, origin.as_ref())
}

fn all_arrays(
    reader: impl Read + Seek,
    length: u64,
    path: &Path,
) -> Result<Vec<(String, Array)>, ReadError> {
    let archive = opened(reader, path)?;
    let mut npz = Npz {
        archive,
        path,
        length,
    };
    // Members may share their compressed bytes, but members of an honest archive do not.
    let mut left = length.saturating_mul(LARGEST_RATIO);
    let mut arrays = Vec::new();
    for key in npz.keys() {
        let name = npz.name(&key);
        let opened = npz.open(&key, &name)?;
        let bytes = opened.bytes().and_then(|bytes| left.checked_sub(bytes));
        left = bytes.ok_or_else(|| {
            let what = "the arrays are larger than an archive of this length can hold";
            ReadError::malformed(path, what)
        })?;
        arrays.push((key, opened.read()?));
    }
    Ok(arrays)
}

/// A byte of a deflated member expands to at most this many bytes (zlib's documentation: 1032).
const LARGEST_RATIO: u64 = 1032;

/// Reads `.npz` from memory; `origin` names the data in errors.
///
/// # Errors
/// As [`read_npz`].
pub fn parse_npz(
    bytes: &[u8],
    origin: impl AsRef<Path>,
) -> Result<(Examples, Option<Examples>), ReadError> {
    parse(Cursor::new(bytes), bytes.len() as u64, origin.as_ref())
}

/// An open archive, its path, and its length: what no member can exceed.
struct Npz<'a, R> {
    archive: ZipArchive<R>,
    path: &'a Path,
    length: u64,
}

fn parse(
    reader: impl Read + Seek,
    length: u64,
    path: &Path,
) -> Result<(Examples, Option<Examples>), ReadError> {
    let archive = opened(reader, path)?;
    let name = path
        .file_stem()
        .map_or("npz".into(), |name| name.to_string_lossy().into_owned());
    let mut npz = Npz {
        archive,
        path,
        length,
    };
    let [x, y] = if npz.has("x_train") {
        ["x_train", "y_train"]
    } else {
        ["x", "y"]
    };
    let second = [["x_test", "y_test"], ["x_val", "y_val"]].into_iter();
    let mut second = second.filter(|pair| x == "x_train" && pair.iter().any(|key| npz.has(key)));
    let test = second.next();
    let mut keys = vec![x, y];
    keys.extend(test.into_iter().flatten());
    if !keys.iter().all(|key| npz.has(key)) {
        let found = npz.keys();
        return Err(ReadError::MissingName {
            path: path.into(),
            wanted: WANTED.into(),
            found,
        });
    }
    // All sizes are compared before the values of one are read.
    let shape = npz.compare([x, y])?;
    if let Some(test) = test {
        let other = npz.compare(test)?;
        if shape != other {
            return Err(ReadError::ShapesDiffer {
                path: npz.name(x),
                shape,
                other_path: npz.name(test[0]),
                other,
            });
        }
    }
    let weights = npz.weights(x);
    let test_weights = test.and_then(|test| npz.weights(test[0]));
    let used = [weights, test_weights];
    let unused: Vec<String> = npz
        .keys()
        .into_iter()
        .filter(|key| !keys.contains(&&**key) && !used.contains(&Some(&**key)))
        .collect();
    let train = npz.examples(&format!("{name} train"), [x, y], weights, &unused)?;
    let Some(test) = test else {
        return Ok((train, None));
    };
    let test = npz.examples(&format!("{name} test"), test, test_weights, &unused)?;
    let both = with_common_names(train, test)?.with_common_classes()?;
    Ok((both.train, Some(both.test)))
}

impl<R: Read + Seek> Npz<'_, R> {
    fn has(&self, key: &str) -> bool {
        self.archive.index_for_name(&member(key)).is_some()
    }

    /// The key of the weights of these examples, if there is one.
    fn weights(&self, x: &str) -> Option<&'static str> {
        let names: &[&'static str] = match x {
            "x_train" => &["sample_weight", "sample_weight_train"],
            "x" => &["sample_weight"],
            "x_test" => &["sample_weight_test"],
            _ => &["sample_weight_val"],
        };
        names.iter().copied().find(|key| self.has(key))
    }

    fn keys(&self) -> Vec<String> {
        let names = self.archive.file_names_raw().map(String::from_utf8_lossy);
        names
            .map(|name| name.trim_end_matches(".npy").to_owned())
            .collect()
    }

    /// How errors name a key: `data.npz[x_train]`.
    fn name(&self, key: &str) -> PathBuf {
        PathBuf::from(format!("{}[{key}]", self.path.display()))
    }

    /// Compares the sizes of a pair, of which only the headers are read: the shape of an example.
    fn compare(&mut self, [x, y]: [&str; 2]) -> Result<Vec<usize>, ReadError> {
        let (x_path, y_path) = (self.name(x), self.name(y));
        let features = self.open(x, &x_path)?.shape().to_vec();
        let labels = self.open_any(y, &y_path)?.shape().to_vec();
        for (shape, path) in [(&features, &x_path), (&labels, &y_path)] {
            if shape.is_empty() {
                let what = "is a single number, not an array of examples";
                return Err(ReadError::malformed(path, what));
            }
        }
        let (examples, row) = (features[0], &features[1..]);
        same_count(&x_path, examples, &y_path, labels[0])?;
        if examples == 0 || row.contains(&0) {
            return Err(ReadError::empty(&x_path));
        }
        Ok(row.to_vec())
    }

    fn open<'b>(&'b mut self, key: &str, path: &'b Path) -> Result<Opened<'b>, ReadError> {
        Opened::new(self.source(key, path)?)
    }

    /// As [`open`](Self::open), of numbers or texts.
    fn open_any<'b>(&'b mut self, key: &str, path: &'b Path) -> Result<Opened<'b>, ReadError> {
        Opened::any(self.source(key, path)?)
    }

    fn source<'b>(&'b mut self, key: &str, path: &'b Path) -> Result<Source<'b>, ReadError> {
        let file = self
            .archive
            .by_name(&member(key))
            .map_err(|error| zip_error(path, error))?;
        let method = file.compression();
        if let Some(method) = unread(method) {
            return Err(ReadError::Unsupported {
                path: path.into(),
                what: format!("is compressed with {method}"),
                remedy: "write it with numpy.savez or numpy.savez_compressed, which uses deflate",
            });
        }
        // The archive may claim anything; there cannot be more compressed bytes than the file has.
        let compressed_bytes = file.compressed_size().min(self.length);
        Ok(Source::compressed(Box::new(file), compressed_bytes, path))
    }

    fn examples(
        &mut self,
        name: &str,
        [x, y]: [&str; 2],
        weights: Option<&str>,
        unused: &[String],
    ) -> Result<Examples, ReadError> {
        let (features_path, labels_path) = (self.name(x), self.name(y));
        let features = self.open(x, &features_path)?.read()?;
        let (labels, class_names) = self.labels(y, &labels_path)?;
        let features = Features::Numbers(features);
        let examples = Examples::from_files(
            name,
            features,
            &features_path,
            labels,
            &labels_path,
            &class_names,
        )?
        .with_files(&[self.path.into()]);
        let examples = match weights {
            Some(key) => examples.with_weights(self.weights_of(key)?)?,
            None => examples,
        };
        Ok(examples.with_origin(Origin {
            label: Some(y.to_owned()),
            unused: unused.to_vec(),
            ..Origin::default()
        }))
    }

    /// Classes, by their names if these are texts, or values.
    fn labels(&mut self, y: &str, path: &Path) -> Result<(Labels, Vec<String>), ReadError> {
        let opened = self.open_any(y, path)?;
        let is_column = matches!(opened.shape(), [_] | [_, 1]);
        if opened.is_text() {
            if !is_column {
                let what = "holds several texts for each example; names of classes are one each";
                return Err(ReadError::malformed(path, what));
            }
            let texts = opened.read_texts()?;
            let names: BTreeSet<&String> = texts.iter().collect();
            let names: Vec<String> = names.into_iter().cloned().collect();
            let place = |text: &String| names.binary_search(text).map_or(0, |place| place as i64);
            return Ok((Labels::Classes(texts.iter().map(place).collect()), names));
        }
        let labels = opened.read()?;
        let is_class = labels.values().is_integer() && is_column && are_classes(&labels);
        let labels = if is_class {
            class_labels(labels, path)?
        } else {
            Labels::Numbers(labels)
        };
        Ok((labels, Vec::new()))
    }

    /// One number per example.
    fn weights_of(&mut self, key: &str) -> Result<Vec<f32>, ReadError> {
        let path = self.name(key);
        let array = self.open(key, &path)?.read()?;
        if !matches!(array.shape(), [_] | [_, 1]) {
            let what = format!(
                "has the shape {:?}; the weights of examples are one number each",
                array.shape()
            );
            return Err(ReadError::malformed(&path, what));
        }
        let mut weights = Vec::with_capacity(array.rows());
        for row in 0..array.rows() {
            array.extend_row_f32(row, 1.0, &mut weights);
        }
        Ok(weights)
    }

    /// The array that is for a model to answer on: see [`read_npz_features`].
    fn features(&mut self) -> Result<Examples, ReadError> {
        let keys = self.keys();
        let named = ["x", "x_test", "x_train"].into_iter();
        let named = named.map(str::to_owned).find(|key| keys.contains(key));
        let only = || (keys.len() == 1).then(|| keys[0].clone());
        let Some(key) = named.or_else(only) else {
            return Err(ReadError::MissingName {
                path: self.path.into(),
                wanted: "x (or x_test, or one array alone)".into(),
                found: keys,
            });
        };
        let name = self.name(&key);
        let array = self.open(&key, &name)?.read()?;
        if array.shape().is_empty() {
            let what = "is a single number, not an array of examples";
            return Err(ReadError::malformed(&name, what));
        }
        let labels = Labels::Absent(array.rows());
        let features = Features::Numbers(array);
        let examples = Examples::from_files(&key, features, &name, labels, &name, &[])?;
        let unused = keys.into_iter().filter(|other| *other != key);
        let origin = Origin {
            unused: unused.collect(),
            ..Origin::default()
        };
        Ok(examples.with_files(&[self.path.into()]).with_origin(origin))
    }
}

/// Reads the examples of `.npz` that a model is to answer on, without labels: the array `x`, else
/// `x_test`, else `x_train`, else the only one of the archive.
///
/// # Errors
/// [`ReadError::MissingName`] if there is no such array, and the errors of [`read_npz`].
pub fn read_npz_features(path: impl AsRef<Path>) -> Result<Examples, ReadError> {
    let path = path.as_ref();
    let (file, length) = open_regular(path)?;
    let archive = opened(BufReader::with_capacity(1 << 16, file), path)?;
    let mut npz = Npz {
        archive,
        path,
        length,
    };
    npz.features()
}

/// Opens the archive; the error says what the file is instead.
fn opened<R: Read + Seek>(mut reader: R, path: &Path) -> Result<ZipArchive<R>, ReadError> {
    let io = |error| ReadError::io(path, error);
    let mut start = Vec::with_capacity(START_BYTES);
    let mut read = (&mut reader).take(START_BYTES as u64);
    read.read_to_end(&mut start).map_err(io)?;
    reader.rewind().map_err(io)?;
    if start.is_empty() {
        return Err(ReadError::malformed(path, "the file is empty (0 bytes)"));
    }
    let is_zip = start.starts_with(b"PK");
    if let Some(what) = known(&start).filter(|_| !is_zip) {
        return Err(ReadError::Unsupported {
            path: path.into(),
            what: format!("is no .npz archive: it is {what}"),
            remedy: "take the file that numpy.savez wrote",
        });
    }
    ZipArchive::new(reader).map_err(|error| match error {
        ZipError::InvalidArchive(_) if is_zip => {
            let what = "the archive is cut off or damaged: the list of its arrays, which stands \
                        at its end, is not there";
            ReadError::malformed(path, what)
        }
        ZipError::InvalidArchive(_) => {
            let what = "is no .npz archive: it does not begin as a zip file does";
            ReadError::malformed(path, what)
        }
        error => zip_error(path, error),
    })
}

/// The classes of both by the names that either has.
fn with_common_names(train: Examples, test: Examples) -> Result<TrainTest, ReadError> {
    let names = [train.class_names(), test.class_names()];
    if names[0] == names[1] || names.iter().any(|names| names.is_empty()) {
        return Ok(TrainTest { train, test });
    }
    let all: BTreeSet<&String> = names.into_iter().flatten().collect();
    let all: Vec<String> = all.into_iter().cloned().collect();
    Ok(TrainTest {
        train: train.with_class_names(&all)?,
        test: test.with_class_names(&all)?,
    })
}

/// Whether whole numbers can be classes; others are target values.
fn are_classes(labels: &Array) -> bool {
    let mut values = Vec::with_capacity(1);
    (0..labels.rows()).all(|row| {
        values.clear();
        labels.extend_row_f32(row, 1.0, &mut values);
        values
            .iter()
            .all(|value| (0.0..MAX_CLASSES as f32).contains(value))
    })
}

fn member(key: &str) -> String {
    format!("{key}.npy")
}

fn zip_error(path: &Path, error: ZipError) -> ReadError {
    match error {
        ZipError::Io(error) => stream_error(path, error),
        ZipError::UnsupportedArchive(what) => ReadError::Unsupported {
            path: path.into(),
            what: format!("is a zip archive that is not read here: {what}"),
            remedy: "write it with numpy.savez or numpy.savez_compressed",
        },
        error => ReadError::malformed(path, format!("not a readable .npz archive: {error}")),
    }
}

/// The name of a compression that is not read.
fn unread(method: CompressionMethod) -> Option<&'static str> {
    match method {
        CompressionMethod::Stored | CompressionMethod::Deflated => None,
        CompressionMethod::BZIP2 => Some("bzip2"),
        CompressionMethod::LZMA => Some("LZMA"),
        CompressionMethod::ZSTD => Some("zstd"),
        CompressionMethod::XZ => Some("xz"),
        _ => Some("another method than deflate"),
    }
}
